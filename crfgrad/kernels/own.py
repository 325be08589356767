"""What a filter on the lattice brings from a pixel to itself, with its gradients.

Pixel i reaches itself by the matrix M_i = sum_n c_in W_n. The tap n between two corners of its simplex
is the set of axes between them, as bits; W (2^d, C_out, C_in) is indexed by that set, and 0 is the centre.
Equals ``crfgrad.lattice.torch_table.TorchTable.filter_self``.
"""

import numpy as np

from crfgrad.kernels.matrix import ROWS, correlate, multiply
from crfgrad.kernels.parallel import kernel

BLOCK = 128  # pixels that a matrix product works on at a time


@kernel
def _taps(order: np.ndarray) -> np.ndarray:
    """The taps that pixels with this order of the axes use: the centre, then those of each pair of corners."""
    taps = [0]
    for low in range(len(order)):
        between = 0
        for axis in order[low:]:
            between |= 1 << axis
            taps.append(between)
    return np.array(taps)


@kernel
def _coefficients(weights: np.ndarray, pixels: np.ndarray, begin: int, end: int, out: np.ndarray) -> None:
    """The factors c of these taps at some pixels: products of barycentric weights."""
    corners = weights.shape[1]
    for lane in range(end - begin):
        i = pixels[begin + lane]
        out[lane, 0] = 0
        count = 1
        for low in range(corners):
            out[lane, 0] += weights[i, low] * weights[i, low]
            for high in range(low + 1, corners):
                out[lane, count] = weights[i, low] * weights[i, high]
                count += 1


@kernel
def _block_end(order: np.ndarray, pixels: np.ndarray, begin: int, stop: int) -> int:
    """How far from ``begin`` the pixels have the same order of the axes, and so the same taps."""
    end = begin + 1
    while end < min(stop, begin + BLOCK):
        for axis in range(order.shape[1]):
            if order[pixels[end], axis] != order[pixels[begin], axis]:
                return end
        end += 1
    return end


@kernel
def filter_self(
    values: np.ndarray,
    weights: np.ndarray,
    order: np.ndarray,
    pixels: np.ndarray,
    columns: np.ndarray,
    out: np.ndarray,
    start: int,
    stop: int,
) -> None:
    """Row i of out becomes M_i times row i of values.

    ``pixels`` are sorted by their order of the axes; ``columns[n]`` is the transpose of W_n, padded.
    """
    inputs, columns_out = columns.shape[1:]
    corners = weights.shape[1]
    coefficients = np.zeros((BLOCK, 1 + corners * (corners - 1) // 2), values.dtype)
    used = np.empty((inputs, coefficients.shape[1], columns_out), values.dtype)
    factors = np.empty(BLOCK + ROWS, values.dtype)
    lanes = np.empty(BLOCK + ROWS, np.int32)
    total = np.empty((BLOCK, columns_out), values.dtype)
    begin = start
    while begin < stop:
        end = _block_end(order, pixels, begin, stop)
        taps = _taps(order[pixels[begin]])
        for k in range(len(taps)):
            for m in range(inputs):
                for c in range(columns_out):
                    used[m, k, c] = columns[taps[k], m, c]
        _coefficients(weights, pixels, begin, end, coefficients)
        total[: end - begin] = 0
        for m in range(inputs):
            count = 0
            for lane in range(end - begin):  # on a corner or an edge of the simplex, few labels matter
                value = values[pixels[begin + lane], m]
                lanes[count], factors[count] = lane, value
                count += value != 0
            for last in range(count, count + ROWS):  # read by the last tile
                lanes[last], factors[last] = lanes[0], 0
            multiply(coefficients, lanes, used[m], factors, total, lanes, count)
        for lane in range(end - begin):
            for c in range(out.shape[1]):
                out[pixels[begin + lane], c] = total[lane, c]
        begin = end


@kernel
def filter_self_gradient(
    grad: np.ndarray,
    values: np.ndarray,
    weights: np.ndarray,
    order: np.ndarray,
    pixels: np.ndarray,
    out: np.ndarray,
    start: int,
    stop: int,
) -> None:
    """Adds the gradient of ``filter_self`` to W (2^d, padded C_out, padded C_in)."""
    corners = weights.shape[1]
    coefficients = np.empty((BLOCK, 1 + corners * (corners - 1) // 2), values.dtype)
    lanes = np.arange(BLOCK).astype(np.int32)
    received, sent = np.zeros((BLOCK, out.shape[1]), values.dtype), np.zeros((BLOCK, out.shape[2]), values.dtype)
    scaled = np.empty_like(received)
    begin = start
    while begin < stop:
        end = _block_end(order, pixels, begin, stop)
        taps = _taps(order[pixels[begin]])
        _coefficients(weights, pixels, begin, end, coefficients)
        for lane in range(end - begin):
            for c in range(grad.shape[1]):
                received[lane, c] = grad[pixels[begin + lane], c]
            for c in range(values.shape[1]):
                sent[lane, c] = values[pixels[begin + lane], c]
        for k in range(len(taps)):
            for lane in range(end - begin):
                for c in range(out.shape[1]):
                    scaled[lane, c] = coefficients[lane, k] * received[lane, c]
            correlate(scaled, lanes, sent, lanes, out[taps[k]], end - begin)
        begin = end


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
