"""The matrices of a filter on a lattice and of its own part, from the parameters that they are learned as."""

import torch
from torch import Tensor

from crfgrad.ops import taps
from crfgrad.ops.forms import derivatives
from crfgrad.ops.registry import operation


@operation(
    "(Tensor filters, Tensor own_taps, float unit, bool symmetric, bool own) -> Tensor",
    fake=lambda filters, own_taps, unit, symmetric, own: filters.new_empty(
        filters.shape[0] + own * (own_taps.shape[0] + 1), filters.shape[1], filters.shape[2]
    ),
    gpu="filters.matrices",
)
def lattice_matrices(filters: Tensor, own_taps: Tensor, unit: float, symmetric: bool, own: bool) -> Tensor:
    """The matrices as they act: F / unit, symmetrised if asked for, and minus those of the own part if asked for."""
    kernel = (filters + taps.opposite_taps(filters).mT) / (2 * unit) if symmetric else filters / unit
    if not own:
        return kernel
    both = kernel + taps.opposite_taps(kernel)
    return torch.cat([kernel, -kernel[:1], -both.index_select(0, own_taps)])


@operation(
    "(Tensor grad, Tensor own_taps, float unit, bool symmetric, bool own) -> Tensor",
    fake=lambda grad, own_taps, unit, symmetric, own: grad.new_empty(
        grad.shape[0] - own * (own_taps.shape[0] + 1), grad.shape[1], grad.shape[2]
    ),
    gpu="filters.matrices_transpose",
)
def lattice_matrices_transpose(grad: Tensor, own_taps: Tensor, unit: float, symmetric: bool, own: bool) -> Tensor:
    """The transpose of ``lattice_matrices``."""
    if own:
        taps_count = len(grad) - len(own_taps) - 1
        total, by_own = grad[:taps_count], grad[taps_count:]
        both = torch.zeros_like(total).index_copy_(0, own_taps, by_own[1:])
        total = total - both - taps.opposite_taps(both)
        total[0] -= by_own[0]
    else:
        total = grad
    return (total + taps.opposite_taps(total).mT) / (2 * unit) if symmetric else total / unit


matrices, _ = derivatives(lattice_matrices, lattice_matrices_transpose)
