"""Building a lattice: equals ``crfgrad.lattice.torch_table``, up to the order of the vertices."""

import numpy as np

from crfgrad.kernels.parallel import exact, kernel

SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: multiples of it fill a table evenly


@kernel
def extent(features: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Lowest and highest value of each feature (2, d) among some of the pixels of all images; NaN if one is not finite.

    Shape: features (B, d, N), pixels ``start`` to ``stop`` of N.
    """
    zero = features.dtype.type(0)
    bounds = np.empty((2, features.shape[1]), np.float64)
    bounds[0], bounds[1] = np.inf, -np.inf
    for image in range(features.shape[0]):
        for axis in range(features.shape[1]):
            low = high = features[image, axis, start]
            test = zero
            for pixel in range(start, stop):
                value = features[image, axis, pixel]
                low, high = min(low, value), max(high, value)
                test += zero * value  # NaN for NaN and infinity
            bounds[0, axis] = min(bounds[0, axis], low + test)
            bounds[1, axis] = max(bounds[1, axis], high + test)
            if test != 0:
                bounds[:] = np.nan
                return bounds
    return bounds


@exact
def embed(
    features: np.ndarray,
    matrix: np.ndarray,
    lowest: np.ndarray,
    strides: np.ndarray,
    first: np.ndarray,
    order: np.ndarray,
    barycentric: np.ndarray,
    start: int,
    stop: int,
) -> None:
    """Key of the first corner, order of the axes and barycentric weights of the simplex of each pixel.

    Shape: features (B, d, N), lowest (d,), strides (d + 1,), first (B*N,), order (B*N, d), barycentric (B*N, d + 1).
    """
    dimension = len(matrix)
    fraction = np.empty(dimension, np.float64)
    image, pixel = divmod(start, features.shape[2])
    for i in range(start, stop):
        first[i] = image * strides[dimension]
        for axis in range(dimension):
            position = features[image, 0, pixel] * matrix[axis, 0]
            for k in range(1, dimension):
                position += features[image, k, pixel] * matrix[axis, k]
            below = np.floor(position)
            first[i] += int(below - lowest[axis]) * strides[axis]
            rest = position - below
            rank = axis
            while rank > 0 and fraction[rank - 1] < rest:  # insertion sort, largest first
                fraction[rank] = fraction[rank - 1]
                order[i, rank] = order[i, rank - 1]
                rank -= 1
            fraction[rank] = rest
            order[i, rank] = axis
        barycentric[i, 0] = 1 - fraction[0]
        for k in range(1, dimension):
            barycentric[i, k] = fraction[k - 1] - fraction[k]
        barycentric[i, dimension] = fraction[dimension - 1]
        pixel += 1
        if pixel == features.shape[2]:
            image, pixel = image + 1, 0


@kernel
def _slot(slots: np.ndarray, keys: np.ndarray, key: int) -> int:
    """Where in the hash table a key is, or would be."""
    mask = len(slots) - 1
    slot = int((np.uint64(key) * SPREAD) >> np.uint64(32)) & mask
    while slots[slot] >= 0 and keys[slots[slot]] != key:
        slot = (slot + 1) & mask
    return slot


@kernel
def _grown(slots: np.ndarray, keys: np.ndarray, count: int) -> np.ndarray:
    """A hash table of twice the size, with the same keys."""
    larger = np.full(2 * len(slots), -1, np.int32)
    for vertex in range(count):
        larger[_slot(larger, keys, keys[vertex])] = vertex
    return larger


@kernel
def number_vertices(
    first: np.ndarray, order: np.ndarray, strides: np.ndarray, corners: np.ndarray, start: int, stop: int
) -> np.ndarray:
    """Numbers the corners of points ``start`` to ``stop`` as they appear, and returns their keys.

    Shape: first (N,), order (N, d), strides (d + 1,), corners (N, d + 1) -> (vertices,).
    """
    dimension = order.shape[1]
    slots = np.full(1 << 12, -1, np.int32)
    keys = np.empty(1 << 11, np.int64)
    count = 0
    for i in range(start, stop):
        if i > start and _same_simplex(first, order, i):
            for corner in range(dimension + 1):
                corners[i, corner] = corners[i - 1, corner]
            continue
        key = first[i]
        for corner in range(dimension + 1):
            if corner > 0:
                key += strides[order[i, corner - 1]]
            slot = _slot(slots, keys, key)
            if slots[slot] < 0:
                if count == len(keys):  # half full
                    slots = _grown(slots, keys, count)
                    keys = np.concatenate((keys, np.empty(count, np.int64)))
                    slot = _slot(slots, keys, key)
                slots[slot] = count
                keys[count] = key
                count += 1
            corners[i, corner] = slots[slot]
    return keys[:count].copy()


@kernel
def _same_simplex(first: np.ndarray, order: np.ndarray, i: int) -> bool:
    """Whether point i lies in the simplex of the point before it."""
    same = first[i] == first[i - 1]
    for axis in range(order.shape[1]):
        same &= order[i, axis] == order[i - 1, axis]
    return same


@kernel
def hash_table(keys: np.ndarray) -> np.ndarray:
    """A hash table of distinct keys, for ``find_neighbours``."""
    size = 1 << 12
    while size < 2 * len(keys):
        size *= 2
    slots = np.full(size, -1, np.int32)
    for vertex in range(len(keys)):
        slots[_slot(slots, keys, keys[vertex])] = vertex
    return slots


@kernel
def merge_keys(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct keys in order of appearance, and the number of each key among them."""
    number = np.empty(len(keys), np.int32)
    distinct = np.empty(len(keys), np.int64)
    size = 1 << 12
    while size < 2 * len(keys):
        size *= 2
    slots = np.full(size, -1, np.int32)
    count = 0
    for i in range(len(keys)):
        slot = _slot(slots, distinct, keys[i])
        if slots[slot] < 0:
            slots[slot] = count
            distinct[count] = keys[i]
            count += 1
        number[i] = slots[slot]
    return distinct[:count].copy(), number


@kernel
def renumber(corners: np.ndarray, number: np.ndarray, start: int, stop: int) -> None:
    """Replaces the corners of points by their numbers."""
    for i in range(start, stop):
        for corner in range(corners.shape[1]):
            corners[i, corner] = number[corners[i, corner]]


@kernel
def find_neighbours(
    slots: np.ndarray, keys: np.ndarray, steps: np.ndarray, neighbours: np.ndarray, start: int, stop: int
) -> None:
    """Vertices at each of the steps, and at the opposite ones: -1 where there is none.

    Shape: steps (s,), neighbours (2s, vertices), filled with -1; row 2k is step k, row 2k + 1 its opposite.
    """
    for k in range(len(steps)):
        for vertex in range(start, stop):
            found = slots[_slot(slots, keys, keys[vertex] + steps[k])]
            if found >= 0:
                neighbours[2 * k, vertex] = found
                neighbours[2 * k + 1, found] = vertex
