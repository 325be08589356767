"""Compiled twins of ``crfgrad.ops.interpolation``."""

import numpy as np
import torch
from torch import Tensor

from crfgrad.kernels.parallel import exact, kernel, ranges, run
from crfgrad.kernels.vectors import Array, Code, Columns, Parts, Value, in_registers, row_parts


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
        given = weights.reshape(-1), entries.numpy(), sources.numpy(), starts.numpy()
        for part in row_parts(shape[1]):
            run(_collect, vertices, part, rows, *given, out)
    return torch.from_numpy(out)


def interpolate(values: Tensor, barycentric: Tensor, corners: Tensor, *_: Tensor) -> Tensor:
    """See ``crfgrad.ops.interpolation.lattice_slice``."""
    rows = values.numpy()
    out = np.empty((len(corners), rows.shape[1]), rows.dtype)
    for part in row_parts(rows.shape[1]):
        run(_interpolate, len(corners), part, rows, barycentric.numpy(), corners.numpy(), out)
    return torch.from_numpy(out)


def interpolate_onto(base: Tensor, values: Tensor, barycentric: Tensor, corners: Tensor, *_: Tensor) -> Tensor:
    """See ``crfgrad.ops.interpolation.lattice_slice_onto``."""
    below, rows = base.numpy(), values.numpy()
    out = np.empty_like(below)
    for part in row_parts(rows.shape[1]):
        run(_interpolate_onto, len(corners), part, below, rows, barycentric.numpy(), corners.numpy(), out)
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
def _scatter_row(
    code: Code, parts: Columns, values: Array, weights: Array, corners: Array, out: Array, i: Value
) -> None:
    """Adds weight * pixel i to its corners."""
    row = parts.load(values.place(i))
    with code.loop(weights.size(1)) as k:
        corner = out.place(corners[i, k])
        parts.store(corner, weights[i, k] * row + parts.load(corner))


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
    parts: Columns,
    values: Array,
    weights: Array,
    entries: Array,
    sources: Array,
    begin: Value,
    end: Value,
    out: Array,
    vertex: Value,
) -> None:
    """Row of a vertex: the sum of weight * pixel over its entries."""

    def term(k: Value) -> tuple[list[Value], Value]:
        return [weights[entries[begin + k]]], parts.load(values.place(sources[begin + k]))

    place = out.place(vertex)
    parts.store(place, code.sums([parts.zeros(place)], end - begin, term)[0])


@exact
def _interpolate(
    parts: Parts, values: np.ndarray, weights: np.ndarray, corners: np.ndarray, out: np.ndarray, start: int, stop: int
) -> None:
    for i in range(start, stop):
        _interpolate_row(parts, values, weights, corners, out, i)


@in_registers
def _interpolate_row(
    code: Code, parts: Columns, values: Array, weights: Array, corners: Array, out: Array, i: Value
) -> None:
    """Row of pixel i: the sum of weight * value over its corners."""

    def term(k: Value) -> tuple[list[Value], Value]:
        return [weights[i, k]], parts.load(values.place(corners[i, k]))

    place = out.place(i)
    parts.store(place, code.sums([parts.zeros(place)], weights.size(1), term)[0])


@exact
def _interpolate_onto(
    parts: Parts,
    base: np.ndarray,
    values: np.ndarray,
    weights: np.ndarray,
    corners: np.ndarray,
    out: np.ndarray,
    start: int,
    stop: int,
) -> None:
    for i in range(start, stop):
        _interpolate_row_onto(parts, base, values, weights, corners, out, i)


@in_registers
def _interpolate_row_onto(
    code: Code, parts: Columns, base: Array, values: Array, weights: Array, corners: Array, out: Array, i: Value
) -> None:
    """Row of pixel i: that of the base, plus the sum of weight * value over its corners."""

    def term(k: Value) -> tuple[list[Value], Value]:
        return [weights[i, k]], parts.load(values.place(corners[i, k]))

    place = out.place(i)
    total = code.sums([parts.zeros(place)], weights.size(1), term)[0]
    parts.store(place, total + parts.load(base.place(i)))


@kernel
def _products(
    parts: Parts, pixels: np.ndarray, vertices: np.ndarray, corners: np.ndarray, out: np.ndarray, start: int, stop: int
) -> None:
    for i in range(start, stop):
        _products_row(parts, pixels, vertices, corners, out, i)


@in_registers
def _products_row(
    code: Code, parts: Columns, pixels: Array, vertices: Array, corners: Array, out: Array, i: Value
) -> None:
    """Adds the inner products of pixel i with its corners."""
    row = parts.once(parts.load(pixels.place(i)))
    with code.loop(out.size(1)) as k:
        out[i, k] = out[i, k] + (row * parts.load(vertices.place(corners[i, k]))).sum()
