"""Triton twins of what ``crfgrad.ops.own_part`` makes of the pairs of corners of a simplex."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crfgrad.gpu.launch import FLOATS, cdiv, contiguous, launch, power
from crfgrad.ops.own_part import corner_pairs

DIMENSIONS = 8
"""The most axes whose pairs of corners are held in registers."""


@contiguous
def products(left: Tensor, right: Tensor, order: Tensor) -> Any:
    """See ``crfgrad.ops.own_part.corner_pair_products``."""
    return _of_pairs(_pair_products, left, right, 1 + left.shape[1] * (left.shape[1] - 1) // 2)


@contiguous
def by_left(grad: Tensor, right: Tensor, order: Tensor) -> Any:
    """See ``crfgrad.ops.own_part.corner_pair_left``."""
    return _of_pairs(_by_corner, grad, right, right.shape[1], LEFT=True)


@contiguous
def by_right(grad: Tensor, left: Tensor, order: Tensor) -> Any:
    """See ``crfgrad.ops.own_part.corner_pair_right``."""
    return _of_pairs(_by_corner, grad, left, left.shape[1], LEFT=False)


def _of_pairs(kernel: Any, first: Tensor, second: Tensor, columns: int, **constants: Any) -> Any:
    count, corners = second.shape
    if second.dtype not in FLOATS or corners > DIMENSIONS + 1:
        return NotImplemented
    out = first.new_empty(count, columns)
    low, high = corner_pairs(corners, first.device)
    given = first, second, low, high, out, count, corners
    sizes = {"ROWS": 64, "COLUMNS": power(columns)}
    launch(kernel, (cdiv(count, 64),), *given, **sizes, **constants)
    return out


@contiguous
def group(order: Tensor) -> Any:
    """See ``crfgrad.ops.own_part.own_part_groups``."""
    count, dimension = order.shape
    if dimension > DIMENSIONS:
        return NotImplemented
    pairs = 1 + dimension * (dimension + 1) // 2
    pixels, starts, sets = (
        order.new_empty(size, dtype=torch.int64) for size in ((count,), (count + 1,), (count, pairs))
    )
    low, high = corner_pairs(dimension + 1, order.device)
    given = order, low, high, pixels, starts, sets, count, dimension, pairs
    launch(_sets, (cdiv(count + 1, 64),), *given, ROWS=64, COLUMNS=power(pairs))
    return pixels, starts, sets


@triton.jit
def _place(low, high, corners):
    """The place of the pair of two corners among the coefficients."""
    return 1 + low * (2 * corners - low - 1) // 2 + high - low - 1


@triton.jit
def _pair_products(left, right, low, high, out, count, corners, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    pairs = corners * (corners - 1) // 2
    there = row < count
    a = tl.load(low + column - 1, mask=(column > 0) & (column <= pairs), other=0)
    b = tl.load(high + column - 1, mask=(column > 0) & (column <= pairs), other=0)
    mask = there[:, None] & (column[None, :] <= pairs)
    product = tl.load(left + row[:, None] * corners + a[None, :], mask=mask, other=0)
    product *= tl.load(right + row[:, None] * corners + b[None, :], mask=mask, other=0)
    centre = tl.zeros((ROWS,), out.dtype.element_ty)
    for k in range(corners):
        one = tl.load(left + row * corners + k, mask=there, other=0)
        centre += one * tl.load(right + row * corners + k, mask=there, other=0)
    product = tl.where(column[None, :] == 0, centre[:, None], product)
    tl.store(out + row[:, None] * (pairs + 1) + column[None, :], product, mask=mask)


@triton.jit
def _by_corner(
    grad, weights, low, high, out, count, corners, LEFT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """What the coefficients of the pairs in which a corner is the left, or the right one, give to its weight."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    there = row < count
    pairs = corners * (corners - 1) // 2 + 1
    mask = there[:, None] & (column[None, :] < corners)
    centre = tl.load(grad + row * pairs, mask=there, other=0)
    total = centre[:, None] * tl.load(weights + row[:, None] * corners + column[None, :], mask=mask, other=0)
    for other in range(corners):
        if LEFT:
            paired = column < other
            place = _place(column, other, corners)
        else:
            paired = column > other
            place = _place(other, column, corners)
        by_pair = tl.load(grad + row[:, None] * pairs + place[None, :], mask=mask & paired[None, :], other=0)
        total += by_pair * tl.load(weights + row * corners + other, mask=there, other=0)[:, None]
    tl.store(out + row[:, None] * corners + column[None, :], total, mask=mask)


@triton.jit
def _sets(
    order, low, high, pixels, starts, sets, count, dimension, pairs, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    there = row < count
    tl.store(pixels + row, row, mask=there)
    tl.store(starts + row, row, mask=row <= count)
    a = tl.load(low + column - 1, mask=(column > 0) & (column < pairs), other=0)
    b = tl.load(high + column - 1, mask=(column > 0) & (column < pairs), other=0)
    total = tl.zeros((ROWS, COLUMNS), tl.int64)
    for k in range(dimension):
        axis = tl.load(order + row * dimension + k, mask=there, other=0).to(tl.int64)
        between = (a <= k) & (b > k)
        total += tl.where(between[None, :], (tl.full((ROWS,), 1, tl.int64) << axis)[:, None], 0)
    tl.store(sets + row[:, None] * pairs + column[None, :], total, mask=there[:, None] & (column[None, :] < pairs))
