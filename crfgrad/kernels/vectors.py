"""Rows of values held in vector registers while kernels work on them.

Numba has no arrays in registers, so the innermost loops are written in LLVM's language. A row of C values is
loaded as a few vectors of the same length, the last of which begins early enough to end with the row: it may
repeat columns of the one before. So rows need no padding, and no loop over what is left.
"""

import math
from collections.abc import Callable
from functools import lru_cache, reduce
from inspect import Parameter, Signature, signature
from itertools import pairwise
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8  # numbers in the longest vector
TOGETHER = 4  # vectors that are worked on at the same time

Parts = tuple[tuple[int, ...], ...]
"""The columns of each vector of a part of a row; kernels are compiled for how many and how long they are."""


@lru_cache(maxsize=64)
def row_parts(channels: int, together: int = TOGETHER) -> list[Parts]:
    """Vectors that cover the columns of a row, in parts of up to ``together``."""
    lanes = LANES
    while lanes > channels:
        lanes //= 2
    starts = [min(start, channels - lanes) for start in range(0, channels, lanes)]
    vectors = [tuple(range(start, start + lanes)) for start in starts]
    count = -(-len(vectors) // together)
    ends = [len(vectors) * part // count for part in range(count + 1)]
    return [tuple(vectors[begin:end]) for begin, end in pairwise(ends)]


class Rows:
    """Rows of a contiguous array (rows, C), or its vector-sized part."""

    def __init__(self, code: "Code", array: Any, kind: Any, parts: ir.Value, parts_kind: Any) -> None:
        self.code, self.builder = code, code.builder
        self.array = code.context.make_array(kind)(code.context, code.builder, array)
        vectors = cgutils.unpack_tuple(self.builder, parts, parts_kind.count)
        self.starts = [self.builder.extract_value(vector, 0) for vector in vectors]
        self.vector = ir.VectorType(self.array.data.type.pointee, parts_kind.dtype.count)

    def size(self, axis: int) -> ir.Value:
        """How many rows or columns there are."""
        return self.builder.extract_value(self.array.shape, axis)

    def pointer(self, row: ir.Value) -> ir.Value:
        """Where a row begins."""
        return self.builder.gep(self.array.data, [self.builder.mul(row, self.size(1))])

    def load(self, row: ir.Value) -> list[ir.Value]:
        """The vectors of a row."""
        return self.load_from(self.pointer(row))

    def load_from(self, pointer: ir.Value) -> list[ir.Value]:
        """The vectors of a row that begins somewhere."""
        vectors = [self.builder.load(place) for place in self._places(pointer)]
        for vector in vectors:
            vector.align = 4
        return vectors

    def store(self, row: ir.Value, vectors: list[ir.Value]) -> None:
        """Writes the vectors of a row."""
        for vector, place in zip(vectors, self._places(self.pointer(row)), strict=True):
            self.builder.store(vector, place, align=4)

    def _places(self, pointer: ir.Value) -> list[ir.Value]:
        kind = self.vector.as_pointer()
        return [self.builder.bitcast(self.builder.gep(pointer, [start]), kind) for start in self.starts]

    def zeros(self) -> list[ir.Value]:
        """A row of zeros."""
        return [ir.Constant(self.vector, [0.0] * self.vector.count) for _ in self.starts]

    def load_once(self, row: ir.Value) -> list[ir.Value]:
        """The vectors of a row, see ``once``."""
        return self.once(self.load(row))

    def once(self, vectors: list[ir.Value]) -> list[ir.Value]:
        """A row with 0 in place of the columns that the vector before holds too."""
        builder, wide = self.builder, ir.VectorType(ir.IntType(64), self.vector.count)
        lanes, kept = ir.Constant(wide, list(range(wide.count))), vectors[:1]
        for n in range(1, len(vectors)):
            repeated = builder.sub(builder.add(self.starts[n - 1], ir.IntType(64)(wide.count)), self.starts[n])
            new = builder.icmp_signed(">=", lanes, self.code.spread(repeated, wide))
            kept.append(builder.select(new, vectors[n], self.zeros()[n]))
        return kept

    def fetch(self, row: ir.Value, writing: bool = False) -> None:
        """Asks for a row that is needed soon."""
        places = self._places(self.pointer(row))
        step = max(1, 64 // (self.vector.count * (4 if self.vector.element == ir.FloatType() else 8)))
        for place in {id(place): place for place in [*places[::step], places[-1]]}.values():
            self.code.fetch(place, writing)


class Code:
    """Shorthands for generating code."""

    def __init__(self, context: Any, builder: Any) -> None:
        self.context, self.builder = context, builder

    def fetch(self, pointer: ir.Value, writing: bool = False) -> None:
        """Asks for memory that is needed soon."""
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        self.builder.call(function, [self.builder.bitcast(pointer, byte), flag(int(writing)), flag(3), flag(1)])

    def entry(self, array: Any, *index: ir.Value) -> ir.Value:
        """A number of an array; integers as an index."""
        number = self.builder.load(self.place(array, *index))
        return number if isinstance(number.type, ir.FloatType | ir.DoubleType) else self.index(number)

    def place(self, array: Any, *index: ir.Value) -> ir.Value:
        """Where a number of an array of one or two dimensions is."""
        offset = index[0]
        if len(index) == 2:
            offset = self.builder.add(self.builder.mul(offset, self.size(array, 1)), index[1])
        return self.builder.gep(array.data, [offset])

    def size(self, array: Any, axis: int) -> ir.Value:
        """How long an array is along an axis."""
        return self.builder.extract_value(array.shape, axis)

    def variable(self, value: ir.Value) -> ir.Value:
        """Where a value is kept that changes in a loop."""
        place = cgutils.alloca_once(self.builder, value.type)
        self.builder.store(value, place)
        return place

    def index(self, number: ir.Value) -> ir.Value:
        """An integer as an index."""
        return self.builder.sext(number, ir.IntType(64)) if number.type.width < 64 else number

    def spread(self, number: ir.Value, vector: ir.Type) -> ir.Value:
        """The same number in all lanes."""
        lone = self.builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.IntType(32)(0))
        same = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
        return self.builder.shuffle_vector(lone, ir.Constant(vector, ir.Undefined), same)

    def multiply_add(self, left: ir.Value, right: ir.Value, total: ir.Value) -> ir.Value:
        """Returns left * right + total, rounded once where the processor can."""
        product = self.builder.fmul(left, right, flags=("contract",))
        return self.builder.fadd(total, product, flags=("contract",))

    def product(self, left: list[ir.Value], right: list[ir.Value]) -> ir.Value:
        """Inner product of two rows, lane by lane."""
        total = self.builder.fmul(left[0], right[0])
        for x, y in zip(left[1:], right[1:], strict=True):
            total = self.multiply_add(x, y, total)
        return total

    def over_lanes(self, function: Callable[[ir.Value, ir.Value], ir.Value], vectors: list[ir.Value]) -> ir.Value:
        """Reduces vectors to one number, by halves."""
        vector = reduce(function, vectors)
        while vector.type.count > 1:
            half = vector.type.count // 2
            kind = ir.VectorType(ir.IntType(32), half)
            sides = ir.Constant(kind, [*range(half)]), ir.Constant(kind, [*range(half, 2 * half)])
            vector = function(*(self.builder.shuffle_vector(vector, vector, side) for side in sides))
        return self.builder.extract_element(vector, ir.IntType(32)(0))

    def larger(self, left: ir.Value, right: ir.Value) -> ir.Value:
        """The larger of two numbers, lane by lane."""
        return self.builder.select(self.builder.fcmp_ordered(">", left, right), left, right)

    def exp(self, x: ir.Value) -> ir.Value:
        """Exponential of float32 <= 0: 2^n e^r with |r| <= ln(2) / 2, and a polynomial for e^r.

        The smallest normal number below -87, and 0 of minus infinity.
        """
        builder, bits = self.builder, ir.VectorType(ir.IntType(32), x.type.count)

        def same(number: float) -> ir.Value:
            return ir.Constant(x.type, [_float32(number)] * x.type.count)

        low = builder.select(builder.fcmp_ordered("<", x, same(-87)), same(-87), x)
        rounding = 1.5 * 2**23  # adding it leaves n in the last bits
        shifted = self.multiply_add(low, same(1 / math.log(2)), same(rounding))
        n = builder.fsub(shifted, same(rounding))
        r = self.multiply_add(n, same(-0.693359375), low)
        r = self.multiply_add(n, same(2.12194440e-4), r)  # ln(2) in two parts
        series = same(1 / 5040)
        for divisor in (720, 120, 24, 6, 2, 1, 1):
            series = self.multiply_add(series, r, same(1 / divisor))
        exponent = builder.shl(builder.bitcast(shifted, bits), ir.Constant(bits, [23] * x.type.count))
        power = builder.add(exponent, ir.Constant(bits, [127 << 23] * x.type.count))
        value = builder.fmul(series, builder.bitcast(power, x.type))
        return builder.select(builder.fcmp_ordered("==", x, same(-math.inf)), same(0), value)

    def sums(
        self, start: list[ir.Value], count: ir.Value, terms: Callable[[ir.Value], tuple[ir.Value, list[ir.Value]]]
    ) -> list[ir.Value]:
        """Adds number times vectors to vectors, for each k < count."""
        places = [self.variable(vector) for vector in start]
        with cgutils.for_range(self.builder, count) as loop:
            number, vectors = terms(loop.index)
            factor = self.spread(number, vectors[0].type)
            for vector, place in zip(vectors, places, strict=True):
                self.builder.store(self.multiply_add(factor, vector, self.builder.load(place)), place)
        return [self.builder.load(place) for place in places]


def _float32(number: float) -> float:
    return float(np.float32(number))


def in_registers(generate: Callable[..., None]) -> Any:
    """A function for kernels, ``f(parts, *arguments)``, from what generates its code.

    ``generate`` receives ``Code`` and the arguments: arrays of floats of two dimensions
    as ``Rows``, other arrays as numba's, and indices as 64-bit integers.
    """

    def typed(typing: Any, parts: Any, *kinds: Any) -> tuple[Any, Callable[..., ir.Value]]:
        def code(context: Any, builder: Any, _: Any, args: Any) -> ir.Value:
            writer = Code(context, builder)
            pairs = zip(kinds, args[1:], strict=True)
            generate(writer, *(_seen(writer, kind, value, args[0], parts) for kind, value in pairs))
            return context.get_dummy_value()

        return types.void(parts, *kinds), code

    names = ["typing", "parts", *list(signature(generate).parameters)[1:]]
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    typed.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    typed.__name__ = generate.__name__
    return intrinsic(typed)


def _seen(code: Code, kind: Any, value: ir.Value, parts: ir.Value, parts_kind: Any) -> Any:
    if not isinstance(kind, types.Array):
        return code.index(value) if isinstance(kind, types.Integer) else value
    if kind.ndim == 2 and isinstance(kind.dtype, types.Float):
        return Rows(code, value, kind, parts, parts_kind)
    return code.context.make_array(kind)(code.context, code.builder, value)
