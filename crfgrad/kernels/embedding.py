"""The simplices around pixels, and the vertices of each stretch of pixels."""

import numpy as np

from crfgrad.kernels.parallel import exact, kernel

BLOCK = 64  # pixels that are worked on together, a vector of them at a time
STRETCH = 4096  # pixels whose vertices are numbered together, in a table that stays in the cache
SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: multiples of it fill a table evenly


@kernel
def extent(points: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Lowest and highest value of each feature (2, d) among some of the points (N, d); NaN if one is not finite."""
    zero = points.dtype.type(0)
    bounds = np.empty((2, points.shape[1]), np.float64)
    low, high, test = np.empty(BLOCK, points.dtype), np.empty(BLOCK, points.dtype), np.empty(BLOCK, points.dtype)
    for axis in range(points.shape[1]):
        for lane in range(BLOCK):
            low[lane] = high[lane] = points[start, axis]
            test[lane] = zero
        for begin in range(start, stop, BLOCK):
            for lane in range(BLOCK):
                value = points[min(begin + lane, stop - 1), axis]
                low[lane], high[lane] = min(low[lane], value), max(high[lane], value)
                test[lane] += zero * value  # NaN for NaN and infinity
        for lane in range(1, BLOCK):
            low[0], high[0] = min(low[0], low[lane]), max(high[0], high[lane])
            test[0] += test[lane]
        bounds[0, axis], bounds[1, axis] = low[0] + test[0], high[0] + test[0]
    return bounds


@exact
def embed(
    points: np.ndarray,
    matrix: np.ndarray,
    lowest: np.ndarray,
    strides: np.ndarray,
    size: int,
    corners: np.ndarray,
    order: np.ndarray,
    barycentric: np.ndarray,
    start: int,
    stop: int,
) -> np.ndarray:
    """The simplex of points ``start`` to ``stop``: numbers the corners as they appear, and returns their keys.

    Shape: points (N, d) of images of ``size`` points, corners (N * (d + 1),), order (N, d), barycentric (N, d + 1).
    """
    dimension = len(matrix)
    fraction, rank = np.empty((dimension, BLOCK), np.float64), np.empty((dimension, BLOCK), np.int64)
    first, keys = np.empty(BLOCK, np.int64), np.empty(BLOCK * (dimension + 1), np.int64)
    missed = np.empty(BLOCK * (dimension + 1), np.int32)
    table = np.empty((_twice(STRETCH * (dimension + 1)), 2), np.int64)
    distinct, count = np.empty((stop - start) * (dimension + 1), np.int64), 0
    for begin in range(start, stop, BLOCK):
        block = min(BLOCK, stop - begin)
        _locate(points, begin, block, matrix, lowest, strides, first, fraction)
        _rank(fraction, rank)
        for lane in range(block):
            first[lane] += (begin + lane) // size * strides[dimension]
        _corners(fraction, rank, first, strides, begin, block, keys, order, barycentric)
        if (begin - start) % STRETCH == 0:
            for slot in range(len(table)):
                table[slot, 0] = table[slot, 1] = -1
        count = _number(keys, block * (dimension + 1), table, distinct, count, missed, corners, begin * (dimension + 1))
    return distinct[:count].copy()


@exact
def _corners(
    fraction: np.ndarray,
    rank: np.ndarray,
    first: np.ndarray,
    strides: np.ndarray,
    begin: int,
    block: int,
    keys: np.ndarray,
    order: np.ndarray,
    barycentric: np.ndarray,
) -> None:
    """Keys of the corners, order of the axes and barycentric weights for a block of points."""
    dimension = len(fraction)
    ranked = np.empty(dimension + 2, np.float64)
    ranked[0], ranked[dimension + 1] = 1, 0
    for lane in range(block):
        i, key = begin + lane, first[lane]
        for axis in range(dimension):
            ranked[rank[axis, lane] + 1] = fraction[axis, lane]
            order[i, rank[axis, lane]] = axis
        for k in range(dimension + 1):
            keys[lane * (dimension + 1) + k] = key
            barycentric[i, k] = ranked[k] - ranked[k + 1]
            if k < dimension:
                key += strides[order[i, k]]


@exact
def _locate(
    points: np.ndarray,
    begin: int,
    block: int,
    matrix: np.ndarray,
    lowest: np.ndarray,
    strides: np.ndarray,
    first: np.ndarray,
    fraction: np.ndarray,
) -> None:
    """The key of the cell of each point in its image, and where in the cell it lies: (d, BLOCK)."""
    column = np.zeros((points.shape[1], BLOCK), np.float64)
    for lane in range(block):
        for k in range(points.shape[1]):
            column[k, lane] = points[begin + lane, k]
    for lane in range(BLOCK):
        first[lane] = 0
    for axis in range(len(matrix)):
        for lane in range(BLOCK):
            fraction[axis, lane] = column[0, lane] * matrix[axis, 0]
        for k in range(1, len(matrix)):
            for lane in range(BLOCK):
                fraction[axis, lane] += column[k, lane] * matrix[axis, k]
        for lane in range(BLOCK):
            below = np.floor(fraction[axis, lane])
            fraction[axis, lane] -= below
            first[lane] += int(below - lowest[axis]) * strides[axis]


@exact
def _rank(fraction: np.ndarray, rank: np.ndarray) -> None:
    """The place of each axis when fractions descend; of equal ones the earlier comes first."""
    rank[:] = 0
    for axis in range(len(fraction)):
        for other in range(axis):
            for lane in range(BLOCK):
                behind = fraction[axis, lane] <= fraction[other, lane]
                rank[axis, lane] += behind
                rank[other, lane] += not behind


@kernel
def _twice(count: int) -> int:
    """A power of two that is at least twice a number."""
    size = 2
    while size < 2 * count:
        size *= 2
    return size


@kernel
def _slot(table: np.ndarray, key: int) -> int:
    """Where in the hash table a key is looked for first."""
    return int((np.uint64(key) * SPREAD) >> np.uint64(32)) & len(table) - 1


@kernel
def _number(
    keys: np.ndarray,
    size: int,
    table: np.ndarray,
    distinct: np.ndarray,
    count: int,
    missed: np.ndarray,
    corners: np.ndarray,
    begin: int,
) -> int:
    """Numbers corners from ``begin`` on by a table of (key, number), to which it adds; returns how many keys there are.

    First without branches, which would be mispredicted; then those that are not where they belong, or are new.
    """
    misses, mask = 0, len(table) - 1
    for j in range(size):
        slot = _slot(table, keys[j])
        corners[begin + j] = table[slot, 1]
        missed[misses] = j
        misses += table[slot, 0] != keys[j]
    for miss in range(misses):
        j = missed[miss]
        slot = _slot(table, keys[j])
        while table[slot, 0] != keys[j]:
            if table[slot, 0] < 0:
                table[slot, 0], table[slot, 1] = keys[j], count
                distinct[count] = keys[j]
                count += 1
            else:
                slot = (slot + 1) & mask
        corners[begin + j] = table[slot, 1]
    return count
