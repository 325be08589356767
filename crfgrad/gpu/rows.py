"""Triton twins of ``crfgrad.ops.rows``: some rows at a time, all labels of a row in registers."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from crfgrad.gpu.launch import FLOATS, LABELS, cdiv, contiguous, launch, power

TILE = 2048  # numbers of a block


def _served(kernel: Any, like: Tensor, *arguments: Any, **constants: Any) -> bool:
    """Starts a kernel on all rows, if it is made for their type and length."""
    labels = like.shape[-1]
    if labels > LABELS or like.dtype not in FLOATS:
        return False
    rows, columns = like.numel() // labels, power(labels)
    block = TILE // columns
    launch(kernel, (cdiv(rows, block),), *arguments, rows, labels, ROWS=block, COLUMNS=columns, **constants)
    return True


@contiguous
def project_rows(x: Tensor, gradient: Tensor | None, step: float, excluded: Tensor | None, leak: float) -> Any:
    """See ``crfgrad.ops.rows.simplex_project``."""
    out = x.new_empty(x.shape)
    return out if _served(_project, x, x, gradient, excluded, out, STEP=step, LEAK=leak) else NotImplemented


@contiguous
def project_rows_jacobian(grad: Tensor, projected: Tensor, leak: float, transposed: bool) -> Any:
    """See ``crfgrad.ops.rows.simplex_project_jacobian``."""
    out = grad.new_empty(grad.shape)
    return (
        out
        if _served(_jacobian, grad, grad, projected, out, None, STEP=0.0, LEAK=leak, TRANSPOSED=transposed)
        else NotImplemented
    )


@contiguous
def project_step_gradients(grad: Tensor, projected: Tensor, leak: float, step: float) -> Any:
    """See ``crfgrad.ops.rows.simplex_project_step_gradients``."""
    by_x, by_gradient = grad.new_empty(grad.shape), grad.new_empty(grad.shape)
    served = _served(_jacobian, grad, grad, projected, by_x, by_gradient, STEP=step, LEAK=leak, TRANSPOSED=True)
    return (by_x, by_gradient) if served else NotImplemented


@contiguous
def softmax_rows(x: Tensor, excluded: Tensor | None, factor: float) -> Any:
    """See ``crfgrad.ops.rows.simplex_softmax``."""
    out = x.new_empty(x.shape)
    return out if _served(_softmax, x, x, excluded, out, FACTOR=factor) else NotImplemented


@contiguous
def softmax_rows_gradient(grad: Tensor, probability: Tensor, factor: float) -> Any:
    """See ``crfgrad.ops.rows.simplex_softmax_gradient``."""
    out = grad.new_empty(grad.shape)
    return out if _served(_softmax_gradient, grad, grad, probability, out, FACTOR=factor) else NotImplemented


@contiguous
def costs(logits: Tensor, eps: float, unit: float) -> Any:
    """See ``crfgrad.ops.rows.unary_costs``."""
    out = logits.new_empty(logits.shape)
    return out if _served(_costs, logits, logits, None, out, EPS=eps, UNIT=unit) else NotImplemented


@contiguous
def costs_gradient(grad: Tensor, logits: Tensor, eps: float, unit: float) -> Any:
    """See ``crfgrad.ops.rows.unary_costs_gradient``."""
    out = logits.new_empty(logits.shape)
    return out if _served(_costs, logits, logits, grad, out, EPS=eps, UNIT=unit) else NotImplemented


@triton.jit
def _places(rows, labels, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Offsets of a block of rows, and which of them exist."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    return row[:, None] * labels + column[None, :], (row[:, None] < rows) & (column[None, :] < labels)


@triton.jit
def _project(
    x, gradient, excluded, out, rows, labels,
    STEP: tl.constexpr, LEAK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The threshold rises from below: it is that of the entries above the last one, until these stay the same."""
    places, there = _places(rows, labels, ROWS, COLUMNS)
    value = tl.load(x + places, mask=there, other=-float("inf"))
    if gradient is not None:
        value = value - STEP * tl.load(gradient + places, mask=there, other=0)
    if excluded is not None:
        value = tl.where(tl.load(excluded + places, mask=there, other=0) != 0, -float("inf"), value)
    largest = tl.max(value, 1, keep_dims=True)
    # of an infinite entry, or NaN, or minus infinity alone
    invalid = tl.sum(((value != value) | (value == float("inf"))).to(tl.int32), 1, keep_dims=True) > 0
    invalid = invalid | (largest == -float("inf"))
    distance = tl.where(invalid, 0, value - largest)
    threshold = tl.full((ROWS, 1), -1, value.dtype)
    rises = tl.full((), 1, tl.int32)
    while rises > 0:
        support = distance > threshold
        size = tl.sum(support.to(value.dtype), 1, keep_dims=True)
        next = (tl.sum(tl.where(support, distance, 0), 1, keep_dims=True) - 1) / size
        rises = tl.max((next > threshold).to(tl.int32))
        threshold = tl.maximum(threshold, next)
    distance = distance - threshold
    result = tl.where(distance > 0, distance, distance * LEAK)
    result = tl.where(distance == -float("inf"), 0, result)
    tl.store(out + places, tl.where(invalid, float("nan"), result), mask=there)


@triton.jit
def _jacobian(
    grad, projected, out, scaled, rows, labels,
    STEP: tl.constexpr, LEAK: tl.constexpr, TRANSPOSED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    places, there = _places(rows, labels, ROWS, COLUMNS)
    g = tl.load(grad + places, mask=there, other=0)
    p = tl.load(projected + places, mask=there, other=0)
    one = tl.full((ROWS, COLUMNS), 1, g.dtype)
    support = tl.where(p > 0, one, 0)
    slope = tl.where(p < 0, one * LEAK, support)
    size = tl.sum(support, 1, keep_dims=True)
    if TRANSPOSED:
        sloped = slope * g
        result = sloped - support * (tl.sum(sloped, 1, keep_dims=True) / size)
    else:
        result = slope * (g - tl.sum(support * g, 1, keep_dims=True) / size)
    # of rows of NaN
    result = tl.where(tl.sum((p != p).to(tl.int32), 1, keep_dims=True) > 0, float("nan"), result)
    tl.store(out + places, result, mask=there)
    if scaled is not None:
        tl.store(scaled + places, -STEP * result, mask=there)


@triton.jit
def _softmax_of(value):
    largest = tl.max(value, 1, keep_dims=True)
    power = tl.exp(value - largest)
    invalid = tl.sum(((value != value) | (value == float("inf"))).to(tl.int32), 1, keep_dims=True) > 0
    probability = power / tl.sum(power, 1, keep_dims=True)
    return tl.where(invalid | (largest == -float("inf")), float("nan"), probability)


@triton.jit
def _softmax(
    x, excluded, out, rows, labels, FACTOR: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    places, there = _places(rows, labels, ROWS, COLUMNS)
    value = tl.load(x + places, mask=there, other=0) * FACTOR
    if excluded is not None:
        value = tl.where(tl.load(excluded + places, mask=there, other=0) != 0, -float("inf"), value)
    value = tl.where(there, value, -float("inf"))
    tl.store(out + places, _softmax_of(value), mask=there)


@triton.jit
def _softmax_gradient(
    grad, probability, out, rows, labels, FACTOR: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    places, there = _places(rows, labels, ROWS, COLUMNS)
    g = tl.load(grad + places, mask=there, other=0)
    p = tl.load(probability + places, mask=there, other=0)
    product = p * g
    tl.store(out + places, FACTOR * (product - p * tl.sum(product, 1, keep_dims=True)), mask=there)


@triton.jit
def _costs(
    logits, grad, out, rows, labels, EPS: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """The costs, or with a gradient theirs."""
    places, there = _places(rows, labels, ROWS, COLUMNS)
    p = _softmax_of(tl.load(logits + places, mask=there, other=-float("inf")))
    if grad is None:
        result = -tl.log(p + EPS) / UNIT
    else:
        by_p = tl.load(grad + places, mask=there, other=0) * p / (UNIT * (p + EPS))
        result = p * tl.sum(by_p, 1, keep_dims=True) - by_p
    tl.store(out + places, result, mask=there)
