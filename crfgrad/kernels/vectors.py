"""Innermost loops on numbers in vector registers, which numba does not have: Python that writes LLVM's language.

A row of C numbers is loaded as a few vectors of the same length, the last of which begins early enough to end with
the row: it may repeat columns of the one before. So rows need no padding, and no loop over what is left.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, reduce
from inspect import Parameter, Signature, signature
from itertools import pairwise
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

_chosen = numba.config.CPU_FEATURES  # type: ignore[attr-defined]
_FEATURES = (get_host_cpu_features() if _chosen is None else _chosen).split(",")
REGISTER = 64 if "+avx512f" in _FEATURES else 32 if "+avx" in _FEATURES else 16
"""Bytes in a vector register."""

Parts = tuple[tuple[int, ...], ...]
"""The columns of each vector of a row, or of a part of it; kernels are compiled for how many and how long they are."""


def lanes_of(dtype: np.dtype) -> int:
    """How many numbers fill a register, at least four."""
    return max(4, REGISTER // dtype.itemsize)


@lru_cache
def row_parts(columns: int, lanes: int = 8, together: int = 4) -> list[Parts]:
    """Vectors of at most ``lanes`` numbers that cover the columns of a row, in parts of at most ``together``."""
    while lanes > columns:
        lanes //= 2
    starts = [min(start, columns - lanes) for start in range(0, columns, lanes)]
    vectors = [tuple(range(start, start + lanes)) for start in starts]
    count = -(-len(vectors) // together)
    ends = [len(vectors) * part // count for part in range(count + 1)]
    return [tuple(vectors[begin:end]) for begin, end in pairwise(ends)]


class Value:
    """A number, a row of numbers as some vectors, or a place in memory, while code is written.

    Arithmetic writes instructions; a number meets each number of a row. Products are rounded together with sums
    where the processor can. Integers have 64 bits.
    """

    def __init__(self, builder: Any, vectors: Iterable[ir.Value]) -> None:
        self.builder, self.vectors = builder, list(vectors)

    @property
    def type(self) -> ir.Type:
        """Of the number, or of each vector."""
        return self.vectors[0].type

    def alike(self, other: "Operand") -> "Value":
        """A number in all places of a row like this one; a row as it is."""
        if not isinstance(other, Value):
            number = [other] * self.type.count if isinstance(self.type, ir.VectorType) else other
            return Value(self.builder, [ir.Constant(self.type, number)] * len(self.vectors))
        if not isinstance(self.type, ir.VectorType) or isinstance(other.type, ir.VectorType):
            return other
        undefined = ir.Constant(self.type, ir.Undefined)
        lone = Value(self.builder, [self.builder.insert_element(undefined, other.vectors[0], ir.IntType(32)(0))])
        return Value(self.builder, lone.shuffled(lone, [0] * self.type.count).vectors * len(self.vectors))

    def _with(self, other: "Operand", name: str) -> "Value":
        left, right = other.alike(self) if isinstance(other, Value) else self, self.alike(other)
        if _is_real(left.type):
            return left.map(lambda *pair: getattr(self.builder, "f" + name)(*pair, flags=("contract",)), right)
        return left.map(getattr(self.builder, name), right)

    def __add__(self, other: "Operand") -> "Value":
        return self._with(other, "add")

    def __sub__(self, other: "Operand") -> "Value":
        return self._with(other, "sub")

    def __mul__(self, other: "Operand") -> "Value":
        return self._with(other, "mul")

    def __xor__(self, other: "Operand") -> "Value":
        return self._with(other, "xor")

    def __and__(self, other: "Operand") -> "Value":
        return self._with(other, "and_")

    def __rshift__(self, other: "Operand") -> "Value":
        return self._with(other, "ashr")

    def __neg__(self) -> "Value":
        return self.map(self.builder.fneg)

    def __lt__(self, other: "Operand") -> "Value":
        """Of integers."""
        return self.map(lambda *pair: self.builder.icmp_signed("<", *pair), self.alike(other))

    def __gt__(self, other: "Operand") -> "Value":
        """Of integers."""
        return self.alike(other) < self

    def map(self, function: Callable[..., ir.Value], *others: "Value") -> "Value":
        """A function of each vector, and of those of other rows."""
        return Value(self.builder, map(function, self.vectors, *(other.vectors for other in others)))

    def choose(self, yes: "Value", no: "Value") -> "Value":
        """One thing if this is true, another if not."""
        return yes.map(lambda *pair: self.builder.select(self.vectors[0], *pair), no)

    def shuffled(self, other: "Value", order: Iterable[int]) -> "Value":
        """Some of the numbers of two vectors."""
        places = list(order)
        index = ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places)
        return self.map(lambda *pair: self.builder.shuffle_vector(*pair, index), other)

    def folded(self) -> "Value":
        """The sum of the vectors of a row."""
        return reduce(Value.__add__, (Value(self.builder, [vector]) for vector in self.vectors))

    def sum(self) -> "Value":
        """The sum of all numbers of a row, by halves."""
        total = self.folded()
        while total.type.count > 1:
            half = total.type.count // 2
            total = total.shuffled(total, range(half)) + total.shuffled(total, range(half, 2 * half))
        return Value(self.builder, [self.builder.extract_element(total.vectors[0], ir.IntType(32)(0))])


Operand = Value | int | float


def _is_real(kind: ir.Type) -> bool:
    return isinstance(getattr(kind, "element", kind), ir.FloatType | ir.DoubleType)


class Array:
    """An array of one or two dimensions whose rows are contiguous."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: ir.Value) -> None:
        self.builder = builder
        self.array = context.make_array(kind)(context, builder, value)
        self.element = context.get_data_type(kind.dtype)
        self.itemsize = context.get_abi_sizeof(self.element)

    def size(self, axis: int = 0) -> Value:
        """How many rows or columns there are."""
        return Value(self.builder, [self.builder.extract_value(self.array.shape, axis)])

    def place(self, *index: Value) -> Value:
        """Where a number or a row begins."""
        builder, start = self.builder, self.array.data
        if self.array.strides.type.count == 2:
            row, *index = index  # type: ignore[assignment]
            step = Value(builder, [builder.extract_value(self.array.strides, 0)])  # in bytes
            bytes_ = builder.bitcast(start, ir.IntType(8).as_pointer())
            start = builder.bitcast(builder.gep(bytes_, (row * step).vectors), start.type)
        return Value(builder, [builder.gep(start, index[0].vectors) if index else start])

    def __getitem__(self, index: Value | tuple[Value, Value]) -> Value:
        """A number; integers with 64 bits."""
        place = self.place(*index) if isinstance(index, tuple) else self.place(index)
        number = self.builder.load(place.vectors[0])
        if isinstance(number.type, ir.IntType) and number.type.width < 64:
            number = self.builder.sext(number, ir.IntType(64))
        return Value(self.builder, [number])

    def numbers(self, count: int, *index: Value) -> list[Value]:
        """Real numbers that follow each other."""
        start = self.place(*index).vectors[0]
        places = [self.builder.gep(start, [ir.IntType(64)(n)]) for n in range(count)]
        return [Value(self.builder, [self.builder.load(place)]) for place in places]

    def __setitem__(self, index: tuple[Value, Value], number: Value) -> None:
        """Writes a number."""
        self.builder.store(number.vectors[0], self.place(*index).vectors[0])


class Columns:
    """The columns of a row that are worked on, see ``Parts``."""

    def __init__(self, builder: Any, starts: list[ir.Value], lanes: int) -> None:
        self.builder, self.starts, self.lanes = builder, starts, lanes

    def _places(self, row: Value) -> list[ir.Value]:
        (start,) = row.vectors
        kind = ir.VectorType(start.type.pointee, self.lanes).as_pointer()
        return [self.builder.bitcast(self.builder.gep(start, [one]), kind) for one in self.starts]

    def load(self, row: Value) -> Value:
        """The vectors of a row that begins at a place."""
        return Value(self.builder, [self.builder.load(place, align=4) for place in self._places(row)])

    def store(self, row: Value, value: Value) -> None:
        """Writes the vectors of a row."""
        for place, vector in zip(self._places(row), value.vectors, strict=True):
            self.builder.store(vector, place, align=4)

    def zeros(self, place: Value) -> Value:
        """A row of zeros, of the type that is at a place."""
        kind = ir.VectorType(place.type.pointee, self.lanes)
        return Value(self.builder, [ir.Constant(kind, [0.0] * self.lanes)] * len(self.starts))

    def once(self, row: Value) -> Value:
        """A row with 0 in place of what the vector before holds too."""
        numbers = ir.Constant(ir.VectorType(ir.IntType(64), self.lanes), list(range(self.lanes)))
        lanes, starts = Value(self.builder, [numbers]), [Value(self.builder, [start]) for start in self.starts]
        zero, kept = ir.Constant(row.type, [0.0] * self.lanes), row.vectors[:1]
        for before, start, vector in zip(starts, starts[1:], row.vectors[1:], strict=False):
            (repeated,) = (lanes < before + self.lanes - start).vectors
            kept.append(self.builder.select(repeated, zero, vector))
        return Value(self.builder, kept)


class Variable:
    """A value that changes in a loop."""

    def __init__(self, value: Value) -> None:
        self.builder = value.builder
        self.places = [cgutils.alloca_once(self.builder, vector.type) for vector in value.vectors]
        self.value = value

    @property
    def value(self) -> Value:
        """As it is now."""
        return Value(self.builder, map(self.builder.load, self.places))

    @value.setter
    def value(self, value: Value) -> None:
        for vector, place in zip(value.vectors, self.places, strict=True):
            self.builder.store(vector, place)


class Code:
    """What a function that is decorated with ``in_registers`` writes."""

    def __init__(self, context: Any, builder: Any) -> None:
        self.context, self.builder = context, builder

    def number(self, number: Operand) -> Value:
        """An integer."""
        return number if isinstance(number, Value) else Value(self.builder, [ir.IntType(64)(number)])

    def vector(self, count: int) -> Columns:
        """So many columns, as one vector."""
        return Columns(self.builder, [ir.IntType(64)(0)], count)

    @contextmanager
    def loop(self, count: Operand) -> Iterator[Value]:
        """What is written in this context happens for each index below a count."""
        with cgutils.for_range(self.builder, self.number(count).vectors[0]) as loop:
            yield Value(self.builder, [loop.index])

    def sums(
        self, totals: list[Value], count: Operand, term: Callable[[Value], tuple[list[Value], Value]]
    ) -> list[Value]:
        """Adds to each of the totals its number times the row, of each term k < count."""
        variables = [Variable(total) for total in totals]
        with self.loop(count) as k:
            numbers, row = term(k)
            for variable, number in zip(variables, numbers, strict=True):
                variable.value = number * row + variable.value
        return [variable.value for variable in variables]

    def fetch(self, place: Value) -> None:
        """Asks for memory that is needed soon."""
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        self.builder.call(function, [self.builder.bitcast(place.vectors[0], byte), flag(0), flag(3), flag(1)])

    def seen(self, kind: Any, value: ir.Value) -> Any:
        """An argument of a kernel: arrays, columns (of ``Parts``), numbers, constants and tuples of these."""
        if isinstance(kind, types.Literal):
            return kind.literal_value
        if isinstance(kind, types.NoneType):
            return None
        if isinstance(kind, types.Array):
            return Array(self.context, self.builder, kind, value)
        if isinstance(kind, types.UniTuple | types.Tuple):
            entries = cgutils.unpack_tuple(self.builder, value, len(kind))
            if isinstance(kind, types.UniTuple) and isinstance(kind.dtype, types.UniTuple):
                starts = [self.builder.extract_value(entry, 0) for entry in entries]
                return Columns(self.builder, starts, len(kind.dtype))
            return tuple(self.seen(*pair) for pair in zip(kind.types, entries, strict=True))
        if isinstance(kind, types.Integer):
            value = self.context.cast(self.builder, value, kind, types.int64)
        return Value(self.builder, [value])


def in_registers(generate: Callable[..., None]) -> Any:
    """A function for kernels from one that writes its code, and receives ``Code`` and the arguments."""

    def typed(typing: Any, *kinds: Any) -> tuple[Any, Callable[..., ir.Value]]:
        def write(context: Any, builder: Any, _: Any, args: Any) -> ir.Value:
            code = Code(context, builder)
            generate(code, *map(code.seen, kinds, args))
            return context.get_dummy_value()

        return types.void(*kinds), write

    names = ["typing", *list(signature(generate).parameters)[1:]]
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    typed.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    typed.__name__ = generate.__name__
    return intrinsic(prefer_literal=True)(typed)
