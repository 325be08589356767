"""Filters of a lattice with a matrix at each tap: compiled twins of those in ``crfgrad.ops.taps``."""

import numpy as np
import torch
from torch import Tensor

from crfgrad.kernels.matrix import ROWS, VECTOR, correlate, multiply
from crfgrad.kernels.parallel import kernel, ranges, run, share
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
    given = _padded(grad), _padded(values), neighbours.numpy()
    shape = (len(neighbours), given[0].shape[1], given[1].shape[1])

    def part(start: int, stop: int) -> np.ndarray:
        out = np.zeros(shape, given[0].dtype)
        _gradient(*given, out, start, stop)
        return out

    first, *others = share(part, ranges(len(grad), grain=1024))
    for other in others:
        first += other
    return torch.from_numpy(first)[:, : grad.shape[1], : values.shape[1]].contiguous()


def _filtered(values: Tensor, columns: Tensor, neighbours: Tensor) -> Tensor:
    out = values.new_empty(len(values), columns.shape[2])
    run(_filter, len(values), values.numpy(), _padded(columns), neighbours.numpy(), out.numpy())
    return out


def _padded(tensor: Tensor) -> np.ndarray:
    """The same with columns of zeros up to whole vectors, as ``crfgrad.kernels.matrix`` needs it."""
    padded: np.ndarray = torch.nn.functional.pad(tensor, (0, -tensor.shape[-1] % VECTOR)).contiguous().numpy()
    return padded


@kernel
def _filter(
    values: np.ndarray, columns: np.ndarray, neighbours: np.ndarray, out: np.ndarray, start: int, stop: int
) -> None:
    """Vertex v receives the sum over the taps n of the row of its neighbour at n times ``columns[n]``."""
    sources, targets = np.empty(BLOCK + ROWS, np.int32), np.empty(BLOCK + ROWS, np.int32)
    factors = np.ones(BLOCK + ROWS, values.dtype)
    total = np.empty((BLOCK + 1, columns.shape[2]), values.dtype)
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        total[:] = 0
        for tap in range(len(columns)):
            count = _linked(neighbours[tap], begin, end, sources, targets)
            for lane in range(count, count + ROWS):  # read by the last tile
                sources[lane], targets[lane] = 0, BLOCK
            multiply(values, sources, columns[tap], factors, total, targets, count)
        for vertex in range(begin, end):
            for c in range(out.shape[1]):
                out[vertex, c] = total[vertex - begin, c]


@kernel
def _gradient(
    grad: np.ndarray, values: np.ndarray, neighbours: np.ndarray, out: np.ndarray, start: int, stop: int
) -> None:
    """Adds the gradient to matrices (taps, C_out, C_in), all padded, as are the rows."""
    sources, targets = np.empty(BLOCK + 1, np.int32), np.empty(BLOCK + 1, np.int32)
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        for tap in range(len(out)):
            count = _linked(neighbours[tap], begin, end, sources, targets)
            correlate(grad[begin:end], targets, values, sources, out[tap], count)


@kernel
def _linked(neighbours: np.ndarray, begin: int, end: int, sources: np.ndarray, targets: np.ndarray) -> int:
    """Lists the vertices from ``begin`` to ``end`` that have this neighbour, less ``begin``, and the neighbours."""
    count = 0
    for vertex in range(begin, end):
        sources[count] = neighbours[vertex]
        targets[count] = vertex - begin
        count += neighbours[vertex] < len(neighbours) - 1  # no branch, which would be mispredicted half of the time
    return count
