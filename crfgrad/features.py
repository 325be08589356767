"""Features of a bilateral kernel: position and colour, and their widths."""

from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

from crfgrad.checks import check_positive

Widths = float | Sequence[float]


def positions(image: Tensor) -> Tensor:
    """X, y, ... of each pixel, in the type of an image (B, C, *S): (B, *S, dimensions)."""
    axes = [torch.arange(size, device=image.device, dtype=image.dtype) for size in image.shape[2:]]
    grid = torch.meshgrid(*axes, indexing="ij")
    return torch.stack(grid[::-1], dim=-1).expand(image.shape[0], *image.shape[2:], len(axes))


def positions_and_colours(image: Tensor) -> Tensor:
    """Both for an image (B, C, *S): (B, *S, dimensions + C)."""
    return torch.cat([positions(image), image.movedim(1, -1)], dim=-1)


def only_valid(features: Tensor, valid: Tensor | None) -> Tensor:
    """Features (B, *S, d) with those of a valid pixel in place of those that are not, which then add no vertices."""
    if valid is None:
        return features
    first = valid.flatten(1).int().argmax(1)  # (B,)
    pixels = features.flatten(1, -2)  # (B, N, d)
    some = pixels.gather(1, first[:, None, None].expand(-1, 1, pixels.shape[2]))  # (B, 1, d)
    return torch.where(valid.flatten(1)[..., None], pixels, some).view_as(features)


def spread_widths(name: str, widths: Widths, count: int) -> list[float]:
    """One width for each of ``count`` features, from one for all or from as many."""
    spread = [float(widths)] * count if isinstance(widths, float | int | Real) else [float(width) for width in widths]
    if len(spread) != count:
        raise ValueError(f"{name} has {len(spread)} widths for {count} channels: give one for all, or {count}")
    return [check_positive(name, width) for width in spread]
