"""Compiled twins of ``crfgrad.ops.interpolation``."""

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils
from torch import Tensor

from crfgrad.kernels.parallel import exact, kernel, ranges, run
from crfgrad.kernels.vectors import Code, Parts, Rows, in_registers, row_parts


def splat(
    values: Tensor, barycentric: Tensor, corners: Tensor, entries: Tensor, sources: Tensor, starts: Tensor
) -> Tensor:
    """See ``crfgrad.ops.interpolation.lattice_splat``.

    One thread goes through the pixels. Of several, each adds up vertices of its own, in the same order: the result
    is the same bit for bit.
    """
    vertices = len(starts) - 1
    rows, weights, places = values.numpy(), barycentric.numpy(), corners.numpy()
    shape = (vertices, rows.shape[1])
    if len(ranges(vertices, 1024)) == 1:
        out = np.zeros(shape, rows.dtype)
        for part in row_parts(shape[1]):
            _scatter(part, rows, weights, places, out, 0, len(rows))
    else:
        out = np.empty(shape, rows.dtype)
        given = entries.numpy(), sources.numpy(), starts.numpy()
        for part in row_parts(shape[1]):
            run(_collect, vertices, part, rows, weights, *given, out)
    return torch.from_numpy(out)


def interpolate(values: Tensor, barycentric: Tensor, corners: Tensor, *_: Tensor) -> Tensor:
    """See ``crfgrad.ops.interpolation.lattice_slice``."""
    rows = values.numpy()
    out = np.empty((len(corners), rows.shape[1]), rows.dtype)
    for part in row_parts(rows.shape[1]):
        run(_interpolate, len(corners), part, rows, barycentric.numpy(), corners.numpy(), out)
    return torch.from_numpy(out)


def corner_products(pixels: Tensor, vertices: Tensor, corners: Tensor, *_: Tensor) -> Tensor:
    """See ``crfgrad.ops.interpolation.lattice_corner_products``."""
    out = np.zeros(corners.shape, pixels.numpy().dtype)
    for part in row_parts(pixels.shape[1]):
        run(_products, len(corners), part, pixels.numpy(), vertices.numpy(), corners.numpy(), out)
    return torch.from_numpy(out)


@exact
def _scatter(
    parts: Parts, values: np.ndarray, weights: np.ndarray, corners: np.ndarray, out: np.ndarray, start: int, stop: int
) -> None:
    for i in range(start, stop):
        _scatter_row(parts, values, weights, corners, out, i)


@in_registers
def _scatter_row(code: Code, values: Rows, weights: Rows, corners: Any, out: Rows, i: ir.Value) -> None:
    """Adds weight * pixel i to its corners."""
    row = values.load(i)
    with cgutils.for_range(code.builder, weights.size(1)) as loop:
        corner = code.entry(corners, i, loop.index)
        weight = code.spread(code.entry(weights.array, i, loop.index), out.vector)
        before = out.load(corner)
        out.store(corner, [code.multiply_add(weight, x, y) for x, y in zip(row, before, strict=True)])


@exact
def _collect(
    parts: Parts,
    values: np.ndarray,
    weights: np.ndarray,
    entries: np.ndarray,
    sources: np.ndarray,
    starts: np.ndarray,
    out: np.ndarray,
    start: int,
    stop: int,
) -> None:
    for vertex in range(start, stop):
        _collect_row(parts, values, weights, entries, sources, starts[vertex], starts[vertex + 1], out, vertex)


@in_registers
def _collect_row(
    code: Code,
    values: Rows,
    weights: Rows,
    entries: Any,
    sources: Any,
    begin: ir.Value,
    end: ir.Value,
    out: Rows,
    vertex: ir.Value,
) -> None:
    """Row of a vertex: the sum of weight * pixel over its entries."""
    builder = code.builder

    def term(k: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
        place = builder.add(begin, k)
        return code.entry(weights.array, code.entry(entries, place)), values.load(code.entry(sources, place))

    out.store(vertex, code.sums(out.zeros(), builder.sub(end, begin), term))


@exact
def _interpolate(
    parts: Parts, values: np.ndarray, weights: np.ndarray, corners: np.ndarray, out: np.ndarray, start: int, stop: int
) -> None:
    for i in range(start, stop):
        _interpolate_row(parts, values, weights, corners, out, i)


@in_registers
def _interpolate_row(code: Code, values: Rows, weights: Rows, corners: Any, out: Rows, i: ir.Value) -> None:
    """Row of pixel i: the sum of weight * value over its corners."""

    def term(k: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
        return code.entry(weights.array, i, k), values.load(code.entry(corners, i, k))

    out.store(i, code.sums(out.zeros(), weights.size(1), term))


@kernel
def _products(
    parts: Parts, pixels: np.ndarray, vertices: np.ndarray, corners: np.ndarray, out: np.ndarray, start: int, stop: int
) -> None:
    for i in range(start, stop):
        _products_row(parts, pixels, vertices, corners, out, i)


@in_registers
def _products_row(code: Code, pixels: Rows, vertices: Rows, corners: Any, out: Rows, i: ir.Value) -> None:
    """Adds the inner products of pixel i with its corners."""
    row = pixels.load_once(i)
    with cgutils.for_range(code.builder, out.size(1)) as loop:
        lanes = code.product(row, vertices.load(code.entry(corners, i, loop.index)))
        product = code.over_lanes(code.builder.fadd, [lanes])
        place = code.builder.gep(out.pointer(i), [loop.index])
        code.builder.store(code.builder.fadd(code.builder.load(place), product), place)
