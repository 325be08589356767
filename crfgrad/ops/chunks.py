"""Work on many rows, some of them at a time: what is made in between need not be as large as for all of them."""

import torch
from torch import Tensor

from crfgrad.ops.registry import on_cpu

LARGE = 1 << 25
"""Numbers in between at a time."""
CACHED = 1 << 20
"""The same on a CPU, where they stay in the cache and calls are cheap."""


def chunks(count: int, columns: int, like: Tensor) -> list[slice]:
    """Ranges of ``count`` rows, each with so many columns in between, on the device of a tensor."""
    step = max(1, (CACHED if on_cpu(like) else LARGE) // max(1, columns))
    return [slice(start, start + step) for start in range(0, max(1, count), step)]


def joined(parts: list[Tensor]) -> Tensor:
    """Rows one after the other."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
