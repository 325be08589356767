"""Features of a bilateral kernel: position and colour, and their widths."""

import math
from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

from crfgrad.checks import check_positive, values_are_checked

Widths = float | Sequence[float]
Spacing = float | Sequence[float] | Tensor
"""Distance between neighbouring pixels along the axes of an image, in their order: one number for all axes, one for
each (dimensions,), or a tensor with those of each image of a batch (B, dimensions)."""


def positions(image: Tensor, spacing: Spacing | None = None) -> Tensor:
    """X, y, ... of each pixel, in the type of an image (B, C, *S): (B, *S, dimensions).

    Args:
        image: Only its shape matters.
        spacing: The unit of the result; pixels without it.
    """
    axes = [torch.arange(size, device=image.device, dtype=image.dtype) for size in image.shape[2:]]
    if spacing is not None and not isinstance(spacing, Tensor):
        steps = spread_widths("spacing", spacing, len(axes), "axes")
        axes = [step * axis for step, axis in zip(steps, axes, strict=True)]
    grid = torch.meshgrid(*axes, indexing="ij")
    positions = torch.stack(grid[::-1], dim=-1).expand(image.shape[0], *image.shape[2:], len(axes))
    if not isinstance(spacing, Tensor):
        return positions
    each = spacing.to(positions).expand(len(image), len(axes)).flip(1)  # (B, dimensions), x first
    return positions * each.view(-1, *[1] * len(axes), len(axes))


def positions_and_colours(image: Tensor, spacing: Spacing | None = None) -> Tensor:
    """Both for an image (B, C, *S): (B, *S, dimensions + C)."""
    return torch.cat([positions(image, spacing), image.movedim(1, -1)], dim=-1)


def check_spacing(spacing: Spacing | None, image: Tensor) -> None:
    """Raises an error if the spacing does not fit a batch (B, C, *S)."""
    dimensions = image.dim() - 2
    if not isinstance(spacing, Tensor):
        if spacing is not None:
            spread_widths("spacing", spacing, dimensions, "axes")
        return
    if spacing.shape not in ((dimensions,), (len(image), dimensions)):
        raise ValueError(
            f"spacing has shape {tuple(spacing.shape)}, but must be ({dimensions},) or, one for each image, "
            f"({len(image)}, {dimensions})"
        )
    if values_are_checked(spacing) and not (torch.isfinite(spacing) & (spacing > 0)).all():
        raise ValueError(f"spacing must be positive, got {spacing.tolist()}")


def only_valid(features: Tensor, valid: Tensor | None) -> Tensor:
    """Features (B, *S, d) with those of a valid pixel in place of those that are not, which then add no vertices."""
    if valid is None:
        return features
    first = valid.flatten(1).int().argmax(1)  # (B,)
    pixels = features.flatten(1, -2)  # (B, N, d)
    some = pixels.gather(1, first[:, None, None].expand(-1, 1, pixels.shape[2]))  # (B, 1, d)
    return torch.where(valid.flatten(1)[..., None], pixels, some).view_as(features)


def spread_widths(name: str, widths: Widths, count: int, what: str = "channels") -> list[float]:
    """One width for each of ``count`` features, from one for all or from as many."""
    spread = [float(widths)] * count if isinstance(widths, float | int | Real) else [float(width) for width in widths]
    if len(spread) != count:
        raise ValueError(f"{name} has {len(spread)} numbers for {count} {what}: give one for all, or {count}")
    if not all(map(math.isfinite, spread)):
        raise ValueError(f"{name} must be finite, got {spread}")
    return [check_positive(name, width) for width in spread]
