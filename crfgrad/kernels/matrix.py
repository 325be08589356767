"""Matrix products on rows picked from arrays, with the running sums in vector registers.

Each function equals the NumPy expression in its docstring, in the columns of some parts.
"""

from collections.abc import Callable

import numpy as np

from crfgrad.kernels.parallel import kernel
from crfgrad.kernels.vectors import REGISTER, Array, Code, Columns, Parts, Value, in_registers, lanes_of, row_parts

ROWS = 8 if REGISTER == 64 else 4
"""Rows of the result that are summed up together: with three vectors each they fill most of 32 or of 16 registers."""


def column_parts(columns: int, dtype: np.dtype) -> list[Parts]:
    """Parts of a row for these functions."""
    return row_parts(columns, lanes_of(dtype), 3)


@kernel
def multiply(
    parts: Parts, left: np.ndarray, which: np.ndarray, right: np.ndarray, out: np.ndarray, into: np.ndarray, add: bool
) -> None:
    """``out[into] = left[which] @ right``, or ``+=``; ``into`` names each row once, and ``add`` is a constant."""
    for row in range(0, len(which), ROWS):
        _multiply_tile(parts, left, which, right, out, into, row, add)


@kernel
def correlate(
    parts: Parts, left: np.ndarray, which: np.ndarray, right: np.ndarray, other: np.ndarray, out: np.ndarray, add: bool
) -> None:
    """``out = left[which].T @ right[other]``, or ``+=`` if ``add``, which is a constant."""
    for row in range(0, len(out), ROWS):
        _correlate_tile(parts, left, which, right, other, out, row, add)


@in_registers
def _multiply_tile(
    code: Code,
    parts: Columns,
    left: Array,
    which: Array,
    right: Array,
    out: Array,
    into: Array,
    row: Value,
    add: bool,
) -> None:
    rows = _rows(row, which.size())
    sources = [which[one] for one in rows]

    def term(k: Value) -> tuple[list[Value], Value]:
        return [left[source, k] for source in sources], parts.load(right.place(k))

    _sum(code, parts, [out.place(into[one]) for one in rows], right.size(), term, add)


@in_registers
def _correlate_tile(
    code: Code,
    parts: Columns,
    left: Array,
    which: Array,
    right: Array,
    other: Array,
    out: Array,
    row: Value,
    add: bool,
) -> None:
    rows = _rows(row, out.size())

    def term(k: Value) -> tuple[list[Value], Value]:
        source = which[k]
        return [left[source, one] for one in rows], parts.load(right.place(other[k]))

    _sum(code, parts, [out.place(one) for one in rows], which.size(), term, add)


def _rows(row: Value, count: Value) -> list[Value]:
    """Rows of a tile, the last one again where there are no more: sums are read before any is written."""
    rows = [row + n for n in range(ROWS)]
    return [(one < count).choose(one, count - 1) for one in rows]


def _sum(
    code: Code,
    parts: Columns,
    targets: list[Value],
    count: Value,
    term: Callable[[Value], tuple[list[Value], Value]],
    add: bool,
) -> None:
    start = [parts.load(target) if add else parts.zeros(target) for target in targets]
    for target, total in zip(targets, code.sums(start, count, term), strict=True):
        parts.store(target, total)
