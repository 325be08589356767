"""Filters of a lattice whose taps are numbers: compiled twins of those in ``crfgrad.ops.taps``."""

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils
from torch import Tensor

from crfgrad.kernels.parallel import exact, kernel, run
from crfgrad.kernels.vectors import Code, Parts, Rows, in_registers, row_parts

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
    """See ``crfgrad.ops.taps.lattice_filter_numbers_gradient``."""
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
            _fetch_column(parts, neighbours, vertex + 4 * LINE)
        _filter_row(parts, values, weights, neighbours, out, vertex)


@in_registers
def _fetch_column(code: Code, neighbours: Any, vertex: ir.Value) -> None:
    """Asks for the neighbours of some later vertices: the processor does not foresee reading so many rows at once."""
    with cgutils.for_range(code.builder, code.size(neighbours, 0)) as loop:
        code.fetch(code.place(neighbours, loop.index, vertex))


@in_registers
def _filter_row(code: Code, values: Rows, weights: Any, neighbours: Any, out: Rows, vertex: ir.Value) -> None:
    """Row of a vertex: the sum over the taps of weight * neighbour."""

    def term(tap: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
        return code.entry(weights, tap), values.load(code.entry(neighbours, tap, vertex))

    out.store(vertex, code.sums(out.zeros(), code.size(weights, 0), term))


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
                _fetch_column(parts, neighbours, vertex + 4 * LINE)
            _filter_weights_row(parts, grad, values, neighbours, sums, vertex)
        for tap in range(len(total)):
            total[tap] += sums[tap].sum()
    return total


@in_registers
def _filter_weights_row(
    code: Code, grad: Rows, values: Rows, neighbours: Any, sums: Rows, vertex: ir.Value
) -> None:
    """Adds, for each tap, the products of the gradient at a vertex with the neighbour, lane by lane."""
    row = grad.load_once(vertex)
    with cgutils.for_range(code.builder, code.size(neighbours, 0)) as loop:
        product = code.product(row, values.load(code.entry(neighbours, loop.index, vertex)))
        place = code.builder.bitcast(sums.pointer(loop.index), sums.vector.as_pointer())
        before = code.builder.load(place)
        before.align = 4
        code.builder.store(code.builder.fadd(before, product), place, align=4)
