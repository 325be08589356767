r"""Filters on the vertices of a lattice.

.. math:: T(g, x, W) = \sum_v \sum_n \langle g_v, W_n x_{v + n} \rangle

with values g (V + 1, C_out) and x (V + 1, C_in), and a matrix at each tap, W (taps, C_out, C_in). ``neighbours``
(taps, V + 1) has the number of the vertex v + n, or V where there is none: the values of V are 0. Taps 2k + 1 and
2k + 2 are opposite to each other.
"""

from functools import lru_cache, reduce

import torch
from torch import Tensor

from crfgrad.ops.chunks import chunks, joined
from crfgrad.ops.forms import derivatives
from crfgrad.ops.interpolation import every, weighted_sums
from crfgrad.ops.registry import operation


def opposite_taps(weights: Tensor) -> Tensor:
    """What belongs to each tap (taps, ...), reordered to the opposite tap: 0, 2, 1, 4, 3, ..."""
    return torch.cat([weights[:1], weights[1:].unflatten(0, (-1, 2)).flip(1).flatten(0, 1)])


@lru_cache(maxsize=16)
def _opposites(taps: int, device: torch.device) -> Tensor:
    """The number of the opposite tap of each."""
    with torch.inference_mode(False):
        return opposite_taps(torch.arange(taps, device=device))


@operation(
    "(Tensor values, Tensor matrices, Tensor neighbours) -> Tensor",
    fake=lambda values, matrices, neighbours: values.new_empty(values.shape[0], matrices.shape[1]),
    kernel="matrices.filter_matrices",
    gpu="taps.filter_matrices",
)
def lattice_filter(values: Tensor, matrices: Tensor, neighbours: Tensor) -> Tensor:
    """The filter, the derivative by g: (V + 1, C_out)."""
    columns = matrices.transpose(1, 2).flatten(0, 1)  # (taps * C_in, C_out)
    around = neighbours.T  # (V + 1, taps)
    vertices = chunks(len(around), len(columns), values)
    return joined(
        [values.index_select(0, around[some].flatten()).view(-1, len(columns)) @ columns for some in vertices]
    )


@operation(
    "(Tensor grad, Tensor matrices, Tensor neighbours) -> Tensor",
    fake=lambda grad, matrices, neighbours: grad.new_empty(grad.shape[0], matrices.shape[2]),
    kernel="matrices.filter_matrices_transpose",
    gpu="taps.filter_matrices_transpose",
)
def lattice_filter_transpose(grad: Tensor, matrices: Tensor, neighbours: Tensor) -> Tensor:
    """The transpose of the filter, the derivative by x: (V + 1, C_in)."""
    opposite = matrices.index_select(0, _opposites(len(matrices), matrices.device))
    transposed: Tensor = lattice_filter(grad, opposite.mT, neighbours)
    return transposed


@operation(
    "(Tensor grad, Tensor values, Tensor neighbours) -> Tensor",
    fake=lambda grad, values, neighbours: grad.new_empty(neighbours.shape[0], grad.shape[1], values.shape[1]),
    kernel="matrices.filter_matrices_gradient",
    gpu="taps.filter_matrices_gradient",
)
def lattice_filter_matrices(grad: Tensor, values: Tensor, neighbours: Tensor) -> Tensor:
    """The derivative by W: (taps, C_out, C_in)."""
    vertices = chunks(len(grad), len(neighbours) * values.shape[1], values)

    def part(some: slice) -> Tensor:
        taps = neighbours[:, some]  # (taps, v)
        return grad[some].mT @ values.index_select(0, taps.flatten()).unflatten(0, taps.shape)  # (taps, C_out, C_in)

    return reduce(torch.add, map(part, vertices))


@operation(
    "(Tensor values, Tensor numbers, Tensor neighbours) -> Tensor",
    fake=lambda values, numbers, neighbours: torch.empty_like(values),
    kernel="taps.filter_numbers",
    gpu="taps.filter_numbers",
)
def lattice_filter_numbers(values: Tensor, numbers: Tensor, neighbours: Tensor) -> Tensor:
    """The filter whose matrices are multiples of the identity, W_n = w_n I, for numbers w (taps,): (V + 1, C)."""
    count, vertices = neighbours.shape
    starts = every(vertices, count, values.device)
    return weighted_sums(values, neighbours.T.flatten(), starts, numbers.repeat(vertices))


@operation(
    "(Tensor grad, Tensor numbers, Tensor neighbours) -> Tensor",
    fake=lambda grad, numbers, neighbours: torch.empty_like(grad),
    gpu="taps.filter_numbers_transpose",
)
def lattice_filter_numbers_transpose(grad: Tensor, numbers: Tensor, neighbours: Tensor) -> Tensor:
    """Its transpose: (V + 1, C)."""
    transposed: Tensor = lattice_filter_numbers(grad, opposite_taps(numbers), neighbours)
    return transposed


@operation(
    "(Tensor grad, Tensor values, Tensor neighbours) -> Tensor",
    fake=lambda grad, values, neighbours: grad.new_empty(neighbours.shape[0]),
    kernel="taps.filter_numbers_gradient",
    gpu="taps.filter_numbers_gradient",
)
def lattice_filter_numbers_gradient(grad: Tensor, values: Tensor, neighbours: Tensor) -> Tensor:
    """The derivative by w: (taps,)."""
    return torch.stack([(grad * values.index_select(0, tap)).sum() for tap in neighbours])


@operation(
    "(Tensor values, Tensor axes, Tensor paths, Tensor linked, bool transposed) -> Tensor",
    fake=lambda values, axes, paths, linked, transposed: torch.empty_like(values),
    kernel="chains.blur",
    gpu="taps.blur",
)
def lattice_blur(values: Tensor, axes: Tensor, paths: Tensor, linked: Tensor, transposed: bool) -> Tensor:
    """[1 2 1] / 4 along each axis in turn, in reverse order if transposed: (V + 1, C).

    Args:
        values: (V + 1, C).
        axes: The vertices after (2k) and before (2k + 1) each vertex along axis k, V for none: (2 (d + 1), V + 1).
        paths: See ``crfgrad.ops.lattice.lattice_axes``.
        linked: See there.
        transposed: Whether to apply the transpose.
    """
    pairs = list(axes.unflatten(0, (-1, 2)))
    for after, before in reversed(pairs) if transposed else pairs:
        values = 0.5 * values + 0.25 * (values.index_select(0, after) + values.index_select(0, before))
    return values


def _blur_transposed(values: Tensor, axes: Tensor, paths: Tensor, linked: Tensor, transposed: bool) -> Tensor:
    blurred: Tensor = lattice_blur(values, axes, paths, linked, not transposed)
    return blurred


filter_matrices, filter_transpose, filter_gradient = derivatives(
    lattice_filter, lattice_filter_transpose, lattice_filter_matrices
)
filter_numbers, _, _ = derivatives(
    lattice_filter_numbers, lattice_filter_numbers_transpose, lattice_filter_numbers_gradient
)
blur, _ = derivatives(lattice_blur, _blur_transposed)
