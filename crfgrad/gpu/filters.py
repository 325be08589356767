"""Triton twins of ``crfgrad.ops.filters``."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from crfgrad.gpu.launch import FLOATS, cdiv, contiguous, launch
from crfgrad.gpu.taps import opposite_tap

BLOCK = 256


@contiguous
def matrices(filters: Tensor, own_taps: Tensor, unit: float, symmetric: bool, own: bool) -> Any:
    """See ``crfgrad.ops.filters.lattice_matrices``."""
    if filters.dtype not in FLOATS:
        return NotImplemented
    sets = own * (len(own_taps) + 1)
    out = filters.new_empty(len(filters) + sets, *filters.shape[1:])
    grid = (cdiv(out.numel(), BLOCK),)
    given = filters, own_taps, out, len(filters), out.numel(), *filters.shape[1:]
    launch(_matrices, grid, *given, SYMMETRIC=symmetric, UNIT=unit, BLOCK=BLOCK)
    return out


@contiguous
def matrices_transpose(grad: Tensor, own_taps: Tensor, unit: float, symmetric: bool, own: bool) -> Any:
    """See ``crfgrad.ops.filters.lattice_matrices_transpose``."""
    if grad.dtype not in FLOATS:
        return NotImplemented
    sets = own * (len(own_taps) + 1)
    out = grad.new_empty(len(grad) - sets, *grad.shape[1:])
    given = grad, own_taps, out, len(out), sets, out.numel(), *grad.shape[1:]
    launch(_transpose, (cdiv(out.numel(), BLOCK),), *given, SYMMETRIC=symmetric, UNIT=unit, BLOCK=BLOCK)
    return out


@triton.jit
def _filter_at(filters, tap, line, column, outputs, inputs, there, SYMMETRIC: tl.constexpr, UNIT: tl.constexpr):
    value = tl.load(filters + (tap * outputs + line) * inputs + column, mask=there, other=0)
    if SYMMETRIC:
        value += tl.load(filters + (opposite_tap(tap) * outputs + column) * inputs + line, mask=there, other=0)
        return value / (2 * UNIT)
    else:
        return value / UNIT


@triton.jit
def _matrices(
    filters, own_taps, out, taps, size, outputs, inputs,
    SYMMETRIC: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = place < size
    column, line, number = place % inputs, place // inputs % outputs, place // (inputs * outputs)
    own = number - taps  # the set of axes, from 0 on
    other = tl.load(own_taps + own - 1, mask=there & (own > 0), other=0).to(tl.int32)
    tap = tl.where(own < 0, number, other)
    value = _filter_at(filters, tap, line, column, outputs, inputs, there, SYMMETRIC, UNIT)
    across = there & (own > 0)
    value += _filter_at(filters, opposite_tap(tap), line, column, outputs, inputs, across, SYMMETRIC, UNIT)
    tl.store(out + place, tl.where(own < 0, value, -value), mask=there)


@triton.jit
def _grad_at(grad, own_taps, tap, line, column, taps, sets, outputs, inputs, there):
    """The gradient of a tap's matrix: its own, less that of the set which it and its opposite are between."""
    value = tl.load(grad + (tap * outputs + line) * inputs + column, mask=there, other=0)
    opposite = opposite_tap(tap)
    for one in range(sets):
        own = tl.load(own_taps + one - 1, mask=one > 0, other=0).to(tl.int32)
        mask = there & ((tap == own) | (opposite == own))
        value -= tl.load(grad + ((taps + one) * outputs + line) * inputs + column, mask=mask, other=0)
    return value


@triton.jit
def _transpose(
    grad, own_taps, out, taps, sets, size, outputs, inputs,
    SYMMETRIC: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = place < size
    column, line, tap = place % inputs, place // inputs % outputs, place // (inputs * outputs)
    value = _grad_at(grad, own_taps, tap, line, column, taps, sets, outputs, inputs, there)
    if SYMMETRIC:
        value += _grad_at(grad, own_taps, opposite_tap(tap), column, line, taps, sets, outputs, inputs, there)
        tl.store(out + place, value / (2 * UNIT), mask=there)
    else:
        tl.store(out + place, value / UNIT, mask=there)
