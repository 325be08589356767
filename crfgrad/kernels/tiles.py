"""Spectra of the tiles of an image, and images from the spectra of tiles.

A few tiles are transformed at a time, their labels side by side, so that a vector holds the same pixel or
frequency of several labels, and what lies between pixels and spectra stays in the cache.
"""

from typing import NamedTuple

import numpy as np

from crfgrad.kernels.fourier import LANES, WORK, real_inverse, real_transform, swapped, transform
from crfgrad.kernels.parallel import kernel

COLUMNS = 8  # of pixels that are read at a time

Triple = tuple[int, int, int]


class Layout(NamedTuple):
    """Where tiles lie, in three dimensions; tile n covers pixels from n * step + origin.

    Of its places, those from ``first`` to ``last`` are used, as far as they are inside the image.
    """

    sizes: Triple
    tile: Triple
    counts: Triple
    step: Triple
    origin: Triple
    first: Triple
    last: Triple


class Plan(NamedTuple):
    """Powers for the transforms along the three dimensions, and to part even and odd pixels."""

    first: np.ndarray
    second: np.ndarray
    third: np.ndarray
    halves: np.ndarray


@kernel
def forward(
    field: np.ndarray,
    spectra: np.ndarray,
    layout: Layout,
    plan: Plan,
    scale: np.ndarray,
    group: int,
    start: int,
    stop: int,
) -> None:
    """Spectra of the tiles from ``start`` to ``stop``, ``group`` at a time.

    Shape: field (pixels, C), spectra (F, tiles * C, 2).
    """
    (t0, t1, t2), channels = layout.tile, field.shape[1]
    lanes, pixels, work, planes, line = _buffers(field, layout.tile, group)
    slab, plane = len(planes) // (t0 + 2), len(planes) // 2
    for begin in range(start, stop, group):
        end = min(begin + group, stop)
        for y in range(t1):
            for x in range(0, t2, COLUMNS):
                pixels[:] = 0
                _move(pixels, field, False, layout, begin, end, y, x, lanes)
                for lane in range(0, min(COLUMNS, t2 - x) * lanes, LANES):
                    target = (planes, (y * t2 + x) * lanes + lane, slab, plane)
                    real_transform((pixels, lane, len(pixels) // t0), target, work, plan.first, plan.halves, scale, t0)
        for f0 in range(t0 // 2 + 1):
            if t1 > 1:
                rows = (planes, f0 * slab, t2 * lanes, plane)
                transform(rows, rows, work, plan.second, t1, t2 * lanes)
            for f1 in range(t1):
                rows = (planes, f0 * slab + f1 * t2 * lanes, lanes, plane)
                transform(rows, _line(line, lanes), work, plan.third, t2, lanes)
                for f2 in range(t2):
                    pairs = spectra[(f0 * t1 + f1) * t2 + f2, begin * channels : end * channels]
                    real, imaginary = line[f2 * lanes : (f2 + 1) * lanes], line[(t2 + f2) * lanes :]
                    for n in range(len(pairs)):
                        pairs[n, 0] = real[n]
                        pairs[n, 1] = imaginary[n]


@kernel
def backward(
    spectra: np.ndarray,
    field: np.ndarray,
    layout: Layout,
    plan: Plan,
    scale: np.ndarray,
    group: int,
    start: int,
    stop: int,
) -> None:
    """Adds the tiles from ``start`` to ``stop`` to a field, ``group`` at a time."""
    (t0, t1, t2), channels = layout.tile, field.shape[1]
    lanes, pixels, work, planes, line = _buffers(field, layout.tile, group)
    slab, plane = len(planes) // (t0 + 2), len(planes) // 2
    for begin in range(start, stop, group):
        end = min(begin + group, stop)
        for f0 in range(t0 // 2 + 1):
            for f1 in range(t1):
                for f2 in range(t2):
                    pairs = spectra[(f0 * t1 + f1) * t2 + f2, begin * channels : end * channels]
                    real, imaginary = line[f2 * lanes : (f2 + 1) * lanes], line[(t2 + f2) * lanes :]
                    for n in range(len(pairs)):
                        real[n] = pairs[n, 0]
                        imaginary[n] = pairs[n, 1]
                rows = (planes, f0 * slab + f1 * t2 * lanes, lanes, plane)
                transform(swapped(_line(line, lanes)), swapped(rows), work, plan.third, t2, lanes)
            if t1 > 1:
                rows = swapped((planes, f0 * slab, t2 * lanes, plane))
                transform(rows, rows, work, plan.second, t1, t2 * lanes)
        for y in range(t1):
            for x in range(0, t2, COLUMNS):
                for lane in range(0, min(COLUMNS, t2 - x) * lanes, LANES):
                    source = (planes, (y * t2 + x) * lanes + lane, slab, plane)
                    real_inverse(source, (pixels, lane, len(pixels) // t0), work, plan.first, plan.halves, scale, t0)
                _move(pixels, field, True, layout, begin, end, y, x, lanes)


@kernel
def _buffers(field: np.ndarray, tile: Triple, group: int) -> tuple:
    """Lanes, and memory for pixels, within a transform, between transforms and for a line of frequencies.

    Steps are more than powers of two, whose multiples share a place in the cache.
    """
    t0, t1, t2 = tile
    lanes = (group * field.shape[1] + LANES - 1) // LANES * LANES
    pixels = np.zeros(t0 * (COLUMNS * lanes + LANES), field.dtype)
    planes = np.zeros((t0 + 2) * (t1 * t2 * lanes + LANES), field.dtype)
    return lanes, pixels, np.zeros(WORK, field.dtype), planes, np.zeros(2 * t2 * lanes, field.dtype)


@kernel
def _line(line: np.ndarray, lanes: int) -> tuple:
    """Complex rows of a line of frequencies."""
    return line, np.int64(0), lanes, len(line) // 2


@kernel
def _move(
    pixels: np.ndarray,
    field: np.ndarray,
    back: bool,
    layout: Layout,
    begin: int,
    end: int,
    y: int,
    x: int,
    lanes: int,
) -> None:
    """Reads columns of some tiles side by side, from row y and column x; or adds them to the field."""
    channels, step = field.shape[1], len(pixels) // layout.tile[0]
    for tile in range(begin, end):
        start, rows, stride, columns, row, column = _window(layout, tile, y, x)
        for z in range(rows):
            for k in range(columns):
                place = (row + z) * step + (column + k) * lanes + (tile - begin) * channels
                one, other = pixels[place : place + channels], field[start + z * stride + k]
                for c in range(channels):
                    if back:
                        other[c] += one[c]
                    else:
                        one[c] = other[c]


@kernel
def _window(layout: Layout, tile: int, y: int, x: int) -> tuple[int, int, int, int, int, int]:
    """Which pixels of a tile are in the image, of those in row y and some columns from x.

    Returns:
        The first of them, their rows, the distance of rows, their columns, and the row and column of the first.
    """
    rest, c2 = tile // layout.counts[2], tile % layout.counts[2] * layout.step[2] + layout.origin[2]
    rest, c1 = rest // layout.counts[1], rest % layout.counts[1] * layout.step[1] + layout.origin[1]
    image, c0 = rest // layout.counts[0], rest % layout.counts[0] * layout.step[0] + layout.origin[0]
    s0, s1, s2 = layout.sizes
    # the first and last places of the tile that are used and inside the image
    z_first, z_last = max(layout.first[0], -c0), min(layout.last[0], s0 - c0)
    y_first, y_last = max(layout.first[1], -c1), min(layout.last[1], s1 - c1)
    x_first, x_last = max(layout.first[2], -c2, x), min(layout.last[2], s2 - c2, x + COLUMNS)
    rows = max(0, z_last - z_first) if y_first <= y < y_last else 0
    start = ((image * s0 + c0 + z_first) * s1 + c1 + y) * s2 + c2 + x_first
    return start, rows, s1 * s2, max(0, x_last - x_first), z_first, x_first - x
