"""Scores at the size at which they are compared or written."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import interpolate


def at_size(scores: Tensor, size: Sequence[int]) -> Tensor:
    """Scores, bilinearly interpolated to another size; the pictures have the same edges.

    Args:
        scores: Logits or distributions (B, L, H, W).
        size: Height and width of the result.
    """
    if tuple(scores.shape[2:]) == tuple(size):
        return scores
    return interpolate(scores.float(), tuple(size), mode="bilinear", align_corners=False)
