"""Rows onto the simplex, by projection and by softmax: equals ``crfgrad.simplex`` and ``torch.softmax``.

Rows of labels are short, so a block of them is turned on its side and worked on label by label, a whole
vector of rows at a time.
"""

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from crfgrad.kernels.parallel import kernel

BLOCK = 64  # rows


@kernel
def _turn(rows: np.ndarray, begin: int, count: int, out: np.ndarray) -> None:
    """Rows ``begin`` and on become columns: (rows, L) -> (L, BLOCK); the last row fills a block that is not full."""
    for lane in range(BLOCK):
        row = begin + min(lane, count - 1)
        for label in range(rows.shape[1]):
            out[label, lane] = rows[row, label]


@kernel
def _turn_back(columns: np.ndarray, begin: int, count: int, out: np.ndarray) -> None:
    """Columns (L, BLOCK) become rows ``begin`` and on."""
    for lane in range(count):
        for label in range(out.shape[1]):
            out[begin + lane, label] = columns[label, lane]


@kernel
def _less_maximum(columns: np.ndarray, largest: np.ndarray) -> None:
    """Subtracts the largest entry of each column."""
    largest[:] = columns[0]
    for label in range(1, len(columns)):
        for lane in range(BLOCK):
            largest[lane] = max(largest[lane], columns[label, lane])
    for label in range(len(columns)):
        for lane in range(BLOCK):
            columns[label, lane] -= largest[lane]


@kernel
def project(x: np.ndarray, leak: float, out: np.ndarray, start: int, stop: int) -> bool:
    """Projects rows of x (rows, L); returns whether all of them were finite.

    The support shrinks from all entries within 1 of the maximum to those above the threshold that
    it implies, until nothing changes; that is exact, and needs no sorting.
    """
    zero, one = x.dtype.type(0), x.dtype.type(1)
    columns = np.empty((x.shape[1], BLOCK), x.dtype)
    threshold, total, size, before = np.empty((4, BLOCK), x.dtype)
    finite = True
    for begin in range(start, stop, BLOCK):
        count = min(BLOCK, stop - begin)
        _turn(x, begin, count, columns)
        finite &= _all_finite(columns)
        _less_maximum(columns, total)
        threshold[:] = -1
        size[:] = 0
        changed = finite
        while changed:
            before[:] = size
            total[:] = -1
            size[:] = 0
            for label in range(len(columns)):
                for lane in range(BLOCK):
                    inside = columns[label, lane] > threshold[lane]
                    total[lane] += columns[label, lane] if inside else zero
                    size[lane] += one if inside else zero
            changed = False
            for lane in range(BLOCK):
                changed |= size[lane] != before[lane]
                # never lower: where rounding would let an entry in again, this might go on forever
                threshold[lane] = max(threshold[lane], total[lane] / size[lane])
        for label in range(len(columns)):
            for lane in range(BLOCK):
                distance = columns[label, lane] - threshold[lane]
                below = leak * distance if leak > 0 else zero  # the distance may be -infinity
                columns[label, lane] = distance if distance > 0 else below
        _turn_back(columns, begin, count, out)
    return finite


@kernel
def _all_finite(columns: np.ndarray) -> bool:
    total = columns.dtype.type(0)
    for label in range(len(columns)):
        for lane in range(BLOCK):
            total += columns[label, lane] * 0  # NaN for NaN and infinity
    return total == 0


@kernel
def project_gradient(
    grad: np.ndarray, projected: np.ndarray, leak: float, out: np.ndarray, start: int, stop: int
) -> None:
    """Gradient of the projection, whose support is where its result is positive."""
    labels = grad.shape[1]
    zero, one = grad.dtype.type(0), grad.dtype.type(1)
    for i in range(start, stop):
        total, size = zero, zero
        for label in range(labels):
            inside = projected[i, label] > 0
            total += (one if inside else leak) * grad[i, label]
            size += one if inside else zero
        mean = total / size
        for label in range(labels):
            inside = projected[i, label] > 0
            out[i, label] = (one if inside else leak) * grad[i, label] - (mean if inside else zero)


@kernel
def softmax(x: np.ndarray, factor: float, out: np.ndarray, start: int, stop: int) -> None:
    """Softmax of factor * x for rows of x (rows, L)."""
    columns = np.empty((x.shape[1], BLOCK), x.dtype)
    total = np.empty(BLOCK, x.dtype)
    for begin in range(start, stop, BLOCK):
        count = min(BLOCK, stop - begin)
        _turn(x, begin, count, columns)
        columns *= factor
        _less_maximum(columns, total)
        total[:] = 0
        for label in range(len(columns)):
            for lane in range(BLOCK):
                columns[label, lane] = _exp(columns[label, lane])
                total[lane] += columns[label, lane]
        columns /= total
        _turn_back(columns, begin, count, out)


@kernel
def softmax_gradient(
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
        x = max(x, np.float32(-87))  # the smallest normal number
        n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
        r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)  # ln(2) in two parts
        series = np.float32(1 / 5040)
        for inverse in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
            series = series * r + np.float32(inverse)
        return series * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)

    return exp if x is types.float32 else library_exp
