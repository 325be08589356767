"""Labels last in memory: the order in which convolutions, lattices and projections read a pixel in one go.

Shapes stay (B, L, H, W) throughout; torch calls this memory format channels_last.
"""

import torch
from torch import Tensor


def labels_last(q: Tensor) -> Tensor:
    """The same values (B, L, H, W) with the labels of a pixel side by side in memory."""
    return q.contiguous(memory_format=torch.channels_last)


def softmax_labels(x: Tensor, factor: float = 1.0) -> Tensor:
    """Softmax of factor * x over the labels of (B, L, H, W), which keeps them side by side in memory."""
    rows = x.movedim(1, -1)
    return (rows if factor == 1 else factor * rows).softmax(-1).movedim(-1, 1)
