"""Triton twins of ``crfgrad.ops.taps``: filters on the vertices of a lattice.

A block of vertices gathers what its neighbours hold at one tap after the other, and multiplies it by the tap's matrix.
Gradients of weights are sums over all vertices: of parts in one kernel, of those in another, in a fixed order.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crfgrad.gpu.interpolation import blocks, gathered
from crfgrad.gpu.launch import FLOATS, cdiv, contiguous, flat, launch, power, precision

VERTICES = 64  # of a block
LABELS = 64  # that are multiplied at a time
PARTS = 32  # of a sum over all vertices, at most


def tile(labels: int) -> int:
    """Labels of a block of a product, a multiple of 16."""
    return min(LABELS, power(labels, least=16))


def inner_tile(labels: int) -> int:
    """The same, of what is summed over."""
    return min(LABELS // 2, power(labels, least=16))


def filter_matrices(values: Tensor, matrices: Tensor, neighbours: Tensor) -> Any:
    """See ``crfgrad.ops.taps.lattice_filter``."""
    return _filter(values, matrices, neighbours, False)


def filter_matrices_transpose(grad: Tensor, matrices: Tensor, neighbours: Tensor) -> Any:
    """See ``crfgrad.ops.taps.lattice_filter_transpose``."""
    return _filter(grad, matrices.mT, neighbours, True)


def _filter(values: Tensor, matrices: Tensor, neighbours: Tensor, opposite: bool) -> Any:
    if values.dtype != torch.float32:
        return NotImplemented
    values, neighbours = flat(values), flat(neighbours)
    (taps, outputs, inputs), count = matrices.shape, len(values)
    out = values.new_empty(count, outputs)
    sizes = {"ROWS": VERTICES, "INPUTS": inner_tile(inputs), "OUTPUTS": tile(outputs)}
    grid = cdiv(count, VERTICES), cdiv(outputs, sizes["OUTPUTS"])
    given = values, matrices, neighbours, out, count, inputs, outputs, *matrices.stride()
    options: dict[str, Any] = {
        "TAPS": taps,
        "OPPOSITE": opposite,
        "PRECISION": precision(),
        "warps": 8 if outputs > 32 else 4,
    }
    launch(_filter_matrices, grid, *given, **options, **sizes)
    return out


@contiguous
def filter_matrices_gradient(grad: Tensor, values: Tensor, neighbours: Tensor) -> Any:
    """See ``crfgrad.ops.taps.lattice_filter_matrices``."""
    if values.dtype != torch.float32:
        return NotImplemented
    parts = split(len(values), VERTICES)[1]
    found = values.new_empty(parts, len(neighbours), grad.shape[1], values.shape[1])
    filter_matrices_parts(grad, values, neighbours, found)
    out = torch.empty_like(found[0])
    add_up(found, out)
    return out


def filter_matrices_parts(grad: Tensor, values: Tensor, neighbours: Tensor, found: Tensor) -> None:
    """Its sums over parts of the vertices, in their places: (parts, taps or more, C_out, C_in)."""
    (parts, matrices, outputs, inputs), (taps, count) = found.shape, neighbours.shape
    each = cdiv(cdiv(count, VERTICES), parts)
    sizes = {"ROWS": VERTICES, "INPUTS": inner_tile(inputs), "OUTPUTS": inner_tile(outputs)}
    tiles = cdiv(inputs, sizes["INPUTS"])
    grid = taps, parts, tiles * cdiv(outputs, sizes["OUTPUTS"])
    given = grad, values, neighbours, found, count, each, matrices, inputs, outputs, tiles
    launch(_matrices, grid, *given, PRECISION=precision(), **sizes)


def split(count: int, block: int) -> tuple[int, int]:
    """Blocks of each part, and parts, of a sum over so many."""
    whole = cdiv(count, block)
    each = cdiv(whole, min(PARTS, cdiv(whole, 4)))
    return each, cdiv(whole, each)


def add_up(parts: Tensor, out: Tensor, symmetric: bool = False, first: int = 0) -> None:
    """The sum of parts (parts, ...) in their order; if symmetric, the symmetric part from a first matrix on."""
    size, labels, block = out.numel(), out.shape[-1], 256
    given = parts, out, len(parts), size, labels, first * labels**2
    launch(_sum, (cdiv(size, block),), *given, SYMMETRIC=symmetric, BLOCK=block)


@contiguous
def filter_numbers(values: Tensor, numbers: Tensor, neighbours: Tensor) -> Any:
    """See ``crfgrad.ops.taps.lattice_filter_numbers``."""
    return _weighted(values, numbers, neighbours, False)


@contiguous
def filter_numbers_transpose(grad: Tensor, numbers: Tensor, neighbours: Tensor) -> Any:
    """See ``crfgrad.ops.taps.lattice_filter_numbers_transpose``."""
    return _weighted(grad, numbers, neighbours, True)


def _weighted(values: Tensor, numbers: Tensor, neighbours: Tensor, opposite: bool) -> Any:
    if values.dtype not in FLOATS:
        return NotImplemented
    (count, labels), taps = values.shape, len(numbers)
    out = values.new_empty(values.shape)
    rows, columns, parts = blocks(labels, 1024)
    given = values, numbers, neighbours, out, count, labels
    sizes = {"ROWS": min(rows, 256), "COLUMNS": columns}
    grid = cdiv(count, sizes["ROWS"]), parts
    launch(_filter_numbers, grid, *given, TAPS=taps, OPPOSITE=opposite, **sizes)
    return out


@contiguous
def filter_numbers_gradient(grad: Tensor, values: Tensor, neighbours: Tensor) -> Any:
    """See ``crfgrad.ops.taps.lattice_filter_numbers_gradient``."""
    if values.dtype not in FLOATS:
        return NotImplemented
    (taps, count), labels = neighbours.shape, values.shape[1]
    rows, columns, tiles = blocks(labels, 1024)
    rows = min(rows, 256)
    each, parts = split(count, rows)
    found = values.new_empty(parts, taps)
    given = grad, values, neighbours, found, count, each, taps, labels
    launch(_numbers, (taps, parts), *given, TILES=tiles, ROWS=rows, COLUMNS=columns)
    out = values.new_empty(taps)
    add_up(found, out)
    return out


@contiguous
def blur(values: Tensor, axes: Tensor, _paths: Tensor, _linked: Tensor, transposed: bool) -> Any:
    """See ``crfgrad.ops.taps.lattice_blur``: a launch for each axis."""
    if values.dtype not in FLOATS:
        return NotImplemented
    count, labels = values.shape
    rows, columns, parts = blocks(labels)
    buffers = [torch.empty_like(values), torch.empty_like(values)]
    order = range(len(axes) // 2)
    for step, axis in enumerate(reversed(order) if transposed else order):
        pair, out = axes[2 * axis : 2 * axis + 2], buffers[step % 2]
        grid = cdiv(count, rows), parts
        launch(_blur, grid, values, pair, out, count, labels, ROWS=rows, COLUMNS=columns)
        values = out
    return values


@triton.jit
def opposite_tap(tap):
    """0, 2, 1, 4, 3, ..."""
    return tap + 2 * (tap % 2) - (tap > 0)


@triton.jit
def _filter_matrices(
    values, matrices, neighbours, out, count, inputs, outputs, tap_stride, output_stride, input_stride,
    TAPS: tl.constexpr, OPPOSITE: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    inner = tl.arange(0, INPUTS)
    there = row < count
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    centre = tl.load(neighbours + row, mask=there, other=-1)
    if tl.max((centre + 1 < count).to(tl.int32)) > 0:  # else vertices that are there to fill up, which hold 0
        at_tap = neighbours + row
        for tap in range(TAPS):
            neighbour = tl.load(at_tap, mask=there, other=-1)
            matrix = matrices + (opposite_tap(tap) if OPPOSITE else tap) * tap_stride
            for first in range(0, inputs, INPUTS):
                given = first + inner
                value = gathered(values, neighbour, neighbour < count - 1, given, count, inputs)
                mask = (given[:, None] < inputs) & (column[None, :] < outputs)
                places = given[:, None] * input_stride + column[None, :] * output_stride
                weight = tl.load(matrix + places, mask=mask, other=0)
                total = tl.dot(value, weight, total, input_precision=PRECISION)
            at_tap += count
    mask = there[:, None] & (column[None, :] < outputs)
    tl.store(out + row.to(tl.int64)[:, None] * outputs + column[None, :], total, mask=mask)


@triton.jit
def _matrices(
    grad, values, neighbours, found, count, each, taps, inputs, outputs, tiles,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    tap, part = tl.program_id(0), tl.program_id(1)
    column = tl.program_id(2) % tiles * INPUTS + tl.arange(0, INPUTS)
    line = tl.program_id(2) // tiles * OUTPUTS + tl.arange(0, OUTPUTS)
    total = tl.zeros((OUTPUTS, INPUTS), tl.float32)
    for block in range(part * each, part * each + each):
        row = block * ROWS + tl.arange(0, ROWS)
        there = row < count
        neighbour = tl.load(neighbours + tap.to(tl.int64) * count + row, mask=there, other=-1)
        there = there & (neighbour >= 0) & (neighbour < count - 1)
        if tl.max(there.to(tl.int32)) > 0:
            value = gathered(values, neighbour, there, column, count, inputs)
            received = gathered(grad, row, there, line, count, outputs)
            total = tl.dot(tl.trans(received), value, total, input_precision=PRECISION)
    mask = (line[:, None] < outputs) & (column[None, :] < inputs)
    matrix = (part * taps + tap).to(tl.int64) * outputs * inputs
    tl.store(found + matrix + line[:, None] * inputs + column[None, :], total, mask=mask)


@triton.jit
def _sum(parts, out, count, size, labels, first, SYMMETRIC: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < size
    total = tl.zeros((BLOCK,), parts.dtype.element_ty)
    across = place % labels * labels + place // labels % labels + place // (labels * labels) * (labels * labels)
    across = tl.where(place < first, place, across)
    for _ in range(count):
        value = tl.load(parts + place, mask=there, other=0)
        if SYMMETRIC:
            value = 0.5 * value + 0.5 * tl.load(parts + across, mask=there, other=0)
        total += value
        parts += size
    tl.store(out + place, total, mask=there)


@triton.jit
def _filter_numbers(
    values, numbers, neighbours, out, count, labels,
    TAPS: tl.constexpr, OPPOSITE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = row < count
    total = tl.zeros((ROWS, COLUMNS), values.dtype.element_ty)
    at_tap = neighbours + row
    for tap in range(TAPS):
        neighbour = tl.load(at_tap, mask=there, other=-1)
        number = tl.load(numbers + (opposite_tap(tap) if OPPOSITE else tap))
        total += number * gathered(values, neighbour, neighbour < count - 1, column, count, labels)
        at_tap += count
    mask = there[:, None] & (column[None, :] < labels)
    tl.store(out + row.to(tl.int64)[:, None] * labels + column[None, :], total, mask=mask)


@triton.jit
def _numbers(
    grad, values, neighbours, found, count, each, taps, labels,
    TILES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    tap, part = tl.program_id(0), tl.program_id(1)
    total = tl.zeros((ROWS,), values.dtype.element_ty)
    for block in range(part * each, part * each + each):
        row = block * ROWS + tl.arange(0, ROWS)
        there = row < count
        neighbour = tl.load(neighbours + tap.to(tl.int64) * count + row, mask=there, other=-1)
        there = there & (neighbour < count - 1)
        for part_of_labels in range(TILES):
            column = part_of_labels * COLUMNS + tl.arange(0, COLUMNS)
            received = gathered(grad, row, there, column, count, labels)
            total += tl.sum(received * gathered(values, neighbour, there, column, count, labels), 1)
    tl.store(found + part * taps + tap, tl.sum(total, 0))


@triton.jit
def _blur(values, pair, out, count, labels, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = row < count
    after = tl.load(pair + row, mask=there, other=-1)
    before = tl.load(pair + count + row, mask=there, other=-1)
    both = gathered(values, after, there, column, count, labels) + gathered(
        values, before, there, column, count, labels
    )
    own = gathered(values, row, there, column, count, labels)
    mask = there[:, None] & (column[None, :] < labels)
    tl.store(out + row[:, None] * labels + column[None, :], 0.5 * own + 0.25 * both, mask=mask)
