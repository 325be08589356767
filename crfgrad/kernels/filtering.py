"""Splat, blur, filter and slice with their gradients: equals ``crfgrad.lattice.functions``.

Values are rows, (pixels, C) on the image and (vertices, C) on the lattice.
"""

import numpy as np

from crfgrad.kernels.parallel import kernel

LANES = 256  # rows that a matrix product works on at a time


@kernel
def splat(values: np.ndarray, weights: np.ndarray, corners: np.ndarray, out: np.ndarray, start: int, stop: int) -> None:
    """Adds weight * value of each pixel to its corners."""
    for i in range(start, stop):
        for k in range(corners.shape[1]):
            weight, row = weights[i, k], out[corners[i, k]]
            for c in range(values.shape[1]):
                row[c] += weight * values[i, c]


@kernel
def slice_onto(
    values: np.ndarray, weights: np.ndarray, corners: np.ndarray, out: np.ndarray, start: int, stop: int
) -> None:
    """Adds to pixel i the sum of weight * value over its corners; three at a time."""
    channels = values.shape[1]
    whole = corners.shape[1] // 3 * 3
    for i in range(start, stop):
        for k in range(0, whole, 3):
            w0, w1, w2 = weights[i, k], weights[i, k + 1], weights[i, k + 2]
            v0, v1, v2 = values[corners[i, k]], values[corners[i, k + 1]], values[corners[i, k + 2]]
            for c in range(channels):
                out[i, c] += w0 * v0[c] + w1 * v1[c] + w2 * v2[c]
        for k in range(whole, corners.shape[1]):
            weight, row = weights[i, k], values[corners[i, k]]
            for c in range(channels):
                out[i, c] += weight * row[c]


@kernel
def corner_products(
    pixels: np.ndarray, vertices: np.ndarray, corners: np.ndarray, out: np.ndarray, start: int, stop: int
) -> None:
    """Inner product of each pixel's row with that of each of its corners: the gradient of the weights."""
    for i in range(start, stop):
        for k in range(corners.shape[1]):
            total = pixels.dtype.type(0)
            source = vertices[corners[i, k]]
            for c in range(pixels.shape[1]):
                total += pixels[i, c] * source[c]
            out[i, k] = total


@kernel
def blur_axis(values: np.ndarray, neighbours: np.ndarray, out: np.ndarray, start: int, stop: int) -> None:
    """[1 2 1] / 4 along one axis; neighbours (2, vertices) may be the last row of values, which is 0."""
    half, quarter = values.dtype.type(0.5), values.dtype.type(0.25)
    for vertex in range(start, stop):
        row, before, after = values[vertex], values[neighbours[0, vertex]], values[neighbours[1, vertex]]
        for c in range(values.shape[1]):
            out[vertex, c] = half * row[c] + quarter * (before[c] + after[c])


@kernel
def filter_numbers(
    values: np.ndarray, weights: np.ndarray, neighbours: np.ndarray, out: np.ndarray, start: int, stop: int
) -> None:
    """Vertex v receives the sum over the taps n of w_n times the row of its neighbour at n."""
    for vertex in range(start, stop):
        row = out[vertex]
        row[:] = 0
        for tap in range(len(weights)):
            source = neighbours[tap, vertex]
            if source >= 0:
                for c in range(values.shape[1]):
                    row[c] += weights[tap] * values[source, c]


@kernel
def filter_numbers_gradient(
    grad: np.ndarray, values: np.ndarray, neighbours: np.ndarray, out: np.ndarray, start: int, stop: int
) -> None:
    """Adds the gradient of ``filter_numbers`` to its weights (taps,)."""
    for tap in range(len(out)):
        total = values.dtype.type(0)
        for vertex in range(start, stop):
            source = neighbours[tap, vertex]
            if source >= 0:
                for c in range(values.shape[1]):
                    total += grad[vertex, c] * values[source, c]
        out[tap] += total


@kernel
def filter_matrices(
    values: np.ndarray, weights: np.ndarray, neighbours: np.ndarray, out: np.ndarray, start: int, stop: int
) -> None:
    """Vertex v receives the sum over the taps n of W_n times the row of its neighbour at n."""
    taps, rows, columns = weights.shape
    sources, targets = np.empty(LANES + 1, np.int32), np.empty(LANES + 1, np.int32)
    gathered = np.empty((columns, LANES), values.dtype)
    product = np.empty((rows, LANES), values.dtype)
    out[start:stop] = 0
    for begin in range(start, stop, LANES):
        end = min(begin + LANES, stop)
        for tap in range(taps):
            count = _linked(neighbours[tap], begin, end, sources, targets)
            _gather(values, sources, count, gathered)
            _multiply(weights[tap], gathered, count, product)
            for lane in range(count):
                target = targets[lane]
                for row in range(rows):
                    out[target, row] += product[row, lane]


@kernel
def filter_matrices_gradient(
    grad: np.ndarray, values: np.ndarray, neighbours: np.ndarray, out: np.ndarray, start: int, stop: int
) -> None:
    """Adds the gradient of ``filter_matrices`` to its weights (taps, C_out, C_in)."""
    taps, rows, columns = out.shape
    sources, targets = np.empty(LANES + 1, np.int32), np.empty(LANES + 1, np.int32)
    sent = np.empty((columns, LANES), values.dtype)
    received = np.empty((rows, LANES), values.dtype)
    for begin in range(start, stop, LANES):
        end = min(begin + LANES, stop)
        for tap in range(taps):
            count = _linked(neighbours[tap], begin, end, sources, targets)
            _gather(values, sources, count, sent)
            _gather(grad, targets, count, received)
            _correlate(received, sent, count, out[tap])


@kernel
def _linked(neighbours: np.ndarray, begin: int, end: int, sources: np.ndarray, targets: np.ndarray) -> int:
    """Lists the vertices from ``begin`` to ``end`` that have this neighbour, and the neighbours."""
    count = 0
    for vertex in range(begin, end):
        sources[count] = neighbours[vertex]
        targets[count] = vertex
        count += neighbours[vertex] >= 0  # no branch, which would be mispredicted half of the time
    return count


@kernel
def _gather(values: np.ndarray, which: np.ndarray, count: int, out: np.ndarray) -> None:
    """Rows of values as the columns of out: (rows, C) -> (C, lanes)."""
    for lane in range(count):
        for c in range(values.shape[1]):
            out[c, lane] = values[which[lane], c]


@kernel
def _multiply(weight: np.ndarray, x: np.ndarray, count: int, out: np.ndarray) -> None:
    """Matrix product: out = weight x, on the first ``count`` columns; two rows by four columns at a time."""
    rows, columns = weight.shape
    whole = columns // 4 * 4
    for row in range(0, rows - 1, 2):
        upper, lower = out[row], out[row + 1]
        upper[:count] = 0
        lower[:count] = 0
        for column in range(0, whole, 4):
            a0, a1, a2, a3 = weight[row, column : column + 4]
            b0, b1, b2, b3 = weight[row + 1, column : column + 4]
            for lane in range(count):
                x0, x1, x2, x3 = x[column, lane], x[column + 1, lane], x[column + 2, lane], x[column + 3, lane]
                upper[lane] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                lower[lane] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
        for column in range(whole, columns):
            a, b = weight[row, column], weight[row + 1, column]
            for lane in range(count):
                upper[lane] += a * x[column, lane]
                lower[lane] += b * x[column, lane]
    if rows % 2:
        last = out[rows - 1]
        last[:count] = 0
        for column in range(columns):
            a = weight[rows - 1, column]
            for lane in range(count):
                last[lane] += a * x[column, lane]


@kernel
def _correlate(left: np.ndarray, right: np.ndarray, count: int, out: np.ndarray) -> None:
    """Adds the matrix product left right^T to out, on the first ``count`` columns of both."""
    rows, columns = out.shape
    whole = columns // 4 * 4
    zero = left.dtype.type(0)
    for row in range(rows):
        for column in range(0, whole, 4):
            s0, s1, s2, s3 = zero, zero, zero, zero
            for lane in range(count):
                value = left[row, lane]
                s0 += value * right[column, lane]
                s1 += value * right[column + 1, lane]
                s2 += value * right[column + 2, lane]
                s3 += value * right[column + 3, lane]
            out[row, column] += s0
            out[row, column + 1] += s1
            out[row, column + 2] += s2
            out[row, column + 3] += s3
        for column in range(whole, columns):
            total = zero
            for lane in range(count):
                total += left[row, lane] * right[column, lane]
            out[row, column] += total
