"""What a filter on the lattice brings from a pixel to itself, with its gradients.

Pixel i reaches itself by the matrix M_i = sum_n c_in W_n. The tap n between two corners of its simplex
is the set of axes between them, as bits; W (2^d, C_out, C_in) is indexed by that set, and 0 is the centre.
Equals ``crfgrad.lattice.torch_table.TorchTable.filter_self``.
"""

import numpy as np

from crfgrad.kernels.parallel import kernel


@kernel
def _coefficients(weights: np.ndarray, order: np.ndarray, taps: np.ndarray, coefficients: np.ndarray) -> int:
    """Taps that a pixel uses and their factors c, which are products of its barycentric weights."""
    corners = len(weights)
    coefficients[0] = 0
    taps[0] = 0
    for k in range(corners):
        coefficients[0] += weights[k] * weights[k]
    count = 1
    for low in range(corners):
        between = 0
        for high in range(low + 1, corners):
            between |= 1 << order[high - 1]
            taps[count] = between
            coefficients[count] = weights[low] * weights[high]
            count += 1
    return count


@kernel
def filter_self(
    values: np.ndarray,
    weights: np.ndarray,
    order: np.ndarray,
    columns: np.ndarray,
    out: np.ndarray,
    start: int,
    stop: int,
) -> None:
    """Row i of out becomes M_i times row i of values; ``columns[n, m]`` is column m of W_n."""
    inputs, outputs = columns.shape[1:]
    corners = weights.shape[1]
    taps = np.empty(1 + corners * (corners - 1) // 2, np.int64)
    coefficients = np.empty(len(taps), values.dtype)
    matrix = np.empty((inputs, outputs), values.dtype)
    flat, flat_matrix = columns.reshape(len(columns), -1), matrix.reshape(-1)
    for i in range(start, stop):
        count = _coefficients(weights[i], order[i], taps, coefficients)
        out[i] = 0
        used = 0
        for m in range(inputs):
            used += values[i, m] != 0
        if 2 * used > inputs:
            _combine(flat, taps, coefficients, count, flat_matrix)
            _multiply(matrix, values[i], out[i])
        else:  # on a corner or an edge of the simplex, few columns matter
            for m in range(inputs):
                if values[i, m] != 0:
                    for k in range(count):
                        factor, column = coefficients[k] * values[i, m], columns[taps[k], m]
                        for c in range(outputs):
                            out[i, c] += factor * column[c]


@kernel
def _combine(rows: np.ndarray, which: np.ndarray, factors: np.ndarray, count: int, out: np.ndarray) -> None:
    """Sum of some rows, each times its factor; five at a time."""
    first = rows[which[0]]
    for e in range(len(out)):
        out[e] = factors[0] * first[e]
    whole = 1 + (count - 1) // 5 * 5
    for k in range(1, whole, 5):
        f0, f1, f2, f3, f4 = factors[k], factors[k + 1], factors[k + 2], factors[k + 3], factors[k + 4]
        r0, r1, r2 = rows[which[k]], rows[which[k + 1]], rows[which[k + 2]]
        r3, r4 = rows[which[k + 3]], rows[which[k + 4]]
        for e in range(len(out)):
            out[e] += f0 * r0[e] + f1 * r1[e] + f2 * r2[e] + f3 * r3[e] + f4 * r4[e]
    for k in range(whole, count):
        factor, row = factors[k], rows[which[k]]
        for e in range(len(out)):
            out[e] += factor * row[e]


@kernel
def _multiply(columns: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
    """Adds the matrix of these columns times x; three columns at a time."""
    whole = len(x) // 3 * 3
    for m in range(0, whole, 3):
        x0, x1, x2 = x[m], x[m + 1], x[m + 2]
        c0, c1, c2 = columns[m], columns[m + 1], columns[m + 2]
        for c in range(len(out)):
            out[c] += x0 * c0[c] + x1 * c1[c] + x2 * c2[c]
    for m in range(whole, len(x)):
        value, column = x[m], columns[m]
        for c in range(len(out)):
            out[c] += value * column[c]


@kernel
def filter_self_gradient(
    grad: np.ndarray,
    values: np.ndarray,
    weights: np.ndarray,
    order: np.ndarray,
    out: np.ndarray,
    start: int,
    stop: int,
) -> None:
    """Adds the gradient of ``filter_self`` to W (2^d, C_out, C_in)."""
    corners = weights.shape[1]
    outputs, inputs = out.shape[1:]
    taps = np.empty(1 + corners * (corners - 1) // 2, np.int64)
    coefficients = np.empty(len(taps), values.dtype)
    outer = np.empty(outputs * inputs, values.dtype)
    flat = out.reshape(len(out), -1)
    for i in range(start, stop):
        count = _coefficients(weights[i], order[i], taps, coefficients)
        _outer(grad[i], values[i], outer)
        for k in range(count):
            factor, row = coefficients[k], flat[taps[k]]
            for e in range(len(outer)):
                row[e] += factor * outer[e]


@kernel
def filter_self_weight_gradient(
    grad: np.ndarray,
    values: np.ndarray,
    matrices: np.ndarray,
    weights: np.ndarray,
    order: np.ndarray,
    out: np.ndarray,
    start: int,
    stop: int,
) -> None:
    """Gradient of ``filter_self`` with respect to the barycentric weights: (pixels, d + 1)."""
    corners = weights.shape[1]
    outer = np.empty(grad.shape[1] * values.shape[1], values.dtype)
    flat = matrices.reshape(len(matrices), -1)
    for i in range(start, stop):
        _outer(grad[i], values[i], outer)
        centre = 2 * _dot(flat[0], outer)
        for k in range(corners):
            out[i, k] = centre * weights[i, k]
        for low in range(corners):
            between = 0
            for high in range(low + 1, corners):
                between |= 1 << order[i, high - 1]
                change = _dot(flat[between], outer)
                out[i, low] += weights[i, high] * change
                out[i, high] += weights[i, low] * change


@kernel
def _outer(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    columns = len(right)
    for row in range(len(left)):
        for column in range(columns):
            out[row * columns + column] = left[row] * right[column]


@kernel
def _dot(left: np.ndarray, right: np.ndarray) -> float:
    total = left.dtype.type(0)
    for e in range(len(left)):
        total += left[e] * right[e]
    return total
