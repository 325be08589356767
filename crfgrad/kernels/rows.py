"""Compiled twins of ``crfgrad.ops.rows``.

Rows of labels are short, so a block of them is turned on its side and worked on label by label, a whole
vector of rows at a time.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import overload
from torch import Tensor

from crfgrad.kernels.parallel import kernel, run
from crfgrad.kernels.turning import turn, turn_back
from crfgrad.ops.rows import moved, without

BLOCK = 64  # rows


def project_rows(x: Tensor, gradient: Tensor | None, step: float, excluded: Tensor | None, leak: float) -> Tensor:
    """See ``crfgrad.ops.rows.simplex_project``."""
    return _by_rows(_project, [moved(x, gradient, step, excluded)], leak)


def project_rows_jacobian(grad: Tensor, projected: Tensor, leak: float, transposed: bool) -> Tensor:
    """See ``crfgrad.ops.rows.simplex_project_jacobian``."""
    return _by_rows(_jacobian_transposed if transposed else _jacobian, [grad, projected], leak)


def softmax_rows(x: Tensor, excluded: Tensor | None, factor: float) -> Tensor:
    """See ``crfgrad.ops.rows.simplex_softmax``."""
    return _by_rows(_softmax, [without(x, excluded, factor)], factor)


def softmax_rows_gradient(grad: Tensor, probability: Tensor, factor: float) -> Tensor:
    """See ``crfgrad.ops.rows.simplex_softmax_gradient``."""
    return _by_rows(_softmax_gradient, [grad, probability], factor)


def _by_rows(function: Callable[..., Any], inputs: list[Tensor], factor: float) -> Tensor:
    """Calls ``function(*rows, factor, out, start, stop)``."""
    out = torch.empty_like(inputs[0])
    if out.numel():
        rows = [tensor.view(-1, tensor.shape[-1]).numpy() for tensor in (*inputs, out)]
        run(function, len(rows[0]), *rows[:-1], rows[0].dtype.type(factor), rows[-1])
    return out


@kernel
def _block(begin: int, stop: int, rows: np.ndarray) -> None:
    """Lists rows ``begin`` and on; the last row fills a block that is not full."""
    for lane in range(BLOCK):
        rows[lane] = min(begin + lane, stop - 1)


@kernel
def _project(x: np.ndarray, leak: float, out: np.ndarray, start: int, stop: int) -> None:
    """Projects rows of x (rows, L).

    The support shrinks from all entries within 1 of the maximum to those above the threshold that
    it implies, until nothing changes; that is exact, and needs no sorting.
    """
    zero, one = x.dtype.type(0), x.dtype.type(1)
    rows, columns = np.empty(BLOCK, np.int64), np.empty((x.shape[1], BLOCK), x.dtype)
    threshold, total, size = np.empty(BLOCK, x.dtype), np.empty(BLOCK, x.dtype), np.empty(BLOCK, x.dtype)
    before, wrong = np.empty(BLOCK, x.dtype), np.empty(BLOCK, x.dtype)
    for begin in range(start, stop, BLOCK):
        _block(begin, stop, rows)
        turn(x, rows, columns)
        _less_largest(columns, total, wrong)
        threshold[:] = -1
        size[:] = 0
        changed = True
        while changed:
            for lane in range(BLOCK):
                before[lane], total[lane], size[lane] = size[lane], -one, zero
            for label in range(len(columns)):
                for lane in range(BLOCK):
                    inside = columns[label, lane] > threshold[lane]
                    total[lane] += columns[label, lane] if inside else zero
                    size[lane] += one if inside else zero
            changed = False
            for lane in range(BLOCK):
                changed |= size[lane] != before[lane]
                # never lower: where rounding would let an entry in again, this might go on forever
                threshold[lane] = max(threshold[lane], total[lane] / max(size[lane], one))
        for label in range(len(columns)):
            for lane in range(BLOCK):
                distance = columns[label, lane] - threshold[lane]
                below = leak * distance if distance > -np.inf else zero
                columns[label, lane] = (distance if distance > 0 else below) + wrong[lane]
        turn_back(columns, rows, out)


@kernel
def _less_largest(columns: np.ndarray, largest: np.ndarray, wrong: np.ndarray) -> None:
    """Subtracts the largest entry of each column; ``wrong`` becomes NaN where there is NaN then, and 0 elsewhere."""
    largest[:] = -np.inf
    for label in range(len(columns)):
        for lane in range(BLOCK):
            largest[lane] = max(largest[lane], columns[label, lane])
    wrong[:] = 0
    for label in range(len(columns)):
        for lane in range(BLOCK):
            columns[label, lane] -= largest[lane]
            value = columns[label, lane]
            wrong[lane] += value if value != value else columns.dtype.type(0)


@kernel
def _jacobian(grad: np.ndarray, projected: np.ndarray, leak: float, out: np.ndarray, start: int, stop: int) -> None:
    """Jacobian of the projection times vectors; where the result is 0, the slope is 0 (or there is no leak)."""
    zero, one = grad.dtype.type(0), grad.dtype.type(1)
    for i in range(start, stop):
        total, size = zero, zero
        for label in range(grad.shape[1]):
            inside = projected[i, label] > 0
            total += grad[i, label] if inside else zero
            size += one if inside else zero
        mean = total / size  # NaN for a row of NaN, which has no support
        for label in range(grad.shape[1]):
            outside = leak if projected[i, label] < 0 else zero
            out[i, label] = (one if projected[i, label] > 0 else outside) * (grad[i, label] - mean)


@kernel
def _jacobian_transposed(
    grad: np.ndarray, projected: np.ndarray, leak: float, out: np.ndarray, start: int, stop: int
) -> None:
    zero, one = grad.dtype.type(0), grad.dtype.type(1)
    for i in range(start, stop):
        total, size = zero, zero
        for label in range(grad.shape[1]):
            inside = projected[i, label] > 0
            outside = leak if projected[i, label] < 0 else zero
            total += (one if inside else outside) * grad[i, label]
            size += one if inside else zero
        mean, nothing = total / size, zero / size  # NaN for a row of NaN, which has no support
        for label in range(grad.shape[1]):
            inside = projected[i, label] > 0
            outside = leak if projected[i, label] < 0 else zero
            out[i, label] = (one if inside else outside) * grad[i, label] - (mean if inside else nothing)


@kernel
def _softmax(x: np.ndarray, factor: float, out: np.ndarray, start: int, stop: int) -> None:
    rows, columns = np.empty(BLOCK, np.int64), np.empty((x.shape[1], BLOCK), x.dtype)
    largest, total = np.empty(BLOCK, x.dtype), np.empty(BLOCK, x.dtype)
    for begin in range(start, stop, BLOCK):
        _block(begin, stop, rows)
        turn(x, rows, columns)
        largest[:] = -np.inf
        for label in range(len(columns)):
            for lane in range(BLOCK):
                columns[label, lane] *= factor
                largest[lane] = max(largest[lane], columns[label, lane])
        total[:] = 0
        for label in range(len(columns)):
            for lane in range(BLOCK):
                columns[label, lane] = _exp(columns[label, lane] - largest[lane])
                total[lane] += columns[label, lane]
        for lane in range(BLOCK):
            total[lane] = 1 / total[lane]
        for label in range(len(columns)):
            for lane in range(BLOCK):
                columns[label, lane] *= total[lane]
        turn_back(columns, rows, out)


@kernel
def _softmax_gradient(
    grad: np.ndarray, probability: np.ndarray, factor: float, out: np.ndarray, start: int, stop: int
) -> None:
    """Gradient of the softmax, from its result."""
    for i in range(start, stop):
        mean = grad.dtype.type(0)
        for label in range(grad.shape[1]):
            mean += grad[i, label] * probability[i, label]
        for label in range(grad.shape[1]):
            out[i, label] = factor * probability[i, label] * (grad[i, label] - mean)


def _exp(x: float) -> float:
    """Exponential of x <= 0."""
    return math.exp(x)


@overload(_exp)
def _compiled_exp(x: Any) -> Any:
    def library_exp(x: Any) -> Any:
        return math.exp(x)

    def exp(x: Any) -> Any:
        """In float32, 2^n e^r with |r| <= ln(2) / 2 and a polynomial for e^r: the compiler makes vectors of it."""
        if x == -np.inf:
            return np.float32(0)
        x = np.float32(-87) if x < -87 else x  # the smallest normal number
        n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
        r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)  # ln(2) in two parts
        series = np.float32(1 / 5040)
        for inverse in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
            series = series * r + np.float32(inverse)
        return series * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)

    return exp if x is types.float32 else library_exp
