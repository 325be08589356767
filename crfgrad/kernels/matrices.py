"""Filters of a lattice with a matrix at each tap: compiled twins of those in ``crfgrad.ops.taps``."""

import numpy as np
import torch
from torch import Tensor

from crfgrad.kernels.matrix import column_parts, correlate, multiply
from crfgrad.kernels.parallel import kernel, ranges, run, share
from crfgrad.kernels.vectors import Parts
from crfgrad.ops.taps import opposite_taps

BLOCK = 256  # vertices that all taps are applied to before the next ones


def filter_matrices(values: Tensor, matrices: Tensor, neighbours: Tensor) -> Tensor:
    """See ``crfgrad.ops.taps.lattice_filter``."""
    return _filtered(values, matrices.mT, neighbours)


def filter_matrices_transpose(grad: Tensor, matrices: Tensor, neighbours: Tensor) -> Tensor:
    """See ``crfgrad.ops.taps.lattice_filter_transpose``."""
    return _filtered(grad, opposite_taps(matrices), neighbours)


def filter_matrices_gradient(grad: Tensor, values: Tensor, neighbours: Tensor) -> Tensor:
    """See ``crfgrad.ops.taps.lattice_filter_matrices``: the threads' parts are added up."""
    rows, links = (grad.numpy(), values.numpy()), neighbours.numpy()

    def part(start: int, stop: int) -> np.ndarray:
        out = np.zeros((len(links), grad.shape[1], values.shape[1]), rows[0].dtype)
        for parts in column_parts(values.shape[1], out.dtype):
            _gradient(parts, *rows, links, out, start, stop)
        return out

    first, *others = share(part, ranges(len(grad), grain=1024))
    for other in others:
        first += other
    return torch.from_numpy(first)


def _filtered(values: Tensor, matrices: Tensor, neighbours: Tensor) -> Tensor:
    out = values.new_zeros(len(values), matrices.shape[2]).numpy()
    given = values.numpy(), matrices.contiguous().numpy(), neighbours.numpy()
    for parts in column_parts(out.shape[1], out.dtype):
        run(_filter, len(out), parts, *given, out)
    return torch.from_numpy(out)


@kernel
def _filter(
    parts: Parts,
    values: np.ndarray,
    matrices: np.ndarray,
    neighbours: np.ndarray,
    out: np.ndarray,
    start: int,
    stop: int,
) -> None:
    """Vertex v receives the sum over the taps n of the row of its neighbour at n times ``matrices[n]``."""
    sources, targets = np.empty(BLOCK + 1, np.int32), np.empty(BLOCK + 1, np.int32)
    for begin in range(start, stop, BLOCK):
        for tap in range(len(matrices)):
            count = _linked(neighbours[tap], begin, min(begin + BLOCK, stop), sources, targets)
            multiply(parts, values, sources[:count], matrices[tap], out, targets[:count], True)


@kernel
def _gradient(
    parts: Parts, grad: np.ndarray, values: np.ndarray, neighbours: np.ndarray, out: np.ndarray, start: int, stop: int
) -> None:
    """Adds the gradient to matrices (taps, C_out, C_in)."""
    sources, targets = np.empty(BLOCK + 1, np.int32), np.empty(BLOCK + 1, np.int32)
    for begin in range(start, stop, BLOCK):
        for tap in range(len(out)):
            count = _linked(neighbours[tap], begin, min(begin + BLOCK, stop), sources, targets)
            correlate(parts, grad, targets[:count], values, sources[:count], out[tap], True)


@kernel
def _linked(neighbours: np.ndarray, begin: int, end: int, sources: np.ndarray, targets: np.ndarray) -> int:
    """Lists the vertices from ``begin`` to ``end`` that have this neighbour, and the neighbours."""
    count = 0
    for vertex in range(begin, end):
        sources[count] = neighbours[vertex]
        targets[count] = vertex
        count += neighbours[vertex] < len(neighbours) - 1  # no branch, which would be mispredicted half of the time
    return count
