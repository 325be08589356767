"""Products of complex matrices, one at each frequency, as real ones: complex numbers are pairs in their rows."""

import numpy as np

from crfgrad.kernels.matrix import correlate, multiply
from crfgrad.kernels.parallel import kernel
from crfgrad.kernels.vectors import Parts


@kernel
def multiply_at(
    parts: Parts,
    left: np.ndarray,
    right: np.ndarray,
    transposed: bool,
    out: np.ndarray,
    start: int,
    stop: int,
) -> None:
    """``out[f] = left[f] @ right[f]``, or times the conjugate transpose, in some columns.

    Shape: left (F, n, 2 * terms), right (F, terms, 2 * columns), out (F, n, 2 * columns).
    """
    real = np.empty((left.shape[2], out.shape[2]), out.dtype)
    for f in range(start, stop):
        if transposed:
            _real_transpose(right[f], real)
        else:
            _real(right[f], real)
        multiply(parts, left[f], None, real, out[f], None, False)


@kernel
def _real(matrix: np.ndarray, out: np.ndarray) -> None:
    """The real matrix that multiplies pairs as a complex one does."""
    for term in range(len(matrix)):
        pairs, one, other = matrix[term], out[2 * term], out[2 * term + 1]
        for place in range(0, len(pairs), 2):
            one[place], one[place + 1] = pairs[place], pairs[place + 1]
            other[place], other[place + 1] = -pairs[place + 1], pairs[place]


@kernel
def _real_transpose(matrix: np.ndarray, out: np.ndarray) -> None:
    """The transpose of ``_real``, which is that of the conjugate transpose."""
    for column in range(len(matrix)):
        for place in range(0, matrix.shape[1], 2):
            a, b = matrix[column, place], matrix[column, place + 1]
            out[place, 2 * column], out[place, 2 * column + 1] = a, -b
            out[place + 1, 2 * column], out[place + 1, 2 * column + 1] = b, a


@kernel
def correlate_at(parts: Parts, left: np.ndarray, right: np.ndarray, out: np.ndarray, start: int, stop: int) -> None:
    """``out[f] = left[f].mH @ right[f]`` in some columns.

    Shape: left (F, n, 2 * rows), right (F, n, 2 * columns), out (F, rows, 2 * columns).
    """
    real = np.empty((left.shape[2], right.shape[2]), out.dtype)
    for f in range(start, stop):
        correlate(parts, left[f], None, right[f], None, real, False)
        for row in range(out.shape[1]):
            pairs, one, other = out[f, row], real[2 * row], real[2 * row + 1]
            for place in range(parts[0][0], parts[-1][-1] + 1, 2):
                pairs[place] = one[place] + other[place + 1]
                pairs[place + 1] = one[place + 1] - other[place]
