"""Compiled twins of ``crfgrad.ops.lattice``. Results do not depend on the number of threads."""

import numpy as np
import torch
from torch import Tensor

from crfgrad import geometry
from crfgrad.geometry import embedding_matrix, key_strides
from crfgrad.kernels.chains import follow
from crfgrad.kernels.embedding import embed, extent
from crfgrad.kernels.parallel import kernel, ranges, run, share
from crfgrad.ops.lattice import PADDED, check_size, fill_up


def build(points: Tensor, size: int, radius: int, padded: bool) -> tuple[Tensor, ...]:
    """See ``crfgrad.ops.lattice.lattice_build``."""
    count, dimension = points.shape
    check_size(count, dimension)
    array = points.numpy()
    strides, lowest = _key_space(array, count // size, radius)
    corners = np.empty((count, dimension + 1), np.int32)
    order = np.empty((count, dimension), np.int8)
    barycentric = np.empty((count, dimension + 1), array.dtype)
    matrix = embedding_matrix(dimension).numpy()
    given = (array, matrix, lowest, strides, size, corners.reshape(-1), order, barycentric)
    parts = ranges(count, grain=16384)
    found = share(lambda *part: embed(*given, *part), parts)
    keys, numbers = _sort_keys(np.concatenate(found), int(strides[-1]) * (count // size))
    firsts = dict(zip(parts, np.cumsum([0, *map(len, found)]), strict=False))
    share(lambda *part: _renumber(corners, numbers[firsts[part] :], *part), parts)
    entries, sources, starts = _by_vertex(corners, len(keys))
    built = corners, order, barycentric, keys, strides, entries, sources, starts
    found = list(map(torch.from_numpy, built))
    if padded:
        found[3], found[7] = fill_up(found[3], found[7], len(entries))
    return tuple(found)


def neighbours(keys: Tensor, strides: Tensor, radius: int) -> Tensor:
    """See ``crfgrad.ops.lattice.lattice_neighbours``."""
    offsets = geometry.tap_offsets(len(strides) - 1, radius)
    found = np.empty((len(offsets), len(keys) + 1), np.int32)
    found[0] = np.arange(len(keys) + 1)
    found[0, np.searchsorted(keys.numpy(), PADDED) :] = len(keys)
    _find_pairs(keys, strides, offsets[1::2], found[1:])
    return torch.from_numpy(found)


def axes(keys: Tensor, strides: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See ``crfgrad.ops.lattice.lattice_axes``."""
    found = np.empty((2 * len(strides), len(keys) + 1), np.int32)
    _find_pairs(keys, strides, geometry.axis_offsets(len(strides) - 1), found)
    return torch.from_numpy(found), *follow(found)


def _find_pairs(keys: Tensor, strides: Tensor, offsets: Tensor, found: np.ndarray) -> None:
    """Vertices at each of the offsets (t, d), and at the opposite ones: (2t, V + 1); V where there is none."""
    steps = (offsets @ strides[:-1]).numpy()
    run(_find, len(steps), keys.numpy(), steps, found, grain=1)


def _by_vertex(corners: np.ndarray, vertices: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Flat indices of the corners, sorted by vertex and then ascending, their pixels, and where each vertex begins.

    Shape: corners (N, d + 1) -> (N * (d + 1),), (N * (d + 1),), (V + 2,), all int32.
    """
    flat = corners.reshape(-1)
    entries, sources = np.empty((2, len(flat)), np.int32)
    parts = ranges(len(flat), grain=65536)
    counts = np.array(share(lambda start, stop: _count(flat, vertices, start, stop), parts))  # (parts, V)
    starts = np.concatenate([[0], np.cumsum(counts.sum(0))]).astype(np.int32)
    places = dict(zip(parts, starts[:-1] + np.cumsum(counts, axis=0) - counts, strict=True))
    share(lambda *part: _distribute(flat, corners.shape[1], places[part], entries, sources, *part), parts)
    return entries, sources, np.append(starts, starts[-1])


def _key_space(points: np.ndarray, batch: int, radius: int) -> tuple[np.ndarray, np.ndarray]:
    """Strides of the keys, and the coordinates that count as 0."""
    parts = run(extent, len(points), points)
    ends = np.stack([np.min([part[0] for part in parts], axis=0), np.max([part[1] for part in parts], axis=0)])
    products = np.sort(embedding_matrix(points.shape[1]).numpy() * ends[:, None], axis=0)  # (2, d, d)
    lowest, highest = np.floor(products.sum(axis=2))
    lowest -= 1  # sums in another order may round to the next cell
    try:
        strides = key_strides((highest + 1 - lowest).tolist(), batch, radius)
    except ValueError:  # features that go together span less than each of them by itself
        cells = geometry.embed(torch.from_numpy(points))[0]
        lowest = cells.amin(0).numpy()
        strides = key_strides((cells.amax(0).numpy() - lowest).tolist(), batch, radius)
    return np.array(strides, np.int64), lowest


def _sort_keys(keys: np.ndarray, space: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys below ``space`` in ascending order, each once, and the place of each of the given ones among them."""
    bits = len(keys).bit_length()
    if space.bit_length() + bits < 64:
        words = np.sort(keys << bits | np.arange(len(keys)))  # many times as fast as np.argsort on some processors
        order, keys = words & (1 << bits) - 1, words >> bits
    else:
        order = np.argsort(keys)
        keys = keys[order]
    distinct, numbers = np.empty_like(keys), np.empty(len(keys), np.int32)
    count = _rank_keys(keys, order, distinct, numbers)
    return distinct[:count], numbers


@kernel
def _rank_keys(keys: np.ndarray, order: np.ndarray, distinct: np.ndarray, numbers: np.ndarray) -> int:
    """Numbers ascending keys, and returns how many there are."""
    vertex = -1
    for j in range(len(keys)):
        vertex += j == 0 or keys[j] != keys[j - 1]
        distinct[vertex] = keys[j]
        numbers[order[j]] = vertex
    return vertex + 1


@kernel
def _renumber(corners: np.ndarray, numbers: np.ndarray, start: int, stop: int) -> None:
    """Replaces the corners of points by their numbers."""
    for i in range(start, stop):
        for k in range(corners.shape[1]):
            corners[i, k] = numbers[corners[i, k]]


@kernel
def _count(corners: np.ndarray, vertices: int, start: int, stop: int) -> np.ndarray:
    """How many corners there are of each vertex."""
    counts = np.zeros(vertices, np.int32)
    for j in range(start, stop):
        counts[corners[j]] += 1
    return counts


@kernel
def _distribute(
    corners: np.ndarray, size: int, places: np.ndarray, entries: np.ndarray, sources: np.ndarray, start: int, stop: int
) -> None:
    """Writes the index of each corner, and its pixel, to the next place of its vertex."""
    for j in range(start, stop):
        vertex = corners[j]
        entries[places[vertex]] = j
        sources[places[vertex]] = j // size
        places[vertex] += 1


@kernel
def _find(keys: np.ndarray, steps: np.ndarray, found: np.ndarray, start: int, stop: int) -> None:
    """Goes through the ascending keys at two places, a step apart, in four stretches at a time."""
    size = len(keys)
    opposite = np.empty(size + 1, np.int32)
    for k in range(start, stop):
        step, row = steps[k], found[2 * k]
        e1, e2, e3 = size // 4, size // 2, size * 3 // 4
        i0, i1, i2, i3 = 0, e1, e2, e3
        j0, j1 = _position(keys, keys[0] + step), _position(keys, keys[e1] + step)
        j2, j3 = _position(keys, keys[e2] + step), _position(keys, keys[e3] + step)
        while i0 < e1 and i1 < e2 and i2 < e3 and i3 < size and j3 < size:
            i0, j0 = _advance(keys, step, i0, j0, row)
            i1, j1 = _advance(keys, step, i1, j1, row)
            i2, j2 = _advance(keys, step, i2, j2, row)
            i3, j3 = _advance(keys, step, i3, j3, row)
        _finish(keys, step, i0, j0, e1, row)
        _finish(keys, step, i1, j1, e2, row)
        _finish(keys, step, i2, j2, e3, row)
        _finish(keys, step, i3, j3, size, row)
        for v in range(size):
            opposite[v] = size
        for v in range(size):
            opposite[row[v]] = v
        row[size] = found[2 * k + 1, size] = size
        for v in range(size):
            found[2 * k + 1, v] = opposite[v]


@kernel
def _position(keys: np.ndarray, target: int) -> int:
    """How many of the ascending keys are smaller."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < target:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _advance(keys: np.ndarray, step: int, i: int, j: int, row: np.ndarray) -> tuple[int, int]:
    """One step of a merge, without branches."""
    target, key = keys[i] + step, keys[j]
    row[i] = j if key == target else len(keys)
    return i + (target <= key), j + (key <= target)


@kernel
def _finish(keys: np.ndarray, step: int, i: int, j: int, end: int, row: np.ndarray) -> None:
    while i < end and j < len(keys):
        i, j = _advance(keys, step, i, j, row)
    while i < end:
        row[i] = len(keys)
        i += 1
