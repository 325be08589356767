"""A form T(g, x, c, W) = sum_i sum_k c_ik <g_i, W_{s(i, k)} x_i> and its derivatives, see ``crfgrad.ops.own_part``.

Pixels of one group are worked on together, a pixel in each lane of the vectors of a strip, and sums over k come
first: M_lm = sum_k c_k W_lm for a tile of pairs of labels (l, m), then M_lm x_m goes to label l. Where all W are
symmetric, M_lm x_l also goes to label m.
"""

from typing import NamedTuple

import numpy as np

from crfgrad.kernels.matrix import ROWS, multiply
from crfgrad.kernels.parallel import kernel
from crfgrad.kernels.turning import turn, turn_back
from crfgrad.kernels.vectors import Array, Code, Columns, Parts, Value, in_registers

CHUNK = 72  # pairs whose products stay in the cache


class Groups(NamedTuple):
    """Pixels with the same sets of axes."""

    pixels: np.ndarray
    starts: np.ndarray
    sets: np.ndarray


class Pairs(NamedTuple):
    """First and second labels, in whole tiles; and whether a pair stands for both ways round."""

    first: np.ndarray
    second: np.ndarray
    symmetric: bool


@kernel
def filter_pixels(
    strip: Parts,
    pairs: Pairs,
    groups: Groups,
    values: np.ndarray,
    coefficients: np.ndarray,
    table: np.ndarray,
    out: np.ndarray,
    start: int,
    stop: int,
) -> None:
    """The derivative by g. The table has W by set and pair."""
    width, pixels, first, second = len(strip) * len(strip[0]), groups.pixels, pairs.first, pairs.second
    x, y = _room(values.shape[1] + 1, width, out), _room(out.shape[1] + 1, width, out)
    c, rows = _room(coefficients.shape[1], width, out), np.empty(width, np.int64)
    for group in range(len(groups.sets)):
        sets, end = groups.sets[group], min(stop, groups.starts[group + 1])
        for begin in range(max(start, groups.starts[group]), end, width):
            _list(pixels, begin, end, rows)
            turn(values, rows, x)
            turn(coefficients, rows, c)
            _fetch(values, pixels, begin + width, stop, rows)
            _fetch(coefficients, pixels, begin + width, stop, rows)
            _fetch(out, pixels, begin, stop, rows)
            y[:] = 0
            for pair in range(0, len(first), ROWS):
                if pairs.symmetric:
                    _filter_tile(strip, True, table, sets, c, x, y, first, second, pair)
                else:
                    _filter_tile(strip, False, table, sets, c, x, y, first, second, pair)
            turn_back(y, rows, out)


@kernel
def coefficients_of(
    strip: Parts,
    pairs: Pairs,
    groups: Groups,
    grad: np.ndarray,
    values: np.ndarray,
    table: np.ndarray,
    out: np.ndarray,
    start: int,
    stop: int,
) -> None:
    """The derivative by c."""
    width, pixels, first, second = len(strip) * len(strip[0]), groups.pixels, pairs.first, pairs.second
    g, x = _room(grad.shape[1] + 1, width, out), _room(values.shape[1] + 1, width, out)
    c, products = _room(out.shape[1], width, out), _room(CHUNK, width, out)
    rows = np.empty(width, np.int64)
    for group in range(len(groups.sets)):
        sets, end = groups.sets[group], min(stop, groups.starts[group + 1])
        for begin in range(max(start, groups.starts[group]), end, width):
            _list(pixels, begin, end, rows)
            turn(grad, rows, g)
            turn(values, rows, x)
            _fetch(grad, pixels, begin + width, stop, rows)
            _fetch(values, pixels, begin + width, stop, rows)
            _fetch(out, pixels, begin, stop, rows)
            c[:] = 0
            for pair in range(0, len(first), CHUNK):
                last = min(pair + CHUNK, len(first))
                _products(strip, pairs.symmetric, g, x, first[pair:last], second[pair:last], products)
                multiply(strip, table[:, pair:last], sets, products[: last - pair], c, None, True)
            turn_back(c, rows, out)


@kernel
def matrices_of(
    strip: Parts,
    pairs: Pairs,
    groups: Groups,
    grad: np.ndarray,
    values: np.ndarray,
    coefficients: np.ndarray,
    columns: Parts,
    count: int,
    start: int,
    stop: int,
) -> np.ndarray:
    """The derivative by W, by set and pair: the part of some pixels."""
    width, pixels, first, second = len(strip) * len(strip[0]), groups.pixels, pairs.first, pairs.second
    g, x = _room(grad.shape[1] + 1, width, grad), _room(values.shape[1] + 1, width, grad)
    c, products = _room(width, coefficients.shape[1], grad), _room(CHUNK, width, grad)
    total, part = _room(count, len(first), grad), _room(len(first), c.shape[1], grad)
    rows = np.empty(width, np.int64)
    for group in range(len(groups.sets)):
        sets, end = groups.sets[group], min(stop, groups.starts[group + 1])
        for begin in range(max(start, groups.starts[group]), end, width):
            size = _list(pixels, begin, end, rows)
            turn(grad, rows, g)
            turn(values, rows, x)
            for n in range(size):
                for k in range(c.shape[1]):
                    c[n, k] = coefficients[rows[n], k]
            _fetch(grad, pixels, begin + width, stop, rows)
            _fetch(values, pixels, begin + width, stop, rows)
            _fetch(coefficients, pixels, begin + width, stop, rows)
            for pair in range(0, len(first), CHUNK):
                last = min(pair + CHUNK, len(first))
                _products(strip, pairs.symmetric, g, x, first[pair:last], second[pair:last], products)
                multiply(columns, products, None, c[:size], part[pair:last], None, True)
            if begin + width >= end:
                _move(part, sets, total)
    return total


@kernel
def _room(rows: int, columns: int, like: np.ndarray) -> np.ndarray:
    """Zeros that begin where a line of the cache does, so that no vector lies in two."""
    flat = np.zeros(rows * columns + 64, like.dtype)
    first = (-flat.ctypes.data % 64) // flat.itemsize
    return flat[first : first + rows * columns].reshape(rows, columns)


@kernel
def _list(pixels: np.ndarray, begin: int, end: int, rows: np.ndarray) -> int:
    """Lists pixels of a strip, the last one again and again if there are not enough; returns how many there are."""
    for n in range(len(rows)):
        rows[n] = pixels[min(begin + n, end - 1)]
    return min(end - begin, len(rows))


@kernel
def _fetch(array: np.ndarray, pixels: np.ndarray, begin: int, stop: int, rows: np.ndarray) -> None:
    """Asks for as many rows as a strip has: they are scattered, and the processor does not foresee them."""
    for n in range(begin, min(begin + len(rows), stop)):
        _fetch_row(array, pixels[n])


@in_registers
def _fetch_row(code: Code, array: Array, row: Value) -> None:
    line = 64 // array.itemsize
    with code.loop((array.size(1) + line - 1) >> line.bit_length() - 1) as n:
        code.fetch(array.place(row, n * line))
    code.fetch(array.place(row, array.size(1) - 1))


@in_registers
def _filter_tile(
    code: Code,
    strip: Columns,
    symmetric: bool,
    table: Array,
    sets: Array,
    c: Array,
    x: Array,
    y: Array,
    first: Array,
    second: Array,
    pair: Value,
) -> None:
    """Adds M_lm x_m to row l of y for a tile of pairs, and M_lm x_l to row m if all W are symmetric."""

    def term(k: Value) -> tuple[list[Value], Value]:
        return table.numbers(ROWS, sets[k], pair), strip.load(c.place(k))

    totals = code.sums([strip.zeros(c.place(pair))] * ROWS, c.size(), term)
    for n, total in enumerate(totals):
        ways = [(first[pair + n], second[pair + n]), (second[pair + n], first[pair + n])]
        for label, other in ways if symmetric else ways[:1]:
            target = y.place(label)
            strip.store(target, total * strip.load(x.place(other)) + strip.load(target))


@kernel
def _products(
    strip: Parts, symmetric: bool, g: np.ndarray, x: np.ndarray, first: np.ndarray, second: np.ndarray, out: np.ndarray
) -> None:
    """Rows become g_l x_m, or g_l x_m + g_m x_l, of some pairs of labels."""
    if symmetric:
        _write_products(strip, True, g, x, first, second, out)
    else:
        _write_products(strip, False, g, x, first, second, out)


@in_registers
def _write_products(
    code: Code, strip: Columns, symmetric: bool, g: Array, x: Array, first: Array, second: Array, out: Array
) -> None:
    with code.loop(first.size()) as n:
        products = strip.load(g.place(first[n])) * strip.load(x.place(second[n]))
        if symmetric:
            products = strip.load(g.place(second[n])) * strip.load(x.place(first[n])) + products
        strip.store(out.place(n), products)


@kernel
def _move(part: np.ndarray, sets: np.ndarray, total: np.ndarray) -> None:
    """Adds what a group brings, by pair and k, to the sets of the group, and clears it."""
    for k in range(part.shape[1]):
        for pair in range(len(part)):
            total[sets[k], pair] += part[pair, k]
            part[pair, k] = 0
