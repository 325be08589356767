"""What a filter on the lattice brings from a pixel to itself: a form T(g, x, c, W) and its derivatives.

T = sum_i sum_k c_ik <g_i, W_{s(i, k)} x_i>, linear in each of its arguments. Pixel i has coefficients c_ik,
one for the centre and one for each pair of corners of its simplex; s(i, k) is the set of axes between these
corners, as bits, and depends only on the order of the axes. Pixels of one order are worked on together, a
pixel in each lane of the vectors, and the sum over k comes first: M_lm = sum_k c_k W_lm for a tile of pairs
of labels (l, m), then M_lm x_m goes to label l. Where all W are symmetric, M_lm x_l also goes to label m, and
half of the pairs are enough.
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

from crfgrad.kernels.matrix import REGISTER, ROWS, Array, add, arrays, inline, lanes, load, multiply_add, store, sums
from crfgrad.kernels.parallel import kernel, ranges, share

STRETCH = 32768  # pixels that are sorted, and stay in the cache
STRIP = 3  # vectors of pixels at a time
STRIP_BYTES = STRIP * max(REGISTER, 16)
CHUNK = 72  # pairs whose products stay in the cache
PAIRS = ROWS  # pairs come in multiples of this


def group(order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See ``crfgrad.ops.own_part.own_part_groups``: pixels are sorted a stretch of them at a time."""
    size, dimension = order.shape
    parts = [(begin, min(begin + STRETCH, size)) for begin in range(0, size, STRETCH)]
    threads = ranges(len(parts), 1)
    pixels = torch.empty(size, dtype=torch.int64)
    codes = math.factorial(dimension)

    def sort(first: int, last: int) -> np.ndarray:
        starts: np.ndarray = _sort(order.numpy(), codes, STRETCH, pixels.numpy(), parts[first][0], parts[last - 1][1])
        return starts

    starts = np.concatenate([*share(sort, threads), [size]]).astype(np.int64)
    subsets = _subsets(order.numpy(), pixels.numpy(), starts)
    return pixels, torch.from_numpy(starts), torch.from_numpy(subsets)


def own_part(values: Tensor, coefficients: Tensor, matrices: Tensor, *groups_and_more: Any) -> Tensor:
    """See ``crfgrad.ops.own_part.own_part_filter``."""
    *groups, count, symmetric = groups_and_more
    out = values.new_empty(len(values), matrices.shape[1])
    pairs = _pairs(*matrices.shape[1:], symmetric)
    _run(_filter, groups, values, coefficients, pairs.table(matrices), *pairs.lists(), out)
    return out


def own_part_coefficients(grad: Tensor, values: Tensor, matrices: Tensor, *groups_and_more: Any) -> Tensor:
    """See ``crfgrad.ops.own_part.own_part_coefficients``."""
    *groups, count, symmetric = groups_and_more
    out = values.new_empty(len(values), groups[2].shape[1])
    pairs = _pairs(*matrices.shape[1:], symmetric)
    _run(_by_coefficient, groups, grad, values, pairs.table(matrices), *pairs.lists(), out)
    return out


def own_part_matrices(grad: Tensor, values: Tensor, coefficients: Tensor, *groups_and_more: Any) -> Tensor:
    """See ``crfgrad.ops.own_part.own_part_matrices``: the symmetric part takes little more than half the time."""
    *groups, count, symmetric = groups_and_more
    pairs = _pairs(grad.shape[1], values.shape[1], symmetric)

    def part(start: int, stop: int) -> Tensor:
        first, second, both = pairs.lists()
        total = values.new_zeros(count, len(first))
        given = [tensor.numpy() for tensor in (*groups, grad, values, coefficients)]
        _by_matrix(*given, first, second, both, total.numpy(), start, stop)
        return total

    first, *others = share(part, ranges(len(values), grain=1024))
    for other in others:
        first += other
    return pairs.matrices(first)


def _run(function: Callable[..., None], groups: list[Tensor], *tensors: Any) -> None:
    arguments = [tensor.numpy() if isinstance(tensor, Tensor) else tensor for tensor in tensors]
    given = [tensor.numpy() for tensor in groups]
    share(lambda start, stop: function(*given, *arguments, start, stop), ranges(len(given[0]), grain=256))


class _Pairs(NamedTuple):
    """Pairs of labels (l, m): all, or each pair once; neighbouring ones differ in both labels.

    The lists are filled up with (C_out, C_in), one label more than there is.
    """

    first: np.ndarray
    second: np.ndarray
    symmetric: bool
    index: Tensor
    shape: tuple[int, int]

    def lists(self) -> tuple[np.ndarray, np.ndarray, bool]:
        """First and second labels up to the end of the last tile, and whether each pair stands for both directions."""
        count = len(self.index) + -len(self.index) % ROWS
        return self.first[:count], self.second[:count], self.symmetric

    def table(self, matrices: Tensor) -> Tensor:
        """Entries of matrices (n, C_out, C_in) by pair, half of those on the diagonal: (n, pairs)."""
        table = torch.zeros(len(matrices), len(self.first), dtype=matrices.dtype)
        table[:, : len(self.index)] = matrices.flatten(1)[:, self.index]
        if self.symmetric:
            table[:, : self.shape[0]] /= 2
        return table

    def matrices(self, table: Tensor) -> Tensor:
        """What was summed up by pair as matrices."""
        out = table.new_empty(len(table), self.shape[0] * self.shape[1])
        entries = table[:, : len(self.index)]
        if self.symmetric:
            entries = entries / 2
            out[:, torch.from_numpy(self.second[: len(self.index)] * self.shape[1] + self.first[: len(self.index)]).long()] = entries
        out[:, self.index] = entries
        return out.unflatten(1, self.shape)


@lru_cache
def _pairs(outputs: int, inputs: int, symmetric: bool) -> _Pairs:
    shifts = inputs // 2 + 1 if symmetric else inputs
    first = np.tile(np.arange(outputs), shifts)
    shift = np.repeat(np.arange(shifts), outputs)
    if symmetric and inputs % 2 == 0 and inputs > 1:
        kept = (shift < inputs // 2) | (first < inputs // 2)
        first, shift = first[kept], shift[kept]
    second = (first + shift) % inputs
    missing = -len(first) % PAIRS
    index = torch.from_numpy(first * inputs + second)
    lists = [np.append(side, [end] * missing).astype(np.int32) for side, end in ((first, outputs), (second, inputs))]
    return _Pairs(*lists, symmetric, index, (outputs, inputs))


@kernel
def _code(order: np.ndarray, pixel: int) -> int:
    """Number of an order of the axes among all of them."""
    code = 0
    dimension = order.shape[1]
    for axis in range(dimension):
        smaller = 0
        for later in range(axis + 1, dimension):
            smaller += order[pixel, later] < order[pixel, axis]
        code = code * (dimension - axis) + smaller
    return code


@kernel
def _sort(order: np.ndarray, codes: int, stretch: int, pixels: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Sorts pixels ``start`` to ``stop``, and returns where groups of one order begin."""
    starts = np.empty(stop - start, np.int32)
    groups = 0
    places = np.zeros(codes, np.int32)
    code = np.empty(stretch, np.int32)
    for begin in range(start, stop, stretch):
        end = min(begin + stretch, stop)
        places[:] = 0
        for i in range(begin, end):
            code[i - begin] = _code(order, i)
            places[code[i - begin]] += 1
        place = begin
        for n in range(codes):
            if places[n] > 0:
                starts[groups] = place
                groups += 1
            place, places[n] = place + places[n], place
        for i in range(begin, end):
            pixels[places[code[i - begin]]] = i
            places[code[i - begin]] += 1
    return starts[:groups].copy()


@kernel
def _subsets(order: np.ndarray, pixels: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The sets of axes between corners, for each group."""
    dimension = order.shape[1]
    out = np.zeros((len(starts) - 1, 1 + dimension * (dimension + 1) // 2), np.int64)
    for n in range(len(out)):
        count = 1
        for low in range(dimension):
            between = 0
            for high in range(low, dimension):
                between |= 1 << order[pixels[starts[n]], high]
                out[n, count] = between
                count += 1
    return out


@kernel
def _aligned(rows: int, columns: int, dtype: np.ndarray) -> np.ndarray:
    """An array of zeros that begins where a cache line does."""
    flat = np.zeros(rows * columns + 64, dtype.dtype)
    offset = (-flat.ctypes.data % 64) // flat.itemsize
    return flat[offset : offset + rows * columns].reshape(rows, columns)


@kernel
def _filter(
    pixels: np.ndarray,
    starts: np.ndarray,
    subsets: np.ndarray,
    values: np.ndarray,
    coefficients: np.ndarray,
    table: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    symmetric: bool,
    out: np.ndarray,
    start: int,
    stop: int,
) -> None:
    """``own_part``."""
    width = STRIP_BYTES // values.itemsize
    x = _aligned(values.shape[1] + 1, width, values)
    c = _aligned(coefficients.shape[1], width, values)
    y = _aligned(out.shape[1] + 1, width, values)
    lane = np.empty(width, np.int64)
    ahead = np.empty(width * (6 + (values.shape[1] + coefficients.shape[1] + out.shape[1]) * values.itemsize // 64), np.int64)
    taps = np.empty(subsets.shape[1], np.int64)
    group = np.searchsorted(starts, start, side="right") - 1
    begin = start
    while begin < stop:
        _offsets(subsets[group], table.shape[1], taps)
        end = min(stop, starts[group + 1])
        while begin < end:
            vectors = _strip(pixels, begin, end, lane)
            _gather(vectors, values, lane, x)
            _gather(vectors, coefficients, lane, c)
            count = _addresses(pixels, begin + width, width, stop, values, ahead, 0)
            count = _addresses(pixels, begin + width, width, stop, coefficients, ahead, count)
            count = _addresses(pixels, begin, width, stop, out, ahead, count)
            y[:] = 0
            if symmetric:
                _filter_strip(vectors, table, taps, c, x, y, first, second, ahead[:count])
            else:
                _filter_strip_one_way(vectors, table, taps, c, x, y, first, second, ahead[:count])
            _scatter(vectors, y, lane, out)
            begin += width
        begin = end
        group += 1


@kernel
def _offsets(subsets: np.ndarray, size: int, out: np.ndarray) -> None:
    for k in range(len(subsets)):
        out[k] = subsets[k] * size


@kernel
def _strip(pixels: np.ndarray, begin: int, end: int, lane: np.ndarray) -> int:
    """Lists pixels, the last one again and again if there are not enough; returns how many vectors hold them."""
    count = min(end - begin, len(lane))
    for n in range(len(lane)):
        lane[n] = pixels[begin + min(n, count - 1)]
    width = len(lane) // STRIP
    return (count + width - 1) // width


@kernel
def _filter_strip(
    vectors: int,
    table: np.ndarray,
    taps: np.ndarray,
    c: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    ahead: np.ndarray,
) -> None:
    each = (len(ahead) * ROWS + len(first) - 1) // len(first)
    asked = 0
    for pair in range(0, len(first), ROWS):
        for n in range(asked, min(asked + each, len(ahead))):
            _prefetch(ahead[n])
        asked += each
        if vectors == 3:
            _filter_tile(3, 1, table, taps, c, x, y, first, second, pair)
        elif vectors == 2:
            _filter_tile(2, 1, table, taps, c, x, y, first, second, pair)
        else:
            _filter_tile(1, 1, table, taps, c, x, y, first, second, pair)


@kernel
def _filter_strip_one_way(
    vectors: int,
    table: np.ndarray,
    taps: np.ndarray,
    c: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    ahead: np.ndarray,
) -> None:
    each = (len(ahead) * ROWS + len(first) - 1) // len(first)
    asked = 0
    for pair in range(0, len(first), ROWS):
        for n in range(asked, min(asked + each, len(ahead))):
            _prefetch(ahead[n])
        asked += each
        if vectors == 3:
            _filter_tile(3, 0, table, taps, c, x, y, first, second, pair)
        elif vectors == 2:
            _filter_tile(2, 0, table, taps, c, x, y, first, second, pair)
        else:
            _filter_tile(1, 0, table, taps, c, x, y, first, second, pair)


@inline
def _filter_tile(
    typing: Any,
    vectors: Any,
    both: Any,
    table: Any,
    taps: Any,
    c: Any,
    x: Any,
    y: Any,
    first: Any,
    second: Any,
    pair: Any,
) -> tuple[Any, Callable[..., ir.Value]]:
    """Adds M_lm x_m to row l of y for a tile of pairs, and M_lm x_l to row m if it goes both ways."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        table, taps, c, x, y, first, second = arrays(context, builder, signature, args)
        pair = args[-1]
        zero = pair.type(0)
        width = lanes(table.element)
        widths = [width] * vectors.literal_value
        steps = [pair.type(n) for n in range(ROWS)]

        def term(k: ir.Value) -> tuple[list[ir.Value], ir.Value]:
            row = builder.add(taps.load(k), pair)
            numbers = [builder.load(builder.gep(table.array.data, [builder.add(row, step)])) for step in steps]
            return numbers, c.pointer(k, zero)

        totals = sums(builder, widths, ROWS, c.size(0), term)
        for step, total in zip(steps, totals, strict=True):
            label, other = first.entry(builder.add(pair, step)), second.entry(builder.add(pair, step))
            _spread_product(builder, y.pointer(label, zero), x.pointer(other, zero), total)
            if both.literal_value:
                _spread_product(builder, y.pointer(other, zero), x.pointer(label, zero), total)
        return context.get_dummy_value()

    return types.void(vectors, both, table, taps, c, x, y, first, second, pair), generate


def _spread_product(builder: Any, target: ir.Value, source: ir.Value, factors: list[ir.Value]) -> None:
    """Adds vectors in memory times vectors to vectors in memory."""
    widths = [factor.type.count for factor in factors]
    terms = zip(factors, load(builder, source, widths), load(builder, target, widths), strict=True)
    store(builder, [multiply_add(builder, *term) for term in terms], target)


@kernel
def _by_coefficient(
    pixels: np.ndarray,
    starts: np.ndarray,
    subsets: np.ndarray,
    grad: np.ndarray,
    values: np.ndarray,
    table: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    symmetric: bool,
    out: np.ndarray,
    start: int,
    stop: int,
) -> None:
    """``own_part_coefficients``: for each pair of labels W_lm times g_l x_m, or g_l x_m + g_m x_l."""
    width = STRIP_BYTES // values.itemsize
    g = _aligned(grad.shape[1] + 1, width, values)
    x = _aligned(values.shape[1] + 1, width, values)
    products = _aligned(CHUNK, width, values)
    taps = np.zeros(subsets.shape[1] + -subsets.shape[1] % ROWS, np.int64)
    c = _aligned(len(taps), width, values)
    lane = np.empty(width, np.int64)
    ahead = np.empty(width * (6 + (values.shape[1] + grad.shape[1] + out.shape[1]) * values.itemsize // 64), np.int64)
    group = np.searchsorted(starts, start, side="right") - 1
    begin = start
    while begin < stop:
        _offsets(subsets[group], table.shape[1], taps)
        end = min(stop, starts[group + 1])
        while begin < end:
            vectors = _strip(pixels, begin, end, lane)
            _gather(vectors, grad, lane, g)
            _gather(vectors, values, lane, x)
            count = _addresses(pixels, begin + width, width, stop, grad, ahead, 0)
            count = _addresses(pixels, begin + width, width, stop, values, ahead, count)
            count = _addresses(pixels, begin, width, stop, out, ahead, count)
            c[:] = 0
            asked = 0
            for pair in range(0, len(first), CHUNK):
                last = min(pair + CHUNK, len(first))
                next_asked = count * last // len(first)
                _products(vectors, symmetric, g, x, first[pair:last], second[pair:last], ahead[asked:next_asked], products)
                _coefficients_of(vectors, table, taps, products, c, pair, last - pair)
                asked = next_asked
            _scatter(vectors, c, lane, out)
            begin += width
        begin = end
        group += 1


@kernel
def _products(
    vectors: int,
    symmetric: bool,
    g: np.ndarray,
    x: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    ahead: np.ndarray,
    out: np.ndarray,
) -> None:
    """Row n becomes g_l x_m, or g_l x_m + g_m x_l, of pair n of labels."""
    for address in ahead:
        _prefetch(address)
    for n in range(len(first)):
        l, m = first[n], second[n]
        for begin in range(0, vectors * (out.shape[1] // STRIP), out.shape[1] // STRIP):
            if symmetric:
                _product(1, g, x, l, m, out, n, begin)
            else:
                _product(0, g, x, l, m, out, n, begin)


@inline
def _product(
    typing: Any, both: Any, g: Any, x: Any, l: Any, m: Any, out: Any, row: Any, column: Any
) -> tuple[Any, Callable[..., ir.Value]]:
    """A vector of a row of ``_products``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        g, x, out = arrays(context, builder, signature, args)
        l, m, row, column = (context.cast(builder, args[n], signature.args[n], types.intp) for n in (3, 4, 6, 7))
        widths = [lanes(g.element)]
        left, right = load(builder, g.pointer(l, column), widths)[0], load(builder, x.pointer(m, column), widths)[0]
        total = builder.fmul(left, right, flags=("contract",))
        if both.literal_value:
            left, right = load(builder, g.pointer(m, column), widths)[0], load(builder, x.pointer(l, column), widths)[0]
            total = multiply_add(builder, left, right, total)
        store(builder, [total], out.pointer(row, column))
        return context.get_dummy_value()

    return types.void(both, g, x, l, m, out, row, column), generate


@kernel
def _coefficients_of(
    vectors: int, table: np.ndarray, taps: np.ndarray, products: np.ndarray, c: np.ndarray, pair: int, count: int
) -> None:
    """Adds to row k of c the sum over the pairs of W_k times their products."""
    for k in range(0, len(taps), ROWS):
        if vectors == 3:
            _coefficient_tile(3, table, taps, products, c, k, pair, count)
        elif vectors == 2:
            _coefficient_tile(2, table, taps, products, c, k, pair, count)
        else:
            _coefficient_tile(1, table, taps, products, c, k, pair, count)


@inline
def _coefficient_tile(
    typing: Any, vectors: Any, table: Any, taps: Any, products: Any, c: Any, k: Any, pair: Any, count: Any
) -> tuple[Any, Callable[..., ir.Value]]:
    """``_coefficients_of`` for some k."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        table, taps, products, c = arrays(context, builder, signature, args)
        k, pair, count = args[-3:]
        zero = k.type(0)
        widths = [lanes(table.element)] * vectors.literal_value
        rows = [builder.add(k, k.type(n)) for n in range(ROWS)]
        starts = [builder.gep(table.array.data, [builder.add(taps.load(row), pair)]) for row in rows]

        def term(n: ir.Value) -> tuple[list[ir.Value], ir.Value]:
            return [builder.load(builder.gep(start, [n])) for start in starts], products.pointer(n, zero)

        for row, total in zip(rows, sums(builder, widths, ROWS, count, term), strict=True):
            add(builder, c.pointer(row, zero), total)
        return context.get_dummy_value()

    return types.void(vectors, table, taps, products, c, k, pair, count), generate


@kernel
def _by_matrix(
    pixels: np.ndarray,
    starts: np.ndarray,
    subsets: np.ndarray,
    grad: np.ndarray,
    values: np.ndarray,
    coefficients: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    symmetric: bool,
    total: np.ndarray,
    start: int,
    stop: int,
) -> None:
    """``own_part_matrices``, by pair of labels: sums over the pixels of c_k times their products."""
    width = STRIP_BYTES // values.itemsize
    g = _aligned(grad.shape[1] + 1, width, values)
    x = _aligned(values.shape[1] + 1, width, values)
    products = _aligned(CHUNK, width, values)
    taps = subsets.shape[1]
    c = _aligned(width, taps + -taps % (width // STRIP), values)
    part = _aligned(len(first), c.shape[1], values)
    lane = np.empty(width, np.int64)
    ahead = np.empty(width * (6 + (values.shape[1] + grad.shape[1] + taps) * values.itemsize // 64), np.int64)
    group = np.searchsorted(starts, start, side="right") - 1
    begin = start
    while begin < stop:
        end = min(stop, starts[group + 1])
        while begin < end:
            vectors = _strip(pixels, begin, end, lane)
            _gather(vectors, grad, lane, g)
            _gather(vectors, values, lane, x)
            count = min(end - begin, width)
            for n in range(count):
                for k in range(taps):
                    c[n, k] = coefficients[lane[n], k]
            listed = _addresses(pixels, begin + width, width, stop, grad, ahead, 0)
            listed = _addresses(pixels, begin + width, width, stop, values, ahead, listed)
            listed = _addresses(pixels, begin + width, width, stop, coefficients, ahead, listed)
            asked = 0
            for pair in range(0, len(first), CHUNK):
                last = min(pair + CHUNK, len(first))
                next_asked = listed * last // len(first)
                _products(vectors, symmetric, g, x, first[pair:last], second[pair:last], ahead[asked:next_asked], products)
                _matrices_of(products, c, part, pair, last, count)
                asked = next_asked
            begin += width
        begin = end
        for k in range(taps):
            row = subsets[group, k]
            for pair in range(len(first)):
                total[row, pair] += part[pair, k]
        part[:] = 0
        group += 1


@kernel
def _matrices_of(products: np.ndarray, c: np.ndarray, out: np.ndarray, pair: int, last: int, count: int) -> None:
    """``out[pair:last] += products[: last - pair, :count] @ c[:count]``."""
    for column in range(0, c.shape[1], products.shape[1] // STRIP):
        row = 0
        while row + 3 * ROWS <= last - pair:
            _matrix_tile(3, products, c, out, pair, row, column, count)
            row += 3 * ROWS
        while row < last - pair:
            _matrix_tile(1, products, c, out, pair, row, column, count)
            row += ROWS


@inline
def _matrix_tile(
    typing: Any, blocks: Any, products: Any, c: Any, out: Any, pair: Any, row: Any, column: Any, count: Any
) -> tuple[Any, Callable[..., ir.Value]]:
    """``_matrices_of`` for some blocks of pairs, and one vector of c."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        products, c, out = arrays(context, builder, signature, args)
        pair, row, column, count = args[-4:]
        width = lanes(c.element)
        rows = [builder.add(builder.add(pair, row), row.type(n)) for n in range(ROWS * blocks.literal_value)]
        start = products.pointer(row, row.type(0))

        def term(n: ir.Value) -> tuple[list[ir.Value], ir.Value]:
            here = builder.gep(start, [n])
            places = [builder.gep(here, [n.type(line * STRIP * width)]) for line in range(len(rows))]
            return [builder.load(place) for place in places], c.pointer(n, column)

        for line, total in zip(rows, sums(builder, [width], len(rows), count, term), strict=True):
            add(builder, out.pointer(line, column), total)
        return context.get_dummy_value()

    return types.void(blocks, products, c, out, pair, row, column, count), generate


@inline
def _address(typing: Any, rows: Any, row: Any) -> tuple[Any, Callable[..., ir.Value]]:
    """Where in memory a row begins."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        (rows,) = arrays(context, builder, signature, args)
        row = context.cast(builder, args[1], signature.args[1], types.intp)
        return builder.ptrtoint(rows.pointer(row, row.type(0)), row.type)

    return types.intp(rows, row), generate


@kernel
def _addresses(pixels: np.ndarray, begin: int, length: int, stop: int, rows: np.ndarray, out: np.ndarray, count: int) -> int:
    """Appends to ``out`` where in memory rows of the next pixels are, line by line; returns how many are listed."""
    size = rows.shape[1] * rows.itemsize
    for n in range(begin, min(begin + length, stop)):
        start = _address(rows, pixels[n])
        for address in range(start, start + size, 64):
            out[count] = address
            count += 1
        out[count] = start + size - 1
        count += 1
    return count


@inline
def _prefetch(typing: Any, address: Any) -> tuple[Any, Callable[..., ir.Value]]:
    """Asks for the cache line at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, number(0), number(2), number(1)])
        return context.get_dummy_value()

    return types.void(address), generate


@kernel
def _gather(vectors: int, source: np.ndarray, lane: np.ndarray, out: np.ndarray) -> None:
    """Rows of the source become columns: ``out[:-1] = source[lane].T``."""
    columns = source.shape[1]
    width = len(lane) // STRIP
    for begin in range(0, vectors * width, width):
        if columns < 4:
            for n in range(begin, begin + width):
                for column in range(columns):
                    out[column, n] = source[lane[n], column]
        else:
            for column in range(0, columns - 3, 4):
                _turn(source, lane, column, out, begin)
            if columns % 4:
                _turn(source, lane, columns - 4, out, begin)


@kernel
def _scatter(vectors: int, source: np.ndarray, lane: np.ndarray, out: np.ndarray) -> None:
    """Columns become rows: ``out[lane] = source.T``."""
    columns = out.shape[1]
    width = len(lane) // STRIP
    for begin in range(0, vectors * width, width):
        if columns < 4:
            for n in range(begin, begin + width):
                for column in range(columns):
                    out[lane[n], column] = source[column, n]
        else:
            for column in range(0, columns - 3, 4):
                _turn_back(source, lane, column, out, begin)
            if columns % 4:
                _turn_back(source, lane, columns - 4, out, begin)


@inline
def _turn(
    typing: Any, source: Any, lane: Any, column: Any, out: Any, begin: Any
) -> tuple[Any, Callable[..., ir.Value]]:
    """Four columns of a vector of rows, as four vectors."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        source, lane, out = arrays(context, builder, signature, args)
        column, begin = args[2], args[4]
        rows = [builder.add(begin, begin.type(n)) for n in range(lanes(source.element))]
        loaded = [load(builder, source.pointer(lane.load(row), column), [4])[0] for row in rows]
        mixed = [_joined(builder, loaded[n::4]) for n in range(4)]
        for n, vector in enumerate(_turned(builder, mixed)):
            store(builder, [vector], out.pointer(builder.add(column, column.type(n)), begin))
        return context.get_dummy_value()

    return types.void(source, lane, column, out, begin), generate


@inline
def _turn_back(
    typing: Any, source: Any, lane: Any, column: Any, out: Any, begin: Any
) -> tuple[Any, Callable[..., ir.Value]]:
    """Four vectors as four columns of a vector of rows."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        source, lane, out = arrays(context, builder, signature, args)
        column, begin = args[2], args[4]
        width = lanes(source.element)
        starts = [source.pointer(builder.add(column, column.type(n)), begin) for n in range(4)]
        turned = _turned(builder, [load(builder, start, [width])[0] for start in starts])
        for n in range(width):
            row = lane.load(builder.add(begin, begin.type(n)))
            piece = _shuffled(builder, turned[n % 4], turned[n % 4], range(n // 4 * 4, n // 4 * 4 + 4))
            store(builder, [piece], out.pointer(row, column))
        return context.get_dummy_value()

    return types.void(source, lane, column, out, begin), generate


def _shuffled(builder: Any, left: ir.Value, right: ir.Value, index: Any) -> ir.Value:
    index = list(index)
    return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(ir.IntType(32), len(index)), index))


def _joined(builder: Any, vectors: list[ir.Value]) -> ir.Value:
    """Vectors one after the other, as one."""
    while len(vectors) > 1:
        width = 2 * vectors[0].type.count
        vectors = [_shuffled(builder, *vectors[n : n + 2], range(width)) for n in range(0, len(vectors), 2)]
    return vectors[0]


def _turned(builder: Any, vectors: list[ir.Value]) -> list[ir.Value]:
    """Four vectors with each block of 4 x 4 numbers transposed."""
    width = vectors[0].type.count

    def mixed(left: ir.Value, right: ir.Value, index: list[int]) -> ir.Value:
        """In each block of four numbers, these of the left (0 to 3) and of the right (4 to 7)."""
        places = [n % 4 + block + n // 4 * width for block in range(0, width, 4) for n in index]
        return _shuffled(builder, left, right, places)

    a, b, c, d = vectors
    low, high = [0, 4, 1, 5], [2, 6, 3, 7]
    ab, cd, ab_high, cd_high = mixed(a, b, low), mixed(c, d, low), mixed(a, b, high), mixed(c, d, high)
    start, end = [0, 1, 4, 5], [2, 3, 6, 7]
    return [mixed(ab, cd, start), mixed(ab, cd, end), mixed(ab_high, cd_high, start), mixed(ab_high, cd_high, end)]
