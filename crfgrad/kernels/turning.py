"""Rows become columns and columns rows, four numbers of a vector of rows at a time, in vector registers."""

import numpy as np

from crfgrad.kernels.parallel import kernel
from crfgrad.kernels.vectors import REGISTER, Array, Code, Value, in_registers

FOUR = 4


@kernel
def turn(source: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """``out[: source.shape[1], : len(rows)] = source[rows].T``; there are whole vectors of rows."""
    columns, width = source.shape[1], max(FOUR, REGISTER // source.itemsize)
    for begin in range(0, len(rows), width):
        if columns < FOUR:
            for n in range(begin, begin + width):
                for column in range(columns):
                    out[column, n] = source[rows[n], column]
        else:
            for column in range(0, columns, FOUR):
                _turn(source, rows, out, begin, min(column, columns - FOUR))


@kernel
def turn_back(source: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """``out[rows] = source[: out.shape[1], : len(rows)].T``."""
    columns, width = out.shape[1], max(FOUR, REGISTER // out.itemsize)
    for begin in range(0, len(rows), width):
        if columns < FOUR:
            for n in range(begin, begin + width):
                for column in range(columns):
                    out[rows[n], column] = source[column, n]
        else:
            for column in range(0, columns, FOUR):
                _turn_back(source, rows, out, begin, min(column, columns - FOUR))


@in_registers
def _turn(code: Code, source: Array, rows: Array, out: Array, begin: Value, column: Value) -> None:
    """Four columns of a vector of rows, as four vectors."""
    width = max(FOUR, REGISTER // source.itemsize)
    pieces = [code.vector(FOUR).load(source.place(rows[begin + n], column)) for n in range(width)]
    for n, turned in enumerate(_turned([_joined(pieces[n::FOUR]) for n in range(FOUR)])):
        code.vector(width).store(out.place(column + n, begin), turned)


@in_registers
def _turn_back(code: Code, source: Array, rows: Array, out: Array, begin: Value, column: Value) -> None:
    """Four vectors as four columns of a vector of rows."""
    width = max(FOUR, REGISTER // source.itemsize)
    turned = _turned([code.vector(width).load(source.place(column + n, begin)) for n in range(FOUR)])
    for n in range(width):
        row, block = turned[n % FOUR], n // FOUR * FOUR
        code.vector(FOUR).store(out.place(rows[begin + n], column), row.shuffled(row, range(block, block + FOUR)))


def _joined(vectors: list[Value]) -> Value:
    """Vectors one after the other, as one."""
    while len(vectors) > 1:
        both = range(2 * vectors[0].type.count)
        vectors = [left.shuffled(right, both) for left, right in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def _turned(vectors: list[Value]) -> list[Value]:
    """Four vectors with each block of 4 x 4 numbers transposed."""
    width = vectors[0].type.count

    def mixed(left: Value, right: Value, order: tuple[int, ...]) -> Value:
        """In each block of four numbers, these of the left (0 to 3) and of the right (4 to 7)."""
        places = [n % FOUR + block + n // FOUR * width for block in range(0, width, FOUR) for n in order]
        return left.shuffled(right, places)

    a, b, c, d = vectors
    low, high, start, end = (0, 4, 1, 5), (2, 6, 3, 7), (0, 1, 4, 5), (2, 3, 6, 7)
    halves = [(mixed(a, b, order), mixed(c, d, order)) for order in (low, high)]
    return [mixed(*pair, order) for pair in halves for order in (start, end)]
