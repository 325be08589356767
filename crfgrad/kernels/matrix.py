"""Matrix products on rows picked from arrays, with the running sums in vector registers.

Numba has no arrays in registers, so the innermost loop is written in LLVM's language: a tile of the result,
some rows of some vectors, is summed up before it touches memory. Each function equals the NumPy expression
in its docstring. Arrays are contiguous; columns that are ``padded`` come in multiples of ``VECTOR``.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

from crfgrad.kernels.parallel import kernel

_FEATURES = (numba.config.CPU_FEATURES or get_host_cpu_features()).split(",")
REGISTER = 64 if "+avx512f" in _FEATURES else 32 if "+avx" in _FEATURES else 16  # bytes
ROWS = 8 if REGISTER == 64 else 4  # of the result in a tile: the sums fill most of 32 or of 16 registers
VECTOR = 8  # columns
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

    The lists are read on to the next multiple of ``ROWS``; ``into`` names each row once.
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
        left, which, right, factors, out, into = arrays(context, builder, signature, args)[:6]
        row, column = args[-2:]
        rows = [builder.add(row, row.type(lane)) for lane in range(ROWS)]
        sources = [which.entry(lane) for lane in rows]
        widths = _widths(right.element, vectors.literal_value * VECTOR)

        def term(k: ir.Value) -> tuple[list[ir.Value], ir.Value]:
            return [left.load(source, k) for source in sources], right.pointer(k, column)

        for lane, total in zip(rows, sums(builder, widths, ROWS, right.size(0), term), strict=True):
            add(builder, out.pointer(into.entry(lane), column), total, factors.load(lane))
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
        left, which, right, other, out = arrays(context, builder, signature, args)[:5]
        count, row, column = args[-3:]
        rows = [builder.add(row, row.type(lane)) for lane in range(ROWS)]
        widths = _widths(right.element, vectors.literal_value * VECTOR)

        def term(k: ir.Value) -> tuple[list[ir.Value], ir.Value]:
            source = which.entry(k)
            return [left.load(source, lane) for lane in rows], right.pointer(other.entry(k), column)

        for lane, total in zip(rows, sums(builder, widths, ROWS, count, term), strict=True):
            add(builder, out.pointer(lane, column), total)
        return context.get_dummy_value()

    return types.void(vectors, left, which, right, other, out, count, row, column), generate


class Array:
    """A contiguous array of one or two dimensions, as LLVM sees it."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: ir.Value) -> None:
        self.builder = builder
        self.array = context.make_array(kind)(context, builder, value)
        self.element = context.get_data_type(kind.dtype)

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


def arrays(context: Any, builder: Any, signature: Any, args: Any) -> list[Array]:
    """Those of the arguments that are arrays."""
    pairs = zip(signature.args, args, strict=True)
    return [Array(context, builder, kind, value) for kind, value in pairs if isinstance(kind, types.Array)]


def lanes(element: ir.Type) -> int:
    """How many numbers of this type fill a register, at least four."""
    return max(4, REGISTER // (8 if isinstance(element, ir.DoubleType) else 4))


def sums(
    builder: Any,
    widths: list[int],
    rows: int,
    count: ir.Value,
    term: Callable[[ir.Value], tuple[list[ir.Value], ir.Value]],
) -> list[list[ir.Value]]:
    """Sums over k < count of number times vectors: for each of the numbers, the vectors.

    Args:
        builder: Of LLVM code.
        widths: Of the vectors, which follow each other in memory.
        rows: How many numbers.
        count: How many terms.
        term: The numbers of term k, and where its vectors begin.
    """
    element = term(count.type(0))[0][0].type  # dead code, which the compiler drops
    zeros = [ir.Constant(ir.VectorType(element, width), [0.0] * width) for width in widths]
    places = [[cgutils.alloca_once_value(builder, zero) for zero in zeros] for _ in range(rows)]
    for row in places:
        for place, zero in zip(row, zeros, strict=True):
            builder.store(zero, place)
    with cgutils.for_range(builder, count) as loop:
        numbers, start = term(loop.index)
        loaded = load(builder, start, widths)
        for number, row in zip(numbers, places, strict=True):
            for one, place in zip(loaded, row, strict=True):
                builder.store(multiply_add(builder, number, one, builder.load(place)), place)
    return [[builder.load(place) for place in row] for row in places]


def add(builder: Any, start: ir.Value, vectors: list[ir.Value], factor: ir.Value | None = None) -> None:
    """Adds vectors, times a factor (a number, or a vector for each), to what is in memory."""
    before = load(builder, start, [vector.type.count for vector in vectors])
    if factor is None:
        after = [builder.fadd(*pair) for pair in zip(before, vectors, strict=True)]
    else:
        after = [multiply_add(builder, factor, *pair) for pair in zip(vectors, before, strict=True)]
    store(builder, after, start)


def multiply_add(builder: Any, number: ir.Value, vector: ir.Value, total: ir.Value) -> ir.Value:
    """Number or vector times vector, added to a total."""
    if number.type != vector.type:
        number = _spread(builder, number, vector.type)
    return builder.fadd(total, builder.fmul(number, vector, flags=("contract",)), flags=("contract",))


def load(builder: Any, start: ir.Value, widths: list[int]) -> list[ir.Value]:
    """Vectors that follow each other in memory."""
    loaded = []
    for place in _places(builder, start, widths):
        vector = builder.load(place)
        vector.align = 4  # of a single number
        loaded.append(vector)
    return loaded


def store(builder: Any, vectors: list[ir.Value], start: ir.Value) -> None:
    """Puts vectors into memory, one after the other."""
    places = _places(builder, start, [vector.type.count for vector in vectors])
    for vector, place in zip(vectors, places, strict=True):
        builder.store(vector, place, align=4)


def _widths(element: ir.Type, columns: int) -> list[int]:
    """Widths of the vectors that make up some columns: as wide as a register, the last one narrower."""
    width = min(lanes(element), VECTOR * 2)
    return [width] * (columns // width) + [columns % width] * (columns % width > 0)


def _spread(builder: Any, number: ir.Value, vector: ir.Type) -> ir.Value:
    lone = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.IntType(32)(0))
    same = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(lone, ir.Constant(vector, ir.Undefined), same)


def _places(builder: Any, start: ir.Value, widths: list[int]) -> list[ir.Value]:
    offsets = [sum(widths[:n]) for n in range(len(widths))]
    element = start.type.pointee
    return [
        builder.bitcast(builder.gep(start, [ir.IntType(64)(offset)]), ir.VectorType(element, width).as_pointer())
        for offset, width in zip(offsets, widths, strict=True)
    ]
