"""Filters of a lattice whose taps are numbers: compiled twins of those in ``crfgrad.ops.taps``."""

import numpy as np
import torch
from torch import Tensor

from crfgrad.kernels.parallel import exact, kernel, run
from crfgrad.kernels.vectors import Array, Code, Columns, Parts, Value, in_registers, row_parts

LINE = 16  # neighbours in a line of the cache
BLOCK = 1024  # vertices whose products are summed up by themselves


def filter_numbers(values: Tensor, weights: Tensor, neighbours: Tensor) -> Tensor:
    """See ``crfgrad.ops.taps.lattice_filter_numbers``."""
    rows = values.numpy()
    out = np.empty_like(rows)
    for part in row_parts(rows.shape[1]):
        run(_filter, len(rows), part, rows, weights.numpy(), neighbours.numpy(), out)
    return torch.from_numpy(out)


def filter_numbers_gradient(grad: Tensor, values: Tensor, neighbours: Tensor) -> Tensor:
    """See ``crfgrad.ops.taps.lattice_filter_numbers_gradient``: the threads' parts are added up."""
    rows = values.numpy()
    total = np.zeros(len(neighbours))
    for part in row_parts(rows.shape[1]):
        total += sum(run(_filter_weights, len(rows), part, grad.numpy(), rows, neighbours.numpy()))
    return torch.from_numpy(total).to(values.dtype)


@exact
def _filter(
    parts: Parts,
    values: np.ndarray,
    weights: np.ndarray,
    neighbours: np.ndarray,
    out: np.ndarray,
    start: int,
    stop: int,
) -> None:
    for vertex in range(start, stop):
        if vertex % LINE == 0:
            _fetch_column(neighbours, vertex + 4 * LINE)
        _filter_row(parts, values, weights, neighbours, out, vertex)


@in_registers
def _fetch_column(code: Code, neighbours: Array, vertex: Value) -> None:
    """Asks for the neighbours of some later vertices: the processor does not foresee reading so many rows at once."""
    with code.loop(neighbours.size()) as tap:
        code.fetch(neighbours.place(tap, vertex))


@in_registers
def _filter_row(
    code: Code,
    parts: Columns,
    values: Array,
    weights: Array,
    neighbours: Array,
    out: Array,
    vertex: Value,
) -> None:
    """Row of a vertex: the sum over the taps of weight * neighbour."""

    def term(tap: Value) -> tuple[list[Value], Value]:
        return [weights[tap]], parts.load(values.place(neighbours[tap, vertex]))

    place = out.place(vertex)
    parts.store(place, code.sums([parts.zeros(place)], weights.size(), term)[0])


@kernel
def _filter_weights(
    parts: Parts,
    grad: np.ndarray,
    values: np.ndarray,
    neighbours: np.ndarray,
    start: int,
    stop: int,
) -> np.ndarray:
    """The part of the gradient that some of the vertices bring."""
    total = np.zeros(len(neighbours))
    sums = np.zeros((len(neighbours), len(parts[0])), values.dtype)
    for begin in range(start, stop, BLOCK):
        sums[:] = 0
        for vertex in range(begin, min(begin + BLOCK, stop)):
            if vertex % LINE == 0:
                _fetch_column(neighbours, vertex + 4 * LINE)
            _filter_weights_row(parts, grad, values, neighbours, sums, vertex)
        for tap in range(len(total)):
            total[tap] += sums[tap].sum()
    return total


@in_registers
def _filter_weights_row(
    code: Code,
    parts: Columns,
    grad: Array,
    values: Array,
    neighbours: Array,
    sums: Array,
    vertex: Value,
) -> None:
    """Adds, for each tap, the products of the gradient at a vertex with the neighbour, lane by lane."""
    row, lanes = parts.once(parts.load(grad.place(vertex))), code.vector(parts.lanes)
    with code.loop(neighbours.size()) as tap:
        products = row * parts.load(values.place(neighbours[tap, vertex]))
        total = sums.place(tap)
        lanes.store(total, lanes.load(total) + products.folded())
