"""Matrix products on rows picked from arrays, with the running sums in vector registers.

Numba has no arrays in registers, so the innermost loop is written in LLVM's language: a tile of four rows
of the result, one or three vectors wide, is summed up before it touches memory. Each function equals the
NumPy expression in its docstring. Arrays are contiguous; columns that are ``padded`` come in whole vectors.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from crfgrad.kernels.parallel import kernel

ROWS = 4  # of the result in a tile
VECTOR = 8  # numbers in a vector
inline: Any = intrinsic(prefer_literal=True)
"""A function of types that returns how to generate code; numba knows the values of constant arguments."""


@kernel
def multiply(
    left: np.ndarray,
    which: np.ndarray,
    right: np.ndarray,
    factors: np.ndarray,
    out: np.ndarray,
    into: np.ndarray,
    count: int,
) -> None:
    """``out[into] += factors[:, None] * (left[which] @ right)``, for the first ``count`` entries of the lists.

    The lists are read on to the next multiple of four; ``into`` names each row once.
    Shape: left (*, C), right (C, padded), out (*, padded).
    """
    for row in range(0, count, ROWS):
        column = 0
        while right.shape[1] - column >= 3 * VECTOR:
            _multiply_tile(3, left, which, right, factors, out, into, row, column)
            column += 3 * VECTOR
        while column < right.shape[1]:
            _multiply_tile(1, left, which, right, factors, out, into, row, column)
            column += VECTOR


@kernel
def correlate(
    left: np.ndarray, which: np.ndarray, right: np.ndarray, other: np.ndarray, out: np.ndarray, count: int
) -> None:
    """``out += left[which].T @ right[other]``, for the first ``count`` entries of the lists.

    Shape: left (*, padded), right (*, padded), out (padded, padded).
    """
    for row in range(0, out.shape[0], ROWS):
        column = 0
        while right.shape[1] - column >= 3 * VECTOR:
            _correlate_tile(3, left, which, right, other, out, count, row, column)
            column += 3 * VECTOR
        while column < right.shape[1]:
            _correlate_tile(1, left, which, right, other, out, count, row, column)
            column += VECTOR


@inline
def _multiply_tile(
    typing: Any,
    vectors: Any,
    left: Any,
    which: Any,
    right: Any,
    factors: Any,
    out: Any,
    into: Any,
    row: Any,
    column: Any,
) -> tuple[Any, Callable[..., ir.Value]]:
    """``multiply`` for one tile."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        left, which, right, factors, out, into = _arrays(context, builder, signature, args)[:6]
        row, column = args[-2:]
        rows = [builder.add(row, row.type(lane)) for lane in range(ROWS)]
        sources = [which.entry(lane) for lane in rows]

        def term(k: ir.Value) -> tuple[list[ir.Value], ir.Value]:
            return [left.load(source, k) for source in sources], right.pointer(k, column)

        for lane, sums in zip(rows, _sums(builder, vectors.literal_value, right.size(0), term), strict=True):
            _add(builder, out.pointer(into.entry(lane), column), sums, factors.load(lane))
        return context.get_dummy_value()

    return types.void(vectors, left, which, right, factors, out, into, row, column), generate


@inline
def _correlate_tile(
    typing: Any,
    vectors: Any,
    left: Any,
    which: Any,
    right: Any,
    other: Any,
    out: Any,
    count: Any,
    row: Any,
    column: Any,
) -> tuple[Any, Callable[..., ir.Value]]:
    """``correlate`` for one tile."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        left, which, right, other, out = _arrays(context, builder, signature, args)[:5]
        count, row, column = args[-3:]
        rows = [builder.add(row, row.type(lane)) for lane in range(ROWS)]

        def term(k: ir.Value) -> tuple[list[ir.Value], ir.Value]:
            source = which.entry(k)
            return [left.load(source, lane) for lane in rows], right.pointer(other.entry(k), column)

        for lane, sums in zip(rows, _sums(builder, vectors.literal_value, count, term), strict=True):
            _add(builder, out.pointer(lane, column), sums)
        return context.get_dummy_value()

    return types.void(vectors, left, which, right, other, out, count, row, column), generate


class _Array:
    """A contiguous array of one or two dimensions, as LLVM sees it."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: ir.Value) -> None:
        self.builder = builder
        self.array = context.make_array(kind)(context, builder, value)

    def size(self, axis: int) -> ir.Value:
        return self.builder.extract_value(self.array.shape, axis)

    def pointer(self, *index: ir.Value) -> ir.Value:
        place = index[0]
        if len(index) == 2:
            place = self.builder.add(self.builder.mul(place, self.size(1)), index[1])
        return self.builder.gep(self.array.data, [place])

    def load(self, *index: ir.Value) -> ir.Value:
        return self.builder.load(self.pointer(*index))

    def entry(self, index: ir.Value) -> ir.Value:
        """A number of a list of int32, as an index."""
        return self.builder.sext(self.load(index), index.type)


def _arrays(context: Any, builder: Any, signature: Any, args: Any) -> list[_Array]:
    pairs = zip(signature.args, args, strict=True)
    return [_Array(context, builder, kind, value) for kind, value in pairs if isinstance(kind, types.Array)]


def _sums(
    builder: Any, vectors: int, count: ir.Value, term: Callable[[ir.Value], tuple[list[ir.Value], ir.Value]]
) -> list[list[ir.Value]]:
    """Sums over k < count of number times vectors: for each of the ROWS numbers, that many vectors.

    Args:
        builder: Of LLVM code.
        vectors: How many vectors.
        count: How many terms.
        term: The numbers of term k, and where its vectors begin.
    """
    element = term(count.type(0))[0][0].type  # dead code, which the compiler drops
    vector = ir.VectorType(element, VECTOR)
    places = [
        [cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * VECTOR)) for _ in range(vectors)]
        for _ in range(ROWS)
    ]
    for row in places:
        for place in row:
            builder.store(ir.Constant(vector, [0.0] * VECTOR), place)
    with cgutils.for_range(builder, count) as loop:
        numbers, start = term(loop.index)
        loaded = [_load(builder, start, vector, n) for n in range(vectors)]
        for number, row in zip(numbers, places, strict=True):
            spread = _spread(builder, number)
            for one, place in zip(loaded, row, strict=True):
                builder.store(_multiply_add(builder, spread, one, builder.load(place)), place)
    return [[builder.load(place) for place in row] for row in places]


def _add(builder: Any, start: ir.Value, sums: list[ir.Value], factor: ir.Value | None = None) -> None:
    """Adds vectors, times a factor, to what is in memory."""
    for n, vector in enumerate(sums):
        before = _load(builder, start, vector.type, n)
        if factor is None:
            after = builder.fadd(before, vector)
        else:
            after = _multiply_add(builder, _spread(builder, factor), vector, before)
        _store(builder, after, start, n)


def _multiply_add(builder: Any, left: ir.Value, right: ir.Value, total: ir.Value) -> ir.Value:
    return builder.fadd(total, builder.fmul(left, right, flags=("contract",)), flags=("contract",))


def _spread(builder: Any, number: ir.Value) -> ir.Value:
    vector = ir.VectorType(number.type, VECTOR)
    lone = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.IntType(32)(0))
    same = ir.Constant(ir.VectorType(ir.IntType(32), VECTOR), [0] * VECTOR)
    return builder.shuffle_vector(lone, ir.Constant(vector, ir.Undefined), same)


def _place(builder: Any, start: ir.Value, vector: ir.Type, n: int) -> ir.Value:
    return builder.gep(builder.bitcast(start, vector.as_pointer()), [ir.IntType(64)(n)])


def _load(builder: Any, start: ir.Value, vector: ir.Type, n: int) -> ir.Value:
    loaded = builder.load(_place(builder, start, vector, n))
    loaded.align = 4  # of a single number
    return loaded


def _store(builder: Any, value: ir.Value, start: ir.Value, n: int) -> None:
    builder.store(value, _place(builder, start, value.type, n), align=4)
