"""Matrix products on rows picked from arrays, with the running sums in vector registers.

Each function equals the NumPy expression in its docstring, in the columns of some parts. A list of rows may be None,
for all of them; ``add`` is a constant.
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
    parts: Parts,
    left: np.ndarray,
    which: np.ndarray | None,
    right: np.ndarray,
    out: np.ndarray,
    into: np.ndarray | None,
    add: bool,
) -> None:
    """``out[into] = left[which] @ right``, or ``+=`` if ``add``; ``into`` names each row once."""
    for row in range(0, len(out) if into is None else len(into), ROWS):
        _multiply_tile(parts, left, which, right, out, into, row, add)


@kernel
def correlate(
    parts: Parts,
    left: np.ndarray,
    which: np.ndarray | None,
    right: np.ndarray,
    other: np.ndarray | None,
    out: np.ndarray,
    add: bool,
) -> None:
    """``out = left[which].T @ right[other]``, or ``+=`` if ``add``."""
    whole = len(out) - len(out) % ROWS
    for row in range(0, whole, ROWS):
        _correlate_tile(parts, left, which, right, other, out, row, True, add)
    if whole < len(out):
        _correlate_tile(parts, left, which, right, other, out, whole, False, add)


@in_registers
def _multiply_tile(
    code: Code,
    parts: Columns,
    left: Array,
    which: Array | None,
    right: Array,
    out: Array,
    into: Array | None,
    row: Value,
    add: bool,
) -> None:
    rows = _rows(row, (into or out).size())
    sources = [which[one] if which else one for one in rows]

    def term(k: Value) -> tuple[list[Value], Value]:
        return [left[source, k] for source in sources], parts.load(right.place(k))

    _sum(code, parts, [out.place(into[one] if into else one) for one in rows], right.size(), term, add)


@in_registers
def _correlate_tile(
    code: Code,
    parts: Columns,
    left: Array,
    which: Array | None,
    right: Array,
    other: Array | None,
    out: Array,
    row: Value,
    whole: bool,
    add: bool,
) -> None:
    rows = [row + n for n in range(ROWS)] if whole else _rows(row, out.size())

    def term(k: Value) -> tuple[list[Value], Value]:
        source = which[k] if which else k
        numbers = left.numbers(ROWS, source, row) if whole else [left[source, one] for one in rows]
        return numbers, parts.load(right.place(other[k] if other else k))

    _sum(code, parts, [out.place(one) for one in rows], (which or left).size(), term, add)


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
