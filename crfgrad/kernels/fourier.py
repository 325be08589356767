"""Fourier transforms of rows of vectors, in vector registers, with real and imaginary parts apart.

A transform of a * b complex numbers is a pass of radix a and one of radix b; one of n real numbers is one of n / 2
complex ones, whose real parts are the even numbers; an inverse one is the transform with real and imaginary parts
exchanged, up to a factor.

Rows are a tuple (array, start, step, plane): row k begins at start + k * step of a flat array, and its imaginary
parts are ``plane`` behind its real parts. Real rows have no plane.
"""

import math
from dataclasses import dataclass

import numpy as np

from crfgrad.kernels.parallel import kernel
from crfgrad.kernels.vectors import Array, Code, Operand, Value, in_registers

LANES = 16  # numbers in a vector
LONGEST = 256  # numbers in a transform
WORK = 4 * LONGEST * LANES  # numbers of which a transform needs room

RowsOf = tuple[Array, Operand, Operand, Operand]
"""Rows as they are seen where code is written."""


def radix(n: int) -> int:
    """The first radix a of a transform of n = a * b numbers."""
    return int(2 ** math.ceil(math.log2(n) / 2))


def powers(n: int, dtype: np.dtype) -> np.ndarray:
    """Powers of exp(-2 pi i / n) between the passes of a transform of n numbers."""
    return pairs(np.outer(np.arange(radix(n)), np.arange(n // radix(n))) / n, dtype)


def pairs(turns: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Real and imaginary parts of exp(-2 pi i t)."""
    both: np.ndarray = np.stack([np.cos(2 * np.pi * turns), -np.sin(2 * np.pi * turns)], -1)
    return both.reshape(-1).astype(dtype)


@kernel
def real_transform(
    source: tuple, target: tuple, work: np.ndarray, powers: np.ndarray, halves: np.ndarray, scale: np.ndarray, n: int
) -> None:
    """Half of the frequencies of n real rows of one vector, times a scale."""
    half = n // 2
    array, start, step = source
    rows = _inside(work, half)
    transform((array, start, 2 * step, step), rows, work, powers, half, rows[2])
    for k in range(half // 2 + 1):
        _split(rows, target, k, half, halves[2 * k], halves[2 * k + 1], scale[k])


@kernel
def real_inverse(
    source: tuple, target: tuple, work: np.ndarray, powers: np.ndarray, halves: np.ndarray, scale: np.ndarray, n: int
) -> None:
    """Real rows of one vector from half of the frequencies, times a scale; equals torch's, but for a factor n."""
    half = n // 2
    array, start, step = target
    rows = _inside(work, half)
    for k in range(half // 2 + 1):
        imaginary = scale[k] * (k > 0)  # of the first and last frequencies only the real parts count
        _join(source, rows, k, half, halves[2 * k], halves[2 * k + 1], scale[k], imaginary)
    transform(swapped(rows), (array, start + step, 2 * step, -step), work, powers, half, rows[2])


@kernel
def swapped(rows: tuple) -> tuple:
    """Rows with real and imaginary parts exchanged."""
    array, start, step, plane = rows
    return array, start + plane, step, -plane


@kernel
def _inside(work: np.ndarray, half: int) -> tuple:
    """Complex rows of which real ones are made; as int64, for which numba does not compile anew as for constants."""
    return work, np.int64(0), np.int64(LANES), half * LANES


@kernel
def transform(source: tuple, target: tuple, work: np.ndarray, powers: np.ndarray, n: int, lanes: int) -> None:
    """Transform of n complex rows, 1 or from 8 to LONGEST, of whole vectors; may be in place."""
    b = 1
    while 2 * b * b < n:
        b *= 2
    a = n // b
    for lane in range(0, lanes, LANES):
        if a == 1:
            _first_pass(1, b, source, work, lane)
        elif a == 4:
            _first_pass(4, b, source, work, lane)
        elif a == 8:
            _first_pass(8, b, source, work, lane)
        elif a == 16:
            _first_pass(16, b, source, work, lane)
        if b == 1:
            _second_pass(a, 1, work, target, powers, lane)
        elif b == 2:
            _second_pass(a, 2, work, target, powers, lane)
        elif b == 4:
            _second_pass(a, 4, work, target, powers, lane)
        elif b == 8:
            _second_pass(a, 8, work, target, powers, lane)
        elif b == 16:
            _second_pass(a, 16, work, target, powers, lane)


@in_registers
def _first_pass(code: Code, a: int, b: Value, source: RowsOf, work: Array, lane: Value) -> None:
    rows, middle = Rows(code, *source, lane), _middle(code, work)
    with code.loop(b) as j:
        for k, row in enumerate(_transform([rows.load(b * i + j) for i in range(a)])):
            middle.store(row, j * a + k)


@in_registers
def _second_pass(code: Code, a: Value, b: int, work: Array, target: RowsOf, powers: Array, lane: Value) -> None:
    middle, result = _middle(code, work), Rows(code, *target, lane)
    with code.loop(a) as k:
        rows = [middle.load(a * j + k) for j in range(b)]
        for j in range(1, b):
            power = (k * b + j) * 2
            rows[j] = rows[j] * Complex(powers[power], powers[power + 1])
        for i, row in enumerate(_transform(rows)):
            result.store(row, a * i + k)


@in_registers
def _split(
    code: Code, source: RowsOf, target: RowsOf, k: Value, half: Value, cosine: Value, sine: Value, scale: Value
) -> None:
    """Frequencies k and half - k of real rows from those of even plus i times odd rows."""
    rows, result, mirror = Rows(code, *source), Rows(code, *target), half - k
    one, other = rows.load(k), rows.load((mirror < half).choose(mirror, k)).conjugate()
    even, difference = one + other, one - other
    odd = Complex(difference.imaginary, -difference.real) * Complex(cosine, sine)
    result.store((even + odd).scaled(scale), k)
    result.store((even - odd).conjugate().scaled(scale), mirror)


@in_registers
def _join(
    code: Code,
    source: RowsOf,
    target: RowsOf,
    k: Value,
    half: Value,
    cosine: Value,
    sine: Value,
    scale: Value,
    imaginary: Value,
) -> None:
    """The inverse of ``_split``, with a scale for real and one for imaginary parts."""
    rows, result, mirror = Rows(code, *source), Rows(code, *target), half - k
    one, other = (Complex(row.real * scale, row.imaginary * imaginary) for row in (rows.load(k), rows.load(mirror)))
    even, odd = one + other.conjugate(), (one - other.conjugate()) * Complex(cosine, -sine)
    odd = Complex(-odd.imaginary, odd.real)
    # row 0 is its own mirror image: the last one counts
    result.store((even - odd).conjugate(), (mirror < half).choose(mirror, k))
    result.store(even + odd, k)


@dataclass
class Complex:
    """Real and imaginary parts, each a vector or a number."""

    real: Value
    imaginary: Value

    def __add__(self, other: "Complex") -> "Complex":
        return Complex(self.real + other.real, self.imaginary + other.imaginary)

    def __sub__(self, other: "Complex") -> "Complex":
        return Complex(self.real - other.real, self.imaginary - other.imaginary)

    def __mul__(self, other: "Complex") -> "Complex":
        real = self.real * other.real - self.imaginary * other.imaginary
        return Complex(real, self.imaginary * other.real + self.real * other.imaginary)

    def conjugate(self) -> "Complex":
        """With the imaginary part negated."""
        return Complex(self.real, -self.imaginary)

    def scaled(self, factor: Value) -> "Complex":
        """Times a real number."""
        return Complex(self.real * factor, self.imaginary * factor)

    def turned(self, turns: float) -> "Complex":
        """Times exp(-2 pi i t)."""
        if turns == 0:
            return self
        if turns == 0.25:
            return Complex(self.imaginary, -self.real)
        cosine, sine = math.cos(2 * math.pi * turns), math.sin(2 * math.pi * turns)
        imaginary = self.imaginary * cosine - self.real * sine
        return Complex(self.real * cosine + self.imaginary * sine, imaginary)


class Rows:
    """Rows of complex vectors, see above; ``lane`` is where the vector of a row begins."""

    def __init__(
        self, code: Code, array: Array, start: Operand, step: Operand, plane: Operand, lane: Operand = 0
    ) -> None:
        self.vector, self.array = code.vector(LANES), array
        self.start = code.number(start) + lane
        self.step, self.plane = code.number(step), code.number(plane)

    def _places(self, row: Value) -> tuple[Value, Value]:
        place = self.start + row * self.step
        return self.array.place(place), self.array.place(place + self.plane)

    def load(self, row: Value) -> Complex:
        """Reads a row."""
        real, imaginary = map(self.vector.load, self._places(row))
        return Complex(real, imaginary)

    def store(self, value: Complex, row: Value) -> None:
        """Writes a row."""
        for place, part in zip(self._places(row), (value.real, value.imaginary), strict=True):
            self.vector.store(place, part)


def _middle(code: Code, work: Array) -> Rows:
    """What lies between two passes."""
    return Rows(code, work, WORK // 2, LANES, LONGEST * LANES)


def _transform(rows: list[Complex]) -> list[Complex]:
    """Transform of some vectors, from those of the even and of the odd ones."""
    if len(rows) == 1:
        return rows
    even, odd = _transform(rows[::2]), _transform(rows[1::2])
    turned = [row.turned(k / len(rows)) for k, row in enumerate(odd)]
    return [a + b for a, b in zip(even, turned, strict=True)] + [a - b for a, b in zip(even, turned, strict=True)]
