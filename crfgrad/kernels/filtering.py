"""Splat, blur, filter and slice with their gradients: equals ``crfgrad.lattice.functions``.

Values are rows, (pixels, C) on the image and (vertices, C) on the lattice.
"""

import numpy as np

from crfgrad.kernels.matrix import ROWS, correlate, multiply
from crfgrad.kernels.parallel import kernel

BLOCK = 256  # vertices that all taps are applied to before the next ones


@kernel
def copy(values: np.ndarray, out: np.ndarray, start: int, stop: int) -> None:
    """Copies rows."""
    for i in range(start, stop):
        for c in range(values.shape[1]):
            out[i, c] = values[i, c]


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
    values: np.ndarray, columns: np.ndarray, neighbours: np.ndarray, out: np.ndarray, start: int, stop: int
) -> None:
    """Vertex v receives the sum over the taps n of W_n times the row of its neighbour at n.

    ``columns[n]`` is the transpose of W_n, padded: (taps, C_in, padded C_out).
    """
    sources, targets = np.empty(BLOCK + ROWS, np.int32), np.empty(BLOCK + ROWS, np.int32)
    factors = np.ones(BLOCK + ROWS, values.dtype)
    total = np.empty((BLOCK + 1, columns.shape[2]), values.dtype)
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        total[:] = 0
        for tap in range(len(columns)):
            count = _linked(neighbours[tap], begin, end, sources, targets)
            for lane in range(count, count + ROWS):  # read by the last tile
                sources[lane], targets[lane] = 0, BLOCK
            multiply(values, sources, columns[tap], factors, total, targets, count)
        for vertex in range(begin, end):
            for c in range(out.shape[1]):
                out[vertex, c] = total[vertex - begin, c]


@kernel
def filter_matrices_gradient(
    grad: np.ndarray, values: np.ndarray, neighbours: np.ndarray, out: np.ndarray, start: int, stop: int
) -> None:
    """Adds the gradient of ``filter_matrices`` to its weights (taps, C_out, C_in), all padded, as are the rows."""
    sources, targets = np.empty(BLOCK + 1, np.int32), np.empty(BLOCK + 1, np.int32)
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        for tap in range(len(out)):
            count = _linked(neighbours[tap], begin, end, sources, targets)
            correlate(grad[begin:end], targets, values, sources, out[tap], count)


@kernel
def _linked(neighbours: np.ndarray, begin: int, end: int, sources: np.ndarray, targets: np.ndarray) -> int:
    """Lists the vertices from ``begin`` to ``end`` that have this neighbour, less ``begin``, and the neighbours."""
    count = 0
    for vertex in range(begin, end):
        sources[count] = neighbours[vertex]
        targets[count] = vertex - begin
        count += neighbours[vertex] >= 0  # no branch, which would be mispredicted half of the time
    return count
