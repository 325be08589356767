"""Onto the probability simplex: Euclidean projection (Algorithm 2 of the paper) with a leak."""

import torch
from torch import Tensor

from crfgrad.checks import check_fraction, values_are_checked
from crfgrad.ops.rows import project


def project_simplex(x: Tensor, dim: int = 1, leak: float = 0.0) -> Tensor:
    r"""Projects every vector along ``dim`` onto the probability simplex.

    .. math:: f_l(x) = \max(x_l - t, 0) + \alpha \min(x_l - t, 0), \quad \sum_l \max(x_l - t, 0) = 1

    With leak 0 this is the Euclidean projection. A leak keeps a gradient where the projection is
    flat; its result has negative entries and is not on the simplex. Minus infinity excludes an entry: it
    becomes 0, with a leak too.

    Args:
        x: Values of any scale, float32 or float64.
        dim: The dimension of the labels.
        leak: The slope alpha below the threshold, 0 to 1.

    Returns:
        A tensor of the shape of ``x``. The gradient is the closed-form Jacobian product, and it can
        be differentiated again.

    Example:
        >>> project_simplex(torch.tensor([[0.9, 0.6, -1.0]]))
        tensor([[0.6500, 0.3500, 0.0000]])
    """
    check_fraction("leak", leak)
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"project_simplex needs float32 or float64, got {x.dtype}: convert x first")
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"x has {x.dim()} dimensions, so there is no dimension {dim}: give dim")
    if x.shape[dim] == 0:
        raise ValueError(f"x has no labels along dimension {dim}: its shape is {tuple(x.shape)}")
    if x.numel() == 0:
        return x.clone()
    projected = project(x.movedim(dim, -1).contiguous(), leak=leak).movedim(-1, dim)  # (*, L) in between
    if values_are_checked(x) and projected.isnan().any():
        raise ValueError("x holds NaN or infinity, or a vector of minus infinity alone: check what it was made from")
    return projected
