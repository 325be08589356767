"""A form T(g, x, c, W) = sum_i sum_k c_ik <g_i, W_{s(i, k)} x_i> and its derivatives, see ``crfgrad.ops.own_part``.

Pixels of one group are worked on together, a pixel in each lane of the vectors of a strip, and sums over k come
first: M_lm = sum_k c_k W_lm for a tile of pairs of labels (l, m), then M_lm x_m goes to label l. Where all W are
symmetric, M_lm x_l also goes to label m.
"""

import numpy as np

from crfgrad.kernels.matrix import ROWS, multiply
from crfgrad.kernels.parallel import kernel
from crfgrad.kernels.turning import turn, turn_back
from crfgrad.kernels.vectors import Array, Code, Columns, Parts, Value, in_registers

CHUNK = 72


@kernel
def filter_pixels(
    strip: Parts,
    first: np.ndarray,
    second: np.ndarray,
    symmetric: bool,
    pixels: np.ndarray,
    starts: np.ndarray,
    sets: np.ndarray,
    values: np.ndarray,
    coefficients: np.ndarray,
    table: np.ndarray,
    out: np.ndarray,
    start: int,
    stop: int,
) -> None:
    """The derivative by g."""
    rows = np.empty(len(strip) * len(strip[0]), np.int64)
    x, y = np.zeros((values.shape[1] + 1, len(rows)), out.dtype), np.zeros((out.shape[1] + 1, len(rows)), out.dtype)
    c = np.zeros((coefficients.shape[1], len(rows)), out.dtype)
    for group in range(len(sets)):
        end = min(stop, starts[group + 1])
        for begin in range(max(start, starts[group]), end, len(rows)):
            _list(pixels, begin, end, rows)
            turn(values, rows, x)
            turn(coefficients, rows, c)
            _fetch(pixels, begin + len(rows), stop, values)
            _fetch(pixels, begin + len(rows), stop, coefficients)
            _fetch(pixels, begin, stop, out)
            y[:] = 0
            for pair in range(0, len(first), ROWS):
                if symmetric:
                    _filter_tile(strip, True, table, sets[group], c, x, y, first, second, pair)
                else:
                    _filter_tile(strip, False, table, sets[group], c, x, y, first, second, pair)
            turn_back(y, rows, out)


@kernel
def coefficients_of(
    strip: Parts,
    first: np.ndarray,
    second: np.ndarray,
    symmetric: bool,
    pixels: np.ndarray,
    starts: np.ndarray,
    sets: np.ndarray,
    grad: np.ndarray,
    values: np.ndarray,
    table: np.ndarray,
    out: np.ndarray,
    start: int,
    stop: int,
) -> None:
    """The derivative by c."""
    rows, every = np.empty(len(strip) * len(strip[0]), np.int64), np.arange(out.shape[1])
    g, x = np.zeros((grad.shape[1] + 1, len(rows)), out.dtype), np.zeros((values.shape[1] + 1, len(rows)), out.dtype)
    c, products = np.zeros((out.shape[1], len(rows)), out.dtype), np.zeros((CHUNK, len(rows)), out.dtype)
    for group in range(len(sets)):
        end = min(stop, starts[group + 1])
        for begin in range(max(start, starts[group]), end, len(rows)):
            _list(pixels, begin, end, rows)
            turn(grad, rows, g)
            turn(values, rows, x)
            c[:] = 0
            _fetch(pixels, begin + len(rows), stop, grad)
            _fetch(pixels, begin + len(rows), stop, values)
            _fetch(pixels, begin, stop, out)
            for pair in range(0, len(first), CHUNK):
                last = min(pair + CHUNK, len(first))
                _products(strip, symmetric, g, x, first[pair:last], second[pair:last], products)
                multiply(strip, table[:, pair:last], sets[group], products[: last - pair], c, every, True)
            turn_back(c, rows, out)


@kernel
def matrices_of(
    strip: Parts,
    first: np.ndarray,
    second: np.ndarray,
    symmetric: bool,
    pixels: np.ndarray,
    starts: np.ndarray,
    sets: np.ndarray,
    grad: np.ndarray,
    values: np.ndarray,
    coefficients: np.ndarray,
    columns: Parts,
    count: int,
    start: int,
    stop: int,
) -> np.ndarray:
    """The derivative by W, by set and pair: the part of some pixels."""
    rows, every = np.empty(len(strip) * len(strip[0]), np.int64), np.arange(CHUNK)
    g, x = np.zeros((grad.shape[1] + 1, len(rows)), grad.dtype), np.zeros((values.shape[1] + 1, len(rows)), grad.dtype)
    c, products = np.zeros((len(rows), coefficients.shape[1]), grad.dtype), np.zeros((CHUNK, len(rows)), grad.dtype)
    part, total = np.zeros((len(first), c.shape[1]), grad.dtype), np.zeros((count, len(first)), grad.dtype)
    for group in range(len(sets)):
        end = min(stop, starts[group + 1])
        part[:] = 0
        for begin in range(max(start, starts[group]), end, len(rows)):
            size = _list(pixels, begin, end, rows)
            turn(grad, rows, g)
            turn(values, rows, x)
            for n in range(size):
                for k in range(c.shape[1]):
                    c[n, k] = coefficients[rows[n], k]
            _fetch(pixels, begin + len(rows), stop, grad)
            _fetch(pixels, begin + len(rows), stop, values)
            _fetch(pixels, begin + len(rows), stop, coefficients)
            for pair in range(0, len(first), CHUNK):
                last = min(pair + CHUNK, len(first))
                _products(strip, symmetric, g, x, first[pair:last], second[pair:last], products)
                multiply(columns, products, every[: last - pair], c[:size], part[pair:last], every[: last - pair], True)
        if end > max(start, starts[group]):
            for k in range(part.shape[1]):
                for pair in range(len(part)):
                    total[sets[group, k], pair] += part[pair, k]
    return total


@kernel
def _list(pixels: np.ndarray, begin: int, end: int, rows: np.ndarray) -> int:
    """Lists pixels of a strip, the last one again and again if there are not enough; returns how many there are."""
    for n in range(len(rows)):
        rows[n] = pixels[min(begin + n, end - 1)]
    return min(end - begin, len(rows))


@kernel
def _fetch(pixels: np.ndarray, begin: int, stop: int, rows: np.ndarray) -> None:
    """Asks for rows that are needed soon."""
    for n in range(begin, min(begin + 48, stop)):
        _fetch_row(rows, pixels[n])


@in_registers
def _fetch_row(code: Code, rows: Array, row: Value) -> None:
    with code.loop((rows.size(1) * rows.itemsize + 63) >> 6) as line:
        code.fetch(rows.place(row, line * (64 // rows.itemsize)))
    code.fetch(rows.place(row, rows.size(1) - 1))


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
    pairs = [pair + n for n in range(ROWS)]

    def term(k: Value) -> tuple[list[Value], Value]:
        return table.numbers(ROWS, sets[k], pair), strip.load(c.place(k))

    for one, total in zip(pairs, code.sums([strip.zeros(c.place(pair))] * ROWS, c.size(), term), strict=True):
        ways = [(first[one], second[one]), (second[one], first[one])]
        for label, other in ways if symmetric else ways[:1]:
            target = y.place(label)
            strip.store(target, total * strip.load(x.place(other)) + strip.load(target))


@kernel
def _products(
    strip: Parts, symmetric: bool, g: np.ndarray, x: np.ndarray, first: np.ndarray, second: np.ndarray, out: np.ndarray
) -> None:
    """Row n becomes g_l x_m, or g_l x_m + g_m x_l, of pair n of labels."""
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
