"""Compiled twins of ``crfgrad.ops.spectra``: the same functions, for tensors on a CPU.

A few tiles are transformed at a time, their labels side by side, so that a vector holds the same pixel or
frequency of sixteen labels, and what lies between pixels and spectra stays in the cache. In there, real and
imaginary parts are apart. A real transform of n pixels is a complex one of n / 2, whose real parts are the
even pixels; a complex one of a * b numbers is a pass of radix a and one of radix b; an inverse one is the
transform with real and imaginary parts exchanged, up to a factor.

Arrays are flat. ``rows`` are a tuple (array, start, step, plane): row k begins at start + k * step, and its
imaginary parts are ``plane`` behind its real parts.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from torch import Tensor

from crfgrad.kernels.matrix import inline
from crfgrad.kernels.parallel import kernel, ranges, run, share
from crfgrad.ops import spectra as plain
from crfgrad.ops.spectra import tile_size

LANES = 16  # numbers in a vector
LONGEST = 256  # side of a tile
COLUMNS = 8  # of pixels that are read at a time
CACHE = 1 << 20  # bytes for the tiles that are transformed at a time
ROWS = 4  # of a matrix product that are summed at a time

Pair = tuple[ir.Value, ir.Value]
"""Real and imaginary parts."""


class Layout(NamedTuple):
    """Where tiles lie, in three dimensions; tile n covers pixels from n * step + origin.

    Of its places, those from ``first`` to ``last`` are used, as far as they are inside the image.
    """

    sizes: tuple[int, int, int]
    tile: tuple[int, int, int]
    counts: tuple[int, int, int]
    step: tuple[int, int, int]
    origin: tuple[int, int, int]
    first: tuple[int, int, int]
    last: tuple[int, int, int]


class Plan(NamedTuple):
    """Powers of exp(-2 pi i / n) as pairs: for the three transforms, and to part even and odd pixels."""

    first: np.ndarray
    second: np.ndarray
    third: np.ndarray
    halves: np.ndarray


def analyse(q: Tensor, kernel_size: list[int]) -> Tensor:
    """See ``crfgrad.ops.spectra``."""
    if max(tile_size(kernel_size)) > LONGEST:
        return plain.analyse(q, kernel_size)
    return _to_spectra(q, _analysis(q.shape[1:-1], kernel_size), 1, 1)


def analyse_transpose(spectra: Tensor, shape: list[int], kernel_size: list[int]) -> Tensor:
    """See ``crfgrad.ops.spectra``."""
    if max(tile_size(kernel_size)) > LONGEST:
        return plain.analyse_transpose(spectra, shape, kernel_size)
    layout = _analysis(shape[1:], kernel_size)
    slab = layout.counts[1] * layout.counts[2]
    slabs = shape[0] * layout.counts[0]
    parts = 1 if torch.get_num_threads() == 1 else max(1, min(2 * torch.get_num_threads(), slabs))
    bounds = [(slabs * part // parts * slab, slabs * (part + 1) // parts * slab) for part in range(parts)]
    # neighbours overlap, so that no two of them are added at the same time
    return _from_spectra(spectra, shape, layout, 1, 0.5, [bounds[::2], bounds[1::2]])


def synthesise(spectra: Tensor, shape: list[int], kernel_size: list[int]) -> Tensor:
    """See ``crfgrad.ops.spectra``."""
    tile = tile_size(kernel_size)
    if max(tile) > LONGEST:
        return plain.synthesise(spectra, shape, kernel_size)
    parts = ranges(spectra.shape[1], _group(spectra.shape[0], spectra.shape[2]))
    return _from_spectra(spectra, shape, _synthesis(shape[1:], kernel_size), 1 / math.prod(tile), 1, [parts])


def synthesise_transpose(field: Tensor, kernel_size: list[int]) -> Tensor:
    """See ``crfgrad.ops.spectra``."""
    tile = tile_size(kernel_size)
    if max(tile) > LONGEST:
        return plain.synthesise_transpose(field, kernel_size)
    return _to_spectra(field, _synthesis(field.shape[1:-1], kernel_size), 1 / math.prod(tile), 2)


def transform(kernel: Tensor) -> Tensor:
    """See ``crfgrad.ops.spectra``."""
    sizes = list(kernel.shape[2:])
    if max(tile_size(sizes)) > LONGEST:
        return plain.transform(kernel)
    field = kernel.flip(*range(2, kernel.ndim)).movedim(0, -1)  # (C_in, *K, C_out)
    return _to_spectra(field, _whole(sizes), 1, 1)


def transform_transpose(spectrum: Tensor, shape: list[int]) -> Tensor:
    """See ``crfgrad.ops.spectra``."""
    sizes = list(shape[2:])
    if max(tile_size(sizes)) > LONGEST:
        return plain.transform_transpose(spectrum, shape)
    parts = ranges(shape[1], _group(spectrum.shape[0], shape[0]))
    field = _from_spectra(spectrum, [shape[1], *sizes], _whole(sizes), 1, 0.5, [parts])  # (C_in, *K, C_out)
    return field.movedim(-1, 0).flip(*range(2, len(shape))).contiguous()


def product(spectra: Tensor, matrices: Tensor) -> Tensor:
    """See ``crfgrad.ops.spectra``."""
    (count, rows, terms, _), columns = spectra.shape, matrices.shape[2]
    out = spectra.new_empty(count, rows, columns, 2)
    run(multiply, count, *_flat(spectra, matrices, out), (rows, terms, columns), (2 * terms, 2), False, 1.0, grain=16)
    return out


def product_field(grad: Tensor, matrices: Tensor) -> Tensor:
    """See ``crfgrad.ops.spectra``."""
    (count, rows, terms, _), columns = grad.shape, matrices.shape[1]
    out = grad.new_empty(count, rows, columns, 2)
    run(multiply, count, *_flat(grad, matrices, out), (rows, terms, columns), (2 * terms, 2), True, 1.0, grain=16)
    return out


def product_kernel(grad: Tensor, spectra: Tensor) -> Tensor:
    """See ``crfgrad.ops.spectra``."""
    (count, terms, columns, _), rows = grad.shape, spectra.shape[2]
    out = grad.new_empty(count, rows, columns, 2)
    run(multiply, count, *_flat(spectra, grad, out), (rows, terms, columns), (2, 2 * rows), False, -1.0, grain=16)
    return out


def _to_spectra(field: Tensor, layout: Layout, factor: float, factor_inside: float) -> Tensor:
    """Spectra of tiles, times a factor; those that stand for two frequencies times another one."""
    channels, tiles = field.shape[-1], field.shape[0] * math.prod(layout.counts)
    out = field.new_empty(_frequencies(layout.tile), tiles, channels, 2)
    pixels, spectra = _flat(field, out)
    scale = _scale(layout.tile, factor / 2, factor_inside, pixels.dtype)
    group = _group(len(out), channels)
    run(forward, tiles, pixels, spectra, layout, channels, _plan(layout.tile, pixels.dtype), scale, group, grain=group)
    return out


def _from_spectra(
    spectra: Tensor,
    shape: list[int],
    layout: Layout,
    factor: float,
    factor_inside: float,
    rounds: list[list[tuple[int, int]]],
) -> Tensor:
    """Sum of tiles; each round has parts that may be added at the same time."""
    out = spectra.new_zeros(*shape, spectra.shape[2])
    numbers, pixels = _flat(spectra, out)
    scale = _scale(layout.tile, factor, factor_inside, numbers.dtype)
    plan, group = _plan(layout.tile, numbers.dtype), _group(len(spectra), spectra.shape[2])
    for parts in filter(None, rounds):
        share(lambda start, stop: backward(numbers, pixels, layout, out.shape[-1], plan, scale, group, start, stop), parts)
    return out


def _flat(*tensors: Tensor) -> list[np.ndarray]:
    return [tensor.detach().contiguous().view(-1).numpy() for tensor in tensors]


def _analysis(sizes: list[int], kernel_size: list[int]) -> Layout:
    before = [-(size // 2) for size in kernel_size]
    return _layout(sizes, kernel_size, before, [0] * len(sizes), tile_size(kernel_size))


def _synthesis(sizes: list[int], kernel_size: list[int]) -> Layout:
    invalid = [size - 1 for size in kernel_size]
    return _layout(sizes, kernel_size, [-margin for margin in invalid], invalid, tile_size(kernel_size))


def _whole(sizes: list[int]) -> Layout:
    """One tile for each image, which is a kernel."""
    none = [0] * len(sizes)
    return _layout(sizes, sizes, none, none, sizes)._replace(counts=(1, 1, 1))


def _layout(sizes: list[int], kernel_size: list[int], origin: list[int], first: list[int], last: list[int]) -> Layout:
    tile = tile_size(kernel_size)
    step = [side - size + 1 for side, size in zip(tile, kernel_size, strict=True)]
    counts = [-(-size // one) for size, one in zip(sizes, step, strict=True)]
    fields = zip((sizes, tile, counts, step, origin, first, last), (1, 1, 1, 1, 0, 0, 1), strict=True)
    return Layout(*(_three(list(entries), fill) for entries, fill in fields))


def _three(entries: list[int], fill: int) -> tuple[int, ...]:
    """Entries for three dimensions: the last two dimensions of an image are the first and the third."""
    missing = 3 - len(entries)
    return tuple(entries[:1] + [fill] * missing + entries[1:])


def _frequencies(tile: tuple[int, int, int]) -> int:
    return (tile[0] // 2 + 1) * tile[1] * tile[2]


def _group(frequencies: int, channels: int) -> int:
    """How many tiles are transformed at a time."""
    return max(1, min(4 * LANES, CACHE // (8 * frequencies)) // channels)


def _scale(tile: tuple[int, int, int], ends: float, factor_inside: float, dtype: np.dtype) -> np.ndarray:
    """Factors of frequencies along the first dimension; frequencies k and n / 2 - k have the same."""
    scale = np.full(tile[0] // 4 + 1, ends * factor_inside)
    scale[0] = ends
    return scale.astype(dtype)


@lru_cache
def _plan(tile: tuple[int, int, int], dtype: np.dtype) -> Plan:
    tables = [np.outer(np.arange(_radix(n)), np.arange(n // _radix(n))) / n for n in (tile[0] // 2, *tile[1:])]
    tables.append(np.arange(tile[0] // 4 + 1) / tile[0])
    pairs = [np.stack([np.cos(2 * np.pi * turns), -np.sin(2 * np.pi * turns)], -1) for turns in tables]
    return Plan(*(table.reshape(-1).astype(dtype) for table in pairs))


def _radix(n: int) -> int:
    """The first radix a of a transform of n = a * b numbers, as in ``_fourier``."""
    return int(2 ** math.ceil(math.log2(n) / 2))


@kernel
def forward(
    field: np.ndarray,
    spectra: np.ndarray,
    layout: Layout,
    channels: int,
    plan: Plan,
    scale: np.ndarray,
    group: int,
    start: int,
    stop: int,
) -> None:
    """Spectra of the tiles from ``start`` to ``stop``, ``group`` at a time."""
    t0, t1, t2 = layout.tile
    lanes, pixels, work, planes, line = _buffers(field, layout.tile, group * channels)
    slab, plane, vectors = len(planes) // (t0 + 2), len(planes) // 2, lanes // LANES
    tiles = len(spectra) // (2 * channels * (t0 // 2 + 1) * t1 * t2)
    for begin in range(start, stop, group):
        count = min(group, stop - begin)
        for y in range(t1):
            for x in range(0, t2, COLUMNS):
                width = min(COLUMNS, t2 - x)
                pixels[:] = 0
                _read(field, pixels, layout, channels, begin, count, y, x, width, lanes)
                for lane in range(0, width * lanes, LANES):
                    target = (planes, (y * t2 + x) * lanes + lane, slab, plane)
                    _real((pixels, lane, width * lanes + LANES, 0), target, work, plan, scale, t0)
        for f0 in range(t0 // 2 + 1):
            if t1 > 1:
                rows = (planes, f0 * slab, t2 * lanes, plane)
                _fourier(rows, rows, work, plan.second, t1, t2 * vectors)
            for f1 in range(t1):
                rows = (planes, f0 * slab + f1 * t2 * lanes, lanes, plane)
                _fourier(rows, (line, 0, lanes, t2 * lanes), work, plan.third, t2, vectors)
                for f2 in range(t2):
                    place = (((f0 * t1 + f1) * t2 + f2) * tiles + begin) * channels * 2
                    for lane in range(0, count * channels, LANES):
                        source = (line, lane, lanes, t2 * lanes)
                        _interleave(source, f2, spectra, place + 2 * lane, 2 * (count * channels - lane))


@kernel
def backward(
    spectra: np.ndarray,
    field: np.ndarray,
    layout: Layout,
    channels: int,
    plan: Plan,
    scale: np.ndarray,
    group: int,
    start: int,
    stop: int,
) -> None:
    """Adds the tiles from ``start`` to ``stop`` to a field, ``group`` at a time."""
    t0, t1, t2 = layout.tile
    lanes, pixels, work, planes, line = _buffers(field, layout.tile, group * channels)
    slab, plane, vectors = len(planes) // (t0 + 2), len(planes) // 2, lanes // LANES
    tiles = len(spectra) // (2 * channels * (t0 // 2 + 1) * t1 * t2)
    for begin in range(start, stop, group):
        count = min(group, stop - begin)
        for f0 in range(t0 // 2 + 1):
            for f1 in range(t1):
                for f2 in range(t2):
                    place = (((f0 * t1 + f1) * t2 + f2) * tiles + begin) * channels * 2
                    for lane in range(0, count * channels, LANES):
                        target = (line, lane, lanes, t2 * lanes)
                        _part(spectra, place + 2 * lane, target, f2, 2 * (count * channels - lane))
                rows = (planes, plane + f0 * slab + f1 * t2 * lanes, lanes, -plane)
                _fourier((line, t2 * lanes, lanes, -t2 * lanes), rows, work, plan.third, t2, vectors)
            if t1 > 1:
                rows = (planes, plane + f0 * slab, t2 * lanes, -plane)
                _fourier(rows, rows, work, plan.second, t1, t2 * vectors)
        for y in range(t1):
            for x in range(0, t2, COLUMNS):
                width = min(COLUMNS, t2 - x)
                for lane in range(0, width * lanes, LANES):
                    source = (planes, (y * t2 + x) * lanes + lane, slab, plane)
                    _real_inverse(source, (pixels, lane, width * lanes + LANES, 0), work, plan, scale, t0)
                _add(pixels, field, layout, channels, begin, count, y, x, width, lanes)


@kernel
def _buffers(like: np.ndarray, tile: tuple[int, int, int], used: int) -> tuple:
    """Lanes, and memory for pixels, within a transform, between transforms and for a line of frequencies.

    Steps are more than powers of two, whose multiples share a place in the cache.
    """
    t0, t1, t2 = tile
    lanes = (used + LANES - 1) // LANES * LANES
    pixels = np.zeros(t0 * (COLUMNS * lanes + LANES), like.dtype)
    work = np.empty(4 * LONGEST * LANES, like.dtype)
    planes = np.zeros((t0 + 2) * (t1 * t2 * lanes + LANES), like.dtype)
    return lanes, pixels, work, planes, np.zeros(2 * t2 * lanes, like.dtype)


@kernel
def _read(
    field: np.ndarray,
    pixels: np.ndarray,
    layout: Layout,
    channels: int,
    begin: int,
    count: int,
    y: int,
    x: int,
    width: int,
    lanes: int,
) -> None:
    """Columns of some tiles side by side, from row y and column x."""
    for tile in range(count):
        start, rows, stride, columns, row, column = _window(layout, begin + tile, y, x, width)
        for z in range(rows):
            source = (start + z * stride) * channels
            target = (row + z) * (width * lanes + LANES) + column * lanes + tile * channels
            for _ in range(columns):
                for c in range(0, channels, LANES):
                    _move(False, field, source + c, pixels, target + c, channels - c)
                source += channels
                target += lanes


@kernel
def _add(
    pixels: np.ndarray,
    field: np.ndarray,
    layout: Layout,
    channels: int,
    begin: int,
    count: int,
    y: int,
    x: int,
    width: int,
    lanes: int,
) -> None:
    """Adds columns of some tiles to a field: the transpose of ``_read``."""
    for tile in range(count):
        start, rows, stride, columns, row, column = _window(layout, begin + tile, y, x, width)
        for z in range(rows):
            target = (start + z * stride) * channels
            source = (row + z) * (width * lanes + LANES) + column * lanes + tile * channels
            for _ in range(columns):
                for c in range(0, channels, LANES):
                    _move(True, pixels, source + c, field, target + c, channels - c)
                source += lanes
                target += channels


@kernel
def _window(layout: Layout, tile: int, y: int, x: int, width: int) -> tuple[int, int, int, int, int, int]:
    """Which pixels of a tile are in the image, of those in row y and ``width`` columns from x.

    Returns:
        The first of them, their rows, the distance of rows, their columns, and the row and column of the first.
    """
    rest, c2 = tile // layout.counts[2], tile % layout.counts[2] * layout.step[2] + layout.origin[2]
    rest, c1 = rest // layout.counts[1], rest % layout.counts[1] * layout.step[1] + layout.origin[1]
    image, c0 = rest // layout.counts[0], rest % layout.counts[0] * layout.step[0] + layout.origin[0]
    z_first, z_last = _span(layout, 0, c0, 0, layout.tile[0])
    y_first, y_last = _span(layout, 1, c1, y, y + 1)
    x_first, x_last = _span(layout, 2, c2, x, x + width)
    rows = z_last - z_first if y_last > y_first else 0
    s0, s1, s2 = layout.sizes
    start = ((image * s0 + c0 + z_first) * s1 + c1 + y) * s2 + c2 + x_first
    return start, rows, s1 * s2, x_last - x_first, z_first, x_first - x


@kernel
def _span(layout: Layout, axis: int, corner: int, start: int, stop: int) -> tuple[int, int]:
    """Which places from ``start`` to ``stop`` of a tile are used and inside the image."""
    first = max(start, layout.first[axis], -corner)
    return first, max(first, min(stop, layout.last[axis], layout.sizes[axis] - corner))


@kernel
def _real(source: tuple, target: tuple, work: np.ndarray, plan: Plan, scale: np.ndarray, n: int) -> None:
    """Half of the frequencies of n real rows, times a scale."""
    half = n // 2
    array, start, step, _ = source
    rows = (work, 0, LANES, half * LANES)
    _fourier((array, start, 2 * step, step), rows, work, plan.first, half, 1)
    for k in range(half // 2 + 1):
        _split(rows, target, k, half, plan.halves[2 * k], plan.halves[2 * k + 1], scale[k])


@kernel
def _real_inverse(source: tuple, target: tuple, work: np.ndarray, plan: Plan, scale: np.ndarray, n: int) -> None:
    """n real rows from half of the frequencies, times a scale; equals torch's, but for a factor n."""
    half = n // 2
    array, start, step, _ = target
    for k in range(half // 2 + 1):
        rows = (work, 0, LANES, half * LANES)
        imaginary = scale[k] * (k > 0)  # of the first and last frequencies only the real parts count
        _join(source, rows, k, half, plan.halves[2 * k], plan.halves[2 * k + 1], scale[k], imaginary)
    swapped = (work, half * LANES, LANES, -half * LANES)
    _fourier(swapped, (array, start + step, 2 * step, -step), work, plan.first, half, 1)


@kernel
def _fourier(source: tuple, target: tuple, work: np.ndarray, powers: np.ndarray, n: int, vectors: int) -> None:
    """Transform of n complex rows, of which each has a number of vectors; may be in place."""
    if n == 1:
        _passes(1, 1, source, target, work, powers, vectors)
    elif n == 2:
        _passes(2, 1, source, target, work, powers, vectors)
    elif n == 4:
        _passes(2, 2, source, target, work, powers, vectors)
    elif n == 8:
        _passes(4, 2, source, target, work, powers, vectors)
    elif n == 16:
        _passes(4, 4, source, target, work, powers, vectors)
    elif n == 32:
        _passes(8, 4, source, target, work, powers, vectors)
    elif n == 64:
        _passes(8, 8, source, target, work, powers, vectors)
    elif n == 128:
        _passes(16, 8, source, target, work, powers, vectors)
    elif n == 256:
        _passes(16, 16, source, target, work, powers, vectors)


@kernel
def multiply(
    left: np.ndarray,
    right: np.ndarray,
    out: np.ndarray,
    shape: tuple[int, int, int],
    steps: tuple[int, int],
    transpose: bool,
    sign: float,
    start: int,
    stop: int,
) -> None:
    """Products of complex matrices: ``shape`` is rows, terms and columns.

    ``steps`` are the distances of rows and of terms in the left matrices, which are conjugated if the sign
    is negative. The right ones are replaced by their conjugate transposes if ``transpose``.
    """
    rows, terms, columns = shape
    turned = np.empty(2 * terms * columns, left.dtype)
    for f in range(start, stop):
        whole = (left, 2 * f * rows * terms, *steps)
        into = 2 * f * rows * columns
        if transpose:
            _conjugate_transpose(right, 2 * f * terms * columns, turned, terms, columns)
            _multiply_one(whole, turned, 0, out, into, shape, sign)
        else:
            _multiply_one(whole, right, 2 * f * terms * columns, out, into, shape, sign)


@kernel
def _conjugate_transpose(source: np.ndarray, start: int, target: np.ndarray, rows: int, columns: int) -> None:
    for row in range(rows):
        for column in range(columns):
            place = start + 2 * (column * rows + row)
            target[2 * (row * columns + column)] = source[place]
            target[2 * (row * columns + column) + 1] = -source[place + 1]


@kernel
def _multiply_one(
    left: tuple,
    right: np.ndarray,
    right_start: int,
    out: np.ndarray,
    out_start: int,
    shape: tuple[int, int, int],
    sign: float,
) -> None:
    array, start, row_step, term_step = left
    rows, terms, columns = shape
    width, tall = 2 * columns, min(rows, ROWS)
    for first in range(0, rows, tall):
        row = min(first, rows - tall)  # the last rows may be done twice
        column = 0
        while column < width:
            rest = width - column
            one = (array, start + row * row_step, row_step, term_step)
            other = (right, right_start + column, width)
            into = (out, out_start + row * width + column, width)
            if tall < ROWS:
                for lone in range(tall):
                    one = (array, start + lone * row_step, row_step, term_step)
                    _sums(1, 1, one, other, (out, out_start + lone * width + column, width), terms, rest, sign)
                column += LANES
            elif rest > 2 * LANES:
                _sums(4, 3, one, other, into, terms, rest, sign)
                column += 3 * LANES
            elif rest > LANES:
                _sums(4, 2, one, other, into, terms, rest, sign)
                column += 2 * LANES
            else:
                _sums(4, 1, one, other, into, terms, rest, sign)
                column += LANES


@inline
def _passes(
    typing: Any, a: Any, b: Any, source: Any, target: Any, work: Any, powers: Any, vectors: Any
) -> tuple[Any, Callable[..., ir.Value]]:
    """Transform of a * b complex rows."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        first, last = (_Rows.of(context, builder, signature, args, place) for place in (2, 3))
        inside, factors = (_Vectors.of(context, builder, signature, args, place) for place in (4, 5))
        n, integer = a.literal_value * b.literal_value, args[6].type
        middle = _Rows(inside, integer(2 * LONGEST * LANES), integer(LANES), integer(n * LANES))
        with cgutils.for_range(builder, args[6]) as outer:
            lane = builder.mul(outer.index, integer(LANES))
            with cgutils.for_range(builder, integer(b.literal_value)) as loop:
                places = [builder.add(loop.index, integer(b.literal_value * j)) for j in range(a.literal_value)]
                rows = [first.load(place, lane) for place in places]
                for k, row in enumerate(inside.fourier(rows)):
                    middle.store(row, builder.add(builder.mul(loop.index, integer(a.literal_value)), integer(k)))
            with cgutils.for_range(builder, integer(a.literal_value)) as loop:
                places = [builder.add(loop.index, integer(a.literal_value * j)) for j in range(b.literal_value)]
                rows = [middle.load(place) for place in places]
                power = builder.mul(loop.index, integer(2 * b.literal_value))
                for j in range(1, b.literal_value):
                    factor = [factors.spread(builder.add(power, integer(2 * j + part))) for part in range(2)]
                    rows[j] = inside.times(rows[j], (factor[0], factor[1]))
                for place, row in zip(places, inside.fourier(rows), strict=True):
                    last.store(row, place, lane)
        return context.get_dummy_value()

    return types.void(a, b, source, target, work, powers, vectors), generate


@inline
def _split(
    typing: Any, source: Any, target: Any, k: Any, half: Any, cosine: Any, sine: Any, scale: Any
) -> tuple[Any, Callable[..., ir.Value]]:
    """Frequencies k and half - k of real rows from those of even plus i times odd rows."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        rows, result = (_Rows.of(context, builder, signature, args, place) for place in (0, 1))
        add, subtract = builder.fadd, builder.fsub
        mirror = builder.sub(args[3], args[2])
        (ar, ai), (br, bi) = rows.load(args[2]), rows.load(builder.srem(mirror, args[3]))
        cosine, sine, scale = (rows.vectors.splat(number) for number in args[4:])
        even = add(ar, br), subtract(ai, bi)
        odd = rows.vectors.times((add(ai, bi), subtract(br, ar)), (cosine, sine))
        sums = add(even[0], odd[0]), add(even[1], odd[1])
        differences = subtract(even[0], odd[0]), subtract(odd[1], even[1])
        for place, (real, imaginary) in ((args[2], sums), (mirror, differences)):
            result.store((builder.fmul(real, scale), builder.fmul(imaginary, scale)), place)
        return context.get_dummy_value()

    return types.void(source, target, k, half, cosine, sine, scale), generate


@inline
def _join(
    typing: Any, source: Any, target: Any, k: Any, half: Any, cosine: Any, sine: Any, scale: Any, imaginary: Any
) -> tuple[Any, Callable[..., ir.Value]]:
    """The inverse of ``_split``, with a scale for real and one for imaginary parts."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        rows, result = (_Rows.of(context, builder, signature, args, place) for place in (0, 1))
        add, subtract = builder.fadd, builder.fsub
        mirror = builder.sub(args[3], args[2])
        cosine, sine, scale, imaginary = (rows.vectors.splat(number) for number in args[4:])
        loaded = rows.load(args[2]), rows.load(mirror)
        (ar, ai), (br, bi) = ((builder.fmul(r, scale), builder.fmul(i, imaginary)) for r, i in loaded)
        even = add(ar, br), subtract(ai, bi)
        odd = rows.vectors.times((subtract(ar, br), add(ai, bi)), (cosine, builder.fneg(sine)))
        # row 0 is its own mirror image: the last one counts
        result.store((add(even[0], odd[1]), subtract(odd[0], even[1])), builder.srem(mirror, args[3]))
        result.store((subtract(even[0], odd[1]), add(even[1], odd[0])), args[2])
        return context.get_dummy_value()

    return types.void(source, target, k, half, cosine, sine, scale, imaginary), generate


@inline
def _move(
    typing: Any, add: Any, source: Any, start: Any, target: Any, into: Any, count: Any
) -> tuple[Any, Callable[..., ir.Value]]:
    """Copies or adds ``count`` numbers, at most one vector."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        first, last = (_Vectors.of(context, builder, signature, args, place) for place in (1, 3))
        mask = first.mask(args[5])
        moved = first.load_some(args[2], mask)
        if add.literal_value:
            moved = builder.fadd(moved, last.load_some(args[4], mask))
        last.store_some(moved, args[4], mask)
        return context.get_dummy_value()

    return types.void(add, source, start, target, into, count), generate


@inline
def _interleave(
    typing: Any, source: Any, k: Any, target: Any, into: Any, count: Any
) -> tuple[Any, Callable[..., ir.Value]]:
    """Writes row k as pairs: ``count`` numbers, at most two vectors."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        pair = _Rows.of(context, builder, signature, args, 0).load(args[1])
        pairs = _Vectors.of(context, builder, signature, args, 2)
        for part in range(2):
            order = [LANES * (lane % 2) + (LANES * part + lane) // 2 for lane in range(LANES)]
            mask = pairs.mask(builder.sub(args[4], args[4].type(LANES * part)))
            pairs.store_some(pairs.pick(*pair, order), builder.add(args[3], args[3].type(LANES * part)), mask)
        return context.get_dummy_value()

    return types.void(source, k, target, into, count), generate


@inline
def _part(
    typing: Any, source: Any, start: Any, target: Any, k: Any, count: Any
) -> tuple[Any, Callable[..., ir.Value]]:
    """The inverse of ``_interleave``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        pairs, halves = _Vectors.of(context, builder, signature, args, 0), []
        for part in range(2):
            mask = pairs.mask(builder.sub(args[4], args[4].type(LANES * part)))
            halves.append(pairs.load_some(builder.add(args[1], args[1].type(LANES * part)), mask))
        real, imaginary = (pairs.pick(*halves, [2 * lane + part for lane in range(LANES)]) for part in range(2))
        _Rows.of(context, builder, signature, args, 2).store((real, imaginary), args[3])
        return context.get_dummy_value()

    return types.void(source, start, target, k, count), generate


@inline
def _sums(
    typing: Any, rows: Any, vectors: Any, left: Any, right: Any, out: Any, terms: Any, count: Any, sign: Any
) -> tuple[Any, Callable[..., ir.Value]]:
    """A few rows of a product of complex matrices, ``count`` numbers wide, at most that many vectors.

    Real and imaginary parts of the left matrix are multiplied apart and meet after the last term.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        one, start, row_step, term_step = _unpack(context, builder, signature, args, 2)
        other, right_start, right_step = _unpack(context, builder, signature, args, 3)
        result, into, width = _unpack(context, builder, signature, args, 4)
        add, multiply = builder.add, builder.mul
        offsets = [start.type(LANES * v) for v in range(vectors.literal_value)]
        masks = [result.mask(builder.sub(args[6], offset)) for offset in offsets]
        lines = [start.type(row) for row in range(rows.literal_value)]
        totals = [[[result.variable() for _ in offsets] for _ in range(2)] for _ in lines]
        with cgutils.for_range(builder, args[5]) as loop:
            place = add(right_start, multiply(loop.index, right_step))
            loaded = [other.load_some(add(place, at), mask) for at, mask in zip(offsets, masks, strict=True)]
            place = add(start, multiply(loop.index, term_step))
            for line, parts in zip(lines, totals, strict=True):
                for part, sums in enumerate(parts):
                    number = one.spread(add(add(place, multiply(line, row_step)), start.type(part)))
                    for vector, total in zip(loaded, sums, strict=True):
                        builder.store(result.multiply_add(number, vector, builder.load(total)), total)
        signs = [args[7], builder.fneg(args[7])]
        turn = builder.fptrunc(signs[0], result.element) if result.element != signs[0].type else signs[0]
        signs = builder.fmul(result.splat(turn), ir.Constant(result.kind, [-1.0, 1.0] * (LANES // 2)))
        for line, (real, imaginary) in zip(lines, totals, strict=True):
            for r, i, at, mask in zip(real, imaginary, offsets, masks, strict=True):
                swapped = result.pick(builder.load(i), builder.load(i), [lane ^ 1 for lane in range(LANES)])
                value = result.multiply_add(swapped, signs, builder.load(r))
                result.store_some(value, add(add(into, multiply(line, width)), at), mask)
        return context.get_dummy_value()

    return types.void(rows, vectors, left, right, out, terms, count, sign), generate


class _Vectors:
    """A flat array, as LLVM sees it, and arithmetic of vectors."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: ir.Value) -> None:
        self.builder = builder
        self.data = context.make_array(kind)(context, builder, value).data
        self.element = context.get_data_type(kind.dtype)
        self.kind = ir.VectorType(self.element, LANES)
        self.align = context.get_abi_sizeof(self.element)

    @classmethod
    def of(cls, context: Any, builder: Any, signature: Any, args: Any, place: int) -> "_Vectors":
        return cls(context, builder, signature.args[place], args[place])

    def at(self, place: ir.Value) -> ir.Value:
        return self.builder.bitcast(self.builder.gep(self.data, [place]), self.kind.as_pointer())

    def load(self, place: ir.Value) -> ir.Value:
        return self.builder.load(self.at(place), align=self.align)

    def store(self, value: ir.Value, place: ir.Value) -> None:
        self.builder.store(value, self.at(place), align=self.align)

    def variable(self) -> ir.Value:
        """Zeros that may change: a register, once compiled."""
        zeros = ir.Constant(self.kind, [0.0] * LANES)
        place = cgutils.alloca_once_value(self.builder, zeros)
        self.builder.store(zeros, place)
        return place

    def mask(self, count: ir.Value) -> ir.Value:
        """True for the first ``count`` lanes."""
        lanes = ir.Constant(ir.VectorType(count.type, LANES), list(range(LANES)))
        return self.builder.icmp_signed("<", lanes, self.splat(count))

    def load_some(self, place: ir.Value, mask: ir.Value) -> ir.Value:
        arguments = [self.at(place), ir.IntType(32)(self.align), mask, ir.Constant(self.kind, [0.0] * LANES)]
        return self._masked("load", self.kind, arguments)

    def store_some(self, value: ir.Value, place: ir.Value, mask: ir.Value) -> None:
        self._masked("store", ir.VoidType(), [value, self.at(place), ir.IntType(32)(self.align), mask])

    def _masked(self, what: str, result: ir.Type, arguments: list[ir.Value]) -> ir.Value:
        name = f"llvm.masked.{what}.v{LANES}f{8 * self.align}.p0"
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), arguments)

    def pick(self, left: ir.Value, right: ir.Value, order: list[int]) -> ir.Value:
        """Lanes of two vectors."""
        return self.builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(ir.IntType(32), LANES), order))

    def splat(self, number: ir.Value) -> ir.Value:
        """A number in all lanes."""
        undefined = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
        lone = self.builder.insert_element(undefined, number, ir.IntType(32)(0))
        return self.pick(lone, undefined, [0] * LANES)

    def spread(self, place: ir.Value) -> ir.Value:
        """A number of the array in all lanes."""
        return self.splat(self.builder.load(self.builder.gep(self.data, [place])))

    def multiply_add(self, left: ir.Value, right: ir.Value, total: ir.Value) -> ir.Value:
        product = self.builder.fmul(left, right, flags=("contract",))
        return self.builder.fadd(total, product, flags=("contract",))

    def times(self, value: Pair, factor: Pair) -> Pair:
        """Product of complex numbers."""
        real = self.builder.fmul(value[0], factor[0], flags=("contract",))
        minus = self.builder.fmul(value[1], factor[1], flags=("contract",))
        imaginary = self.builder.fmul(value[0], factor[1], flags=("contract",))
        return (
            self.builder.fsub(real, minus, flags=("contract",)),
            self.multiply_add(value[1], factor[0], imaginary),
        )

    def fourier(self, values: list[Pair]) -> list[Pair]:
        """Transform of some vectors, from those of the even and of the odd ones."""
        if len(values) == 1:
            return values
        first, last = [], []
        halves = zip(self.fourier(values[::2]), self.fourier(values[1::2]), strict=True)
        for k, (even, odd) in enumerate(halves):
            real, imaginary = self._turned(odd, k, len(values))
            first.append((self.builder.fadd(even[0], real), self.builder.fadd(even[1], imaginary)))
            last.append((self.builder.fsub(even[0], real), self.builder.fsub(even[1], imaginary)))
        return first + last

    def _turned(self, value: Pair, k: int, size: int) -> Pair:
        """A value times exp(-2 pi i k / size)."""
        if k == 0:
            return value
        if 4 * k == size:
            return value[1], self.builder.fneg(value[0])
        angle = -2 * math.pi * k / size
        return self.times(value, (self._constant(math.cos(angle)), self._constant(math.sin(angle))))

    def _constant(self, number: float) -> ir.Value:
        return ir.Constant(self.kind, [number] * LANES)


class _Rows:
    """Complex rows, as LLVM sees them."""

    def __init__(self, vectors: _Vectors, start: ir.Value, step: ir.Value, plane: ir.Value) -> None:
        self.vectors, self.start, self.step, self.plane = vectors, start, step, plane

    @classmethod
    def of(cls, context: Any, builder: Any, signature: Any, args: Any, place: int) -> "_Rows":
        return cls(*_unpack(context, builder, signature, args, place))

    def load(self, row: ir.Value, lane: ir.Value | None = None) -> Pair:
        place = self._place(row, lane)
        return self.vectors.load(place), self.vectors.load(self.vectors.builder.add(place, self.plane))

    def store(self, value: Pair, row: ir.Value, lane: ir.Value | None = None) -> None:
        place = self._place(row, lane)
        self.vectors.store(value[0], place)
        self.vectors.store(value[1], self.vectors.builder.add(place, self.plane))

    def _place(self, row: ir.Value, lane: ir.Value | None) -> ir.Value:
        builder = self.vectors.builder
        place = builder.add(self.start, builder.mul(row, self.step))
        return place if lane is None else builder.add(place, lane)


def _unpack(context: Any, builder: Any, signature: Any, args: Any, place: int) -> list[Any]:
    """A tuple of an array and numbers, which become as wide as an index."""
    kinds = signature.args[place].types
    array, *numbers = cgutils.unpack_tuple(builder, args[place], len(kinds))
    indices = [context.cast(builder, number, kind, types.intp) for number, kind in zip(numbers, kinds[1:], strict=True)]
    return [_Vectors(context, builder, kinds[0], array), *indices]
