"""Triton twins of ``crfgrad.ops.interpolation``. Sums have a fixed order: nothing is added by atomics."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from crfgrad.gpu.launch import FLOATS, cdiv, contiguous, launch, power

COLUMNS = 128  # labels that are worked on together
TILE = 1024


def blocks(labels: int, tile: int = TILE) -> tuple[int, int, int]:
    """Rows and labels of a block, and how many blocks all labels take."""
    columns = min(COLUMNS, power(labels))
    return max(1, tile // columns), columns, cdiv(labels, columns)


def interpolate(vertices: Tensor, barycentric: Tensor, corners: Tensor, *_: Tensor) -> Any:
    """See ``crfgrad.ops.interpolation.lattice_slice``."""
    return interpolate_onto(vertices, barycentric, corners, None, None)


@contiguous
def interpolate_onto(
    vertices: Tensor, barycentric: Tensor, corners: Tensor, first: Tensor | None, second: Tensor | None
) -> Any:
    """The same, added to one or two fields."""
    if vertices.dtype not in FLOATS:
        return NotImplemented
    (count, around), labels = corners.shape, vertices.shape[1]
    out = vertices.new_empty(count, labels)
    rows, columns, parts = blocks(labels)
    given = vertices, barycentric, corners, first, second, out, count, vertices.shape[0], labels
    launch(_slice, (cdiv(count, rows), parts), *given, CORNERS=around, ROWS=rows, COLUMNS=columns)
    return out


@contiguous
def splat(
    pixels: Tensor, barycentric: Tensor, corners: Tensor, entries: Tensor, sources: Tensor, starts: Tensor
) -> Any:
    """See ``crfgrad.ops.interpolation.lattice_splat``."""
    if pixels.dtype not in FLOATS:
        return NotImplemented
    vertices, labels = len(starts) - 1, pixels.shape[1]
    out = pixels.new_empty(vertices, labels)
    columns, parts = blocks(labels)[1:]
    rows = min(max(1, TILE // columns), power(cdiv(len(entries), vertices), least=4))
    given = pixels, barycentric, entries, sources, starts, out, labels
    launch(_splat, (vertices, parts), *given, warps=1 if rows * columns <= 512 else 4, ROWS=rows, COLUMNS=columns)
    return out


@contiguous
def corner_products(pixels: Tensor, vertices: Tensor, corners: Tensor, *_: Tensor) -> Any:
    """See ``crfgrad.ops.interpolation.lattice_corner_products``."""
    if pixels.dtype not in FLOATS:
        return NotImplemented
    (count, around), labels = corners.shape, vertices.shape[1]
    out = pixels.new_empty(count, around)
    rows, columns, parts = blocks(labels)
    given = pixels, vertices, corners, out, count, vertices.shape[0], labels
    launch(_products, (cdiv(count, rows),), *given, PARTS=parts, CORNERS=around, ROWS=rows, COLUMNS=columns)
    return out


@triton.jit
def gathered(vertices, corner, there, column, size, labels):
    """Rows of a table by their numbers, 0 for those that it does not have."""
    there = there & (corner >= 0) & (corner < size)
    mask = there[:, None] & (column[None, :] < labels)
    return tl.load(vertices + corner.to(tl.int64)[:, None] * labels + column[None, :], mask=mask, other=0)


@triton.jit
def sliced(vertices, barycentric, corners, row, there, column, size, labels, CORNERS: tl.constexpr):
    """What pixels receive from their corners."""
    first = row * CORNERS
    total = tl.zeros((row.shape[0], column.shape[0]), vertices.dtype.element_ty)
    for k in tl.static_range(CORNERS):
        corner = tl.load(corners + first + k, mask=there, other=-1)
        weight = tl.load(barycentric + first + k, mask=there, other=0)
        total += weight[:, None] * gathered(vertices, corner, there, column, size, labels)
    return total


@triton.jit
def _slice(
    vertices, barycentric, corners, first, second, out, count, size, labels,
    CORNERS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = row < count
    total = sliced(vertices, barycentric, corners, row, there, column, size, labels, CORNERS)
    mask = there[:, None] & (column[None, :] < labels)
    place = row[:, None] * labels + column[None, :]
    if first is not None:
        total += tl.load(first + place, mask=mask, other=0)
    if second is not None:
        total += tl.load(second + place, mask=mask, other=0)
    tl.store(out + place, total, mask=mask)


@triton.jit
def _splat(
    pixels, barycentric, entries, sources, starts, out, labels, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    vertex = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    some = tl.arange(0, ROWS)
    end = tl.load(starts + vertex + 1)
    total = tl.zeros((ROWS, COLUMNS), pixels.dtype.element_ty)
    for first in range(tl.load(starts + vertex), end, ROWS):
        there = first + some < end
        weight = tl.load(barycentric + tl.load(entries + first + some, mask=there, other=0), mask=there, other=0)
        source = tl.load(sources + first + some, mask=there, other=0).to(tl.int64)
        mask = there[:, None] & (column[None, :] < labels)
        total += weight[:, None] * tl.load(pixels + source[:, None] * labels + column[None, :], mask=mask, other=0)
    tl.store(out + vertex.to(tl.int64) * labels + column, tl.sum(total, 0), mask=column < labels)


@triton.jit
def _products(
    pixels, vertices, corners, out, count, size, labels,
    PARTS: tl.constexpr, CORNERS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < count
    for k in tl.static_range(CORNERS):
        corner = tl.load(corners + row * CORNERS + k, mask=there, other=-1)
        total = tl.zeros((ROWS,), pixels.dtype.element_ty)
        for part in range(PARTS):
            column = part * COLUMNS + tl.arange(0, COLUMNS)
            mask = there[:, None] & (column[None, :] < labels)
            pixel = tl.load(pixels + row[:, None] * labels + column[None, :], mask=mask, other=0)
            total += tl.sum(pixel * gathered(vertices, corner, there, column, size, labels), 1)
        tl.store(out + row * CORNERS + k, total, mask=there)
