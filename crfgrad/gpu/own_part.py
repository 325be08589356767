"""Triton twins of ``crfgrad.ops.own_part``: each pixel is a group by itself.

A block of pixels is multiplied by the matrix of one set of axes after the other, each pixel with its coefficient of
that set, 0 for most.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crfgrad.gpu.corner_pairs import DIMENSIONS
from crfgrad.gpu.interpolation import gathered, interpolate_onto, sliced
from crfgrad.gpu.launch import cdiv, contiguous, flat, launch, power, precision
from crfgrad.gpu.taps import add_up, filter_matrices_parts, inner_tile, split, tile
from crfgrad.ops.own_part import places_of

PIXELS = 64  # of a block of a sum


def own_part(values: Tensor, coefficients: Tensor, matrices: Tensor, *groups: Any) -> Any:
    """See ``crfgrad.ops.own_part.own_part_filter``."""
    return received(None, None, None, values, coefficients, matrices, places_of(*groups[:3]), None, None)


def own_part_transpose(grad: Tensor, coefficients: Tensor, matrices: Tensor, *groups: Any) -> Any:
    """See ``crfgrad.ops.own_part.own_part_transpose``."""
    return own_part(grad, coefficients, matrices.mT, *groups)


def receive(vertices: Tensor, barycentric: Tensor, corners: Tensor, *rest: Any) -> Any:
    """See ``crfgrad.ops.message.lattice_receive``."""
    *_, values, coefficients, matrices, pixels, starts, sets, _, _, first, second = rest
    if values is None:
        return interpolate_onto(vertices, barycentric, corners, first, second)
    sets = places_of(pixels, starts, sets)
    return received(vertices, barycentric, corners, values, coefficients, matrices, sets, first, second)


def received(
    vertices: Tensor | None,
    barycentric: Tensor | None,
    corners: Tensor | None,
    values: Tensor,
    coefficients: Tensor,
    matrices: Tensor,
    sets: Tensor,
    first: Tensor | None,
    second: Tensor | None,
) -> Any:
    """The own part, and what is added to it: a slice, and one or two fields."""
    values, coefficients, sets = flat(values), flat(coefficients), flat(sets)
    if not _served(values, sets):
        return NotImplemented
    vertices, barycentric, corners = flat(vertices), flat(barycentric), flat(corners)
    first, second = flat(first), flat(second)
    count, (number, outputs, inputs) = len(values), matrices.shape
    out = values.new_empty(count, outputs)
    sizes = {"INPUTS": inner_tile(inputs), "OUTPUTS": tile(outputs), "PAIRS": power(sets.shape[1])}
    sizes["ROWS"] = 32 if outputs <= 32 and vertices is not None else 16  # more spill registers
    grid = cdiv(count, sizes["ROWS"]), cdiv(outputs, sizes["OUTPUTS"])
    tensors = vertices, barycentric, corners, values, coefficients, matrices, sets, first, second, out
    given = *tensors, count, 0 if vertices is None else len(vertices), number, inputs, outputs, sets.shape[1]
    options: dict[str, Any] = {
        "CORNERS": 0 if corners is None else corners.shape[1],
        "PRECISION": precision(),
        "warps": 8,
    }
    launch(_received, grid, *given, *matrices.stride(), **options, **sizes)
    return out


def _served(values: Tensor, sets: Tensor) -> bool:
    return values.dtype == torch.float32 and sets.shape[1] <= 1 + DIMENSIONS * (DIMENSIONS + 1) // 2


@contiguous
def own_part_coefficients(grad: Tensor, values: Tensor, matrices: Tensor, *groups: Any) -> Any:
    """See ``crfgrad.ops.own_part.own_part_coefficients``."""
    sets = places_of(*groups[:3])
    if not _served(values, sets):
        return NotImplemented
    count, (number, outputs, inputs) = len(values), matrices.shape
    out = values.new_empty(sets.shape)
    pairs = power(sets.shape[1])
    sizes = {"ROWS": 16, "INPUTS": inner_tile(inputs), "OUTPUTS": inner_tile(outputs), "PAIRS": pairs}
    given = grad, values, matrices, sets, out, count, number, inputs, outputs, sets.shape[1]
    launch(_coefficients, (cdiv(count, sizes["ROWS"]),), *given, PRECISION=precision(), warps=8, **sizes)
    return out


@contiguous
def own_part_matrices(grad: Tensor, values: Tensor, coefficients: Tensor, *groups: Any) -> Any:
    """See ``crfgrad.ops.own_part.own_part_matrices``."""
    *of_pixels, count, symmetric = groups
    sets = places_of(*of_pixels)
    if not _served(values, sets):
        return NotImplemented
    _, parts = split(len(values), PIXELS)
    found = values.new_empty(parts, count, grad.shape[1], values.shape[1])
    _matrices_of(grad, values, coefficients, sets, found, 0)
    out = torch.empty_like(found[0])
    add_up(found, out, symmetric)
    return out


@contiguous
def message_matrices(
    by_vertices: Tensor,
    vertices: Tensor,
    neighbours: Tensor,
    grad: Tensor,
    values: Tensor,
    coefficients: Tensor,
    *groups: Any,
) -> Any:
    """See ``crfgrad.ops.message.lattice_message_matrices``."""
    *of_pixels, count, symmetric = groups
    sets = places_of(*of_pixels)
    if not _served(values, sets):
        return NotImplemented
    taps = len(neighbours)
    parts = max(split(len(values), PIXELS)[1], split(len(vertices), PIXELS)[1])
    found = values.new_empty(parts, taps + count, grad.shape[1], values.shape[1])
    filter_matrices_parts(by_vertices, vertices, neighbours, found)
    _matrices_of(grad, values, coefficients, sets, found, taps)
    out = torch.empty_like(found[0])
    add_up(found, out, symmetric, taps)
    return out


def _matrices_of(grad: Tensor, values: Tensor, coefficients: Tensor, sets: Tensor, found: Tensor, first: int) -> None:
    """Sums over parts of the pixels, in their places from the first on: (parts, first + 2^d, C_out, C_in)."""
    (parts, matrices, outputs, inputs), count, pairs = found.shape, len(values), sets.shape[1]
    sizes = {"ROWS": 32, "INPUTS": inner_tile(inputs), "OUTPUTS": inner_tile(outputs), "PAIRS": power(pairs)}
    together = min(power(matrices - first), 128 // sizes["OUTPUTS"])
    tiles = cdiv(inputs, sizes["INPUTS"])
    grid = cdiv(matrices - first, together), parts, tiles * cdiv(outputs, sizes["OUTPUTS"])
    each = cdiv(cdiv(count, sizes["ROWS"]), parts)
    given = grad, values, coefficients, sets, found, count, each, matrices, first, inputs, outputs, tiles, pairs
    launch(_matrices, grid, *given, SETS=together, PRECISION=precision(), warps=8, **sizes)


@triton.jit
def _received(
    vertices, barycentric, corners, values, coefficients, matrices, sets, first, second, out,
    count, size, number, inputs, outputs, pairs, set_stride, output_stride, input_stride,
    CORNERS: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    inner, pair = tl.arange(0, INPUTS), tl.arange(0, PAIRS)
    there = row < count
    mask = there[:, None] & (pair[None, :] < pairs)
    own = tl.load(sets + row[:, None] * pairs + pair[None, :], mask=mask, other=-1).to(tl.int32)
    coefficient = tl.load(coefficients + row[:, None] * pairs + pair[None, :], mask=mask, other=0)
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for start in range(0, inputs, INPUTS):
        given = start + inner
        value = gathered(values, row, there, given, count, inputs)
        places = given[:, None] * input_stride + column[None, :] * output_stride
        known = (given[:, None] < inputs) & (column[None, :] < outputs)
        matrix = matrices + places
        for one in range(number):
            factor = tl.sum(tl.where(own == one, coefficient, 0), 1)
            weight = tl.load(matrix, mask=known, other=0)
            total = tl.dot(value * factor[:, None], weight, total, input_precision=PRECISION)
            matrix += set_stride
    mask = there[:, None] & (column[None, :] < outputs)
    place = row[:, None] * outputs + column[None, :]
    if vertices is not None:
        total += sliced(vertices, barycentric, corners, row, there, column, size, outputs, CORNERS)
    if first is not None:
        total += tl.load(first + place, mask=mask, other=0)
    if second is not None:
        total += tl.load(second + place, mask=mask, other=0)
    tl.store(out + place, total, mask=mask)


@triton.jit
def _coefficients(
    grad, values, matrices, sets, out, count, number, inputs, outputs, pairs,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inner, outer, pair = tl.arange(0, INPUTS), tl.arange(0, OUTPUTS), tl.arange(0, PAIRS)
    there = row < count
    mask = there[:, None] & (pair[None, :] < pairs)
    own = tl.load(sets + row[:, None] * pairs + pair[None, :], mask=mask, other=-1).to(tl.int32)
    total = tl.zeros((ROWS, PAIRS), tl.float32)
    for end in range(0, outputs, OUTPUTS):
        column = end + outer
        received = gathered(grad, row, there, column, count, outputs)
        for start in range(0, inputs, INPUTS):
            given = start + inner
            value = gathered(values, row, there, given, count, inputs)
            known = (given[:, None] < inputs) & (column[None, :] < outputs)
            matrix = matrices + column[None, :] * inputs + given[:, None]
            for one in range(number):
                product = tl.dot(value, tl.load(matrix, mask=known, other=0), input_precision=PRECISION)
                total += tl.where(own == one, tl.sum(received * product, 1)[:, None], 0)
                matrix += outputs * inputs
    tl.store(out + row[:, None] * pairs + pair[None, :], total, mask=mask)


@triton.jit
def _matrices(
    grad, values, coefficients, sets, found, count, each, matrices, first, inputs, outputs, tiles, pairs,
    SETS: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Some sets at a time, one below the other."""
    part = tl.program_id(1)
    some, pair = tl.program_id(0) * SETS + tl.arange(0, SETS), tl.arange(0, PAIRS)
    column = tl.program_id(2) % tiles * INPUTS + tl.arange(0, INPUTS)
    line = tl.program_id(2) // tiles * OUTPUTS + tl.arange(0, OUTPUTS)
    total = tl.zeros((SETS * OUTPUTS, INPUTS), tl.float32)
    for block in range(part * each, part * each + each):
        row = tl.full((), ROWS, tl.int64) * block + tl.arange(0, ROWS)
        there = row < count
        mask = there[:, None] & (pair[None, :] < pairs)
        own = tl.load(sets + row[:, None] * pairs + pair[None, :], mask=mask, other=-1).to(tl.int32)
        coefficient = tl.load(coefficients + row[:, None] * pairs + pair[None, :], mask=mask, other=0)
        factor = tl.sum(tl.where(own[:, None, :] == some[None, :, None], coefficient[:, None, :], 0), 2)  # (ROWS, SETS)
        received = gathered(grad, row, there, line, count, outputs)
        weighted = tl.reshape(factor[:, :, None] * received[:, None, :], (ROWS, SETS * OUTPUTS))
        value = gathered(values, row, there, column, count, inputs)
        total = tl.dot(tl.trans(weighted), value, total, input_precision=PRECISION)
    below = tl.arange(0, SETS * OUTPUTS)
    one = tl.program_id(0) * SETS + below // OUTPUTS
    line = tl.program_id(2) // tiles * OUTPUTS + below % OUTPUTS
    there = (one < matrices - first) & (line < outputs)
    place = (part * matrices + first + one).to(tl.int64) * outputs * inputs + line * inputs
    tl.store(found + place[:, None] + column[None, :], total, mask=there[:, None] & (column[None, :] < inputs))
