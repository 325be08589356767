"""Features of a bilateral kernel: position and colour, and their widths."""

from collections.abc import Sequence

import torch
from torch import Tensor

from crfgrad.checks import check_positive

Widths = float | Sequence[float]


def positions(like: Tensor) -> Tensor:
    """X and y of each pixel, in the type of a tensor (B, C, H, W): (B, 2, H, W)."""
    batch, _, height, width = like.shape
    y, x = torch.meshgrid(
        torch.arange(height, device=like.device, dtype=like.dtype),
        torch.arange(width, device=like.device, dtype=like.dtype),
        indexing="ij",
    )
    return torch.stack([x, y]).expand(batch, 2, height, width)


def spread_widths(name: str, widths: Widths, count: int) -> list[float]:
    """One width for each of ``count`` features, from one for all or from as many."""
    spread = [float(widths)] * count if isinstance(widths, float | int) else [float(width) for width in widths]
    if len(spread) != count:
        raise ValueError(f"{name} has {len(spread)} widths for {count} channels: give one for all, or {count}")
    return [check_positive(name, width) for width in spread]
