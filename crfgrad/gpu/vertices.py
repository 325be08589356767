"""Triton twins of ``crfgrad.ops.lattice``: cells, keys, a sort of these, numbers; the host waits once, for their count.

Nothing but the sort is torch's. Whatever the points hold, no kernel reads or writes outside of its tensors: where
the keys do not fit in 62 bits, or a point is not finite, the one number that the host reads says so.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crfgrad import geometry
from crfgrad.geometry import embedding_matrix, key_strides, table
from crfgrad.gpu.launch import FLOATS, cdiv, contiguous, launch, power
from crfgrad.ops.lattice import PADDED, check_size, padded_count

DIMENSIONS = 15
"""The most axes that kernels hold in registers."""
KEYS = 1024  # of a block
LARGE = 2.0**31


@contiguous
def build(points: Tensor, size: int, radius: int, padded: bool) -> Any:
    """See ``crfgrad.ops.lattice.lattice_build``."""
    count, dimension = points.shape
    if points.dtype not in FLOATS or dimension > DIMENSIONS:
        return NotImplemented
    check_size(count, dimension)
    new = points.new_empty
    order, barycentric = new(count, dimension, dtype=torch.int8), new(count, dimension + 1)
    axes = {"AXES": power(dimension, least=2), "CORNERS": power(dimension + 1)}
    rows = max(1, min(128, 2048 // (axes["AXES"] * axes["CORNERS"])))
    grid = (cdiv(count, rows),)
    cells, ends = new(count, dimension, dtype=torch.int32), new(*grid, 2, dimension, dtype=torch.float64)
    matrix = table(embedding_matrix, dimension, device=points.device, dtype=torch.float64)
    found = points, matrix, cells, order, barycentric, ends
    launch(_embed, grid, *found, count, dimension, fused=False, ROWS=rows, **axes)
    lowest, strides = new(dimension, dtype=torch.int64), new(dimension + 1, dtype=torch.int64)
    info = new(2, dtype=torch.int64)  # the number of vertices; whether keys can be made
    batch = count // size
    launch(_strides, (1,), ends, lowest, strides, info, *grid, dimension, batch, radius, ROWS=256, AXES=axes["AXES"])
    corners = count * (dimension + 1)
    keys = new(corners, dtype=torch.int64)
    launch(_keys, grid, cells, order, lowest, strides, info, keys, count, dimension, size, ROWS=rows, **axes)
    keys, places = keys.sort(stable=True)
    blocks = cdiv(corners, KEYS)
    heads = new(blocks, dtype=torch.int32)
    launch(_count, (blocks,), keys, heads, corners, BLOCK=KEYS)
    launch(_scan, (1,), heads, info, blocks, BLOCK=KEYS)
    vertices = int(info[0].item())
    if vertices <= 0:
        low, high = ends[:, 0].amin(0), ends[:, 1].amax(0)
        key_strides((high - low).tolist(), batch, radius)  # says what is wrong
        return NotImplemented  # too far from 0 for 32-bit cells, if not from each other
    room = padded_count(vertices, corners) if padded else vertices
    distinct, starts = new(room, dtype=torch.int64), new(room + 2, dtype=torch.int32)
    numbers = new(count, dimension + 1, dtype=torch.int32)
    entries, sources = new(corners, dtype=torch.int32), new(corners, dtype=torch.int32)
    given = keys, places, heads, numbers, distinct, starts, entries, sources, corners, vertices, room, dimension + 1
    launch(_number, (max(blocks, cdiv(room + 2, KEYS)),), *given, PADDED=PADDED, BLOCK=KEYS)
    return numbers, order, barycentric, distinct, strides, entries, sources, starts


@contiguous
def neighbours(keys: Tensor, strides: Tensor, radius: int) -> Any:
    """See ``crfgrad.ops.lattice.lattice_neighbours``."""
    return _found(keys, strides, table(geometry.tap_offsets, len(strides) - 1, radius, **_like(keys)), False)


@contiguous
def axes(keys: Tensor, strides: Tensor) -> Any:
    """See ``crfgrad.ops.lattice.lattice_axes``."""
    steps = table(geometry.axis_offsets, len(strides) - 1, **_like(keys))
    found = _found(keys, strides, steps, True)
    return found, keys.new_zeros(len(strides), len(keys) + 1, dtype=torch.int32), _unknown(keys, len(strides))


def _like(keys: Tensor) -> dict[str, Any]:
    return {"device": keys.device, "dtype": keys.dtype}


def _unknown(keys: Tensor, axes: int) -> Tensor:
    return keys.new_full((axes,), -1, dtype=torch.int32)


def _found(keys: Tensor, strides: Tensor, offsets: Tensor, both: bool) -> Any:
    dimension = len(strides) - 1
    if dimension > DIMENSIONS:
        return NotImplemented
    found = keys.new_empty(len(offsets) * (1 + both), len(keys) + 1, dtype=torch.int32)
    rows = 256
    grid = cdiv(len(keys) + 1, rows), len(found)
    given = keys, strides, offsets, found, len(keys), dimension, len(keys).bit_length()
    launch(_find, grid, *given, PADDED=PADDED, BOTH=both, ROWS=rows, AXES=power(dimension, least=2))
    return found


@triton.jit
def _embed(
    points, matrix, cells, order, barycentric, ends, count, dimension,
    ROWS: tl.constexpr, AXES: tl.constexpr, CORNERS: tl.constexpr,
):  # fmt: skip
    """Cells, ranks of the fractions in them, lowest and highest cell of each block: NaN if one is not finite."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    axis = tl.arange(0, AXES)
    corner = tl.arange(0, CORNERS)
    there = row < count
    known = axis < dimension
    position = tl.zeros((ROWS, AXES), tl.float64)
    for k in range(
        dimension
    ):  # one term after the other, and without fused ones, so that all implementations round alike
        column = tl.load(matrix + axis * dimension + k, mask=known, other=0)
        position += tl.load(points + row * dimension + k, mask=there, other=0).to(tl.float64)[:, None] * column[None, :]
    cell = tl.floor(position)
    mask = there[:, None] & known[None, :]
    fraction = tl.where(known[None, :], position - cell, -1)
    finite = (cell == cell) & (tl.abs(cell) < 1e300)
    infinite = tl.sum(tl.where(mask & (finite == 0), 1, 0))
    last = tl.program_id(0).to(tl.int64) * 2 * dimension
    low = tl.min(tl.where(mask & finite, cell, float("inf")), 0)
    high = tl.max(tl.where(mask & finite, cell, -float("inf")), 0)
    tl.store(ends + last + axis, tl.where(infinite > 0, float("nan"), low), mask=known)
    tl.store(ends + last + dimension + axis, tl.where(infinite > 0, float("nan"), high), mask=known)
    inside = finite & (tl.abs(cell) < 2147483000.0)
    tl.store(cells + row[:, None] * dimension + axis[None, :], tl.where(inside, cell, 0).to(tl.int32), mask=mask)
    one, other = fraction[:, :, None], fraction[:, None, :]
    before = (other > one) | ((other == one) & (axis[None, None, :] < axis[None, :, None]))
    rank = tl.sum(before.to(tl.int32), 2)  # (ROWS, AXES)
    # of fractions that are NaN, all have rank 0: entries of the order stay among the axes all the same
    whole = tl.where(inside, rank, axis[None, :])
    tl.store(
        order + row[:, None] * dimension + whole,
        axis[None, :].to(tl.int8) + tl.zeros_like(whole).to(tl.int8),
        mask=mask,
    )
    at = rank[:, None, :] == corner[None, :, None]  # (ROWS, CORNERS, AXES)
    after = tl.sum(tl.where(at & known[None, None, :], fraction[:, None, :], 0), 2)
    at = rank[:, None, :] + 1 == corner[None, :, None]
    ahead = tl.sum(tl.where(at & known[None, None, :], fraction[:, None, :], 0), 2)
    weight = tl.where(corner[None, :] == 0, 1, ahead) - after
    places = row[:, None] * (dimension + 1) + corner[None, :]
    tl.store(
        barycentric + places,
        weight.to(barycentric.dtype.element_ty),
        mask=there[:, None] & (corner[None, :] <= dimension),
    )


@triton.jit
def _strides(
    ends, lowest, strides, info, blocks, dimension, batch, radius, ROWS: tl.constexpr, AXES: tl.constexpr
):  # fmt: skip
    """The room that each axis takes, and from that the strides; whether the keys fit in 62 bits."""
    axis = tl.arange(0, AXES)
    known = axis < dimension
    low = tl.full((ROWS, AXES), float("inf"), tl.float64)
    high = tl.full((ROWS, AXES), -float("inf"), tl.float64)
    bad = tl.zeros((ROWS, AXES), tl.int32)
    for first in range(0, blocks, ROWS):
        block = first + tl.arange(0, ROWS)
        mask = (block[:, None] < blocks) & known[None, :]
        place = block.to(tl.int64)[:, None] * 2 * dimension + axis[None, :]
        one = tl.load(ends + place, mask=mask, other=float("inf"))
        two = tl.load(ends + place + dimension, mask=mask, other=-float("inf"))
        bad += (one != one).to(tl.int32)
        low = tl.minimum(low, tl.where(one == one, one, 0))
        high = tl.maximum(high, tl.where(two == two, two, 0))
    low, high = tl.min(low, 0), tl.max(high, 0)
    sizes = tl.where(known, high - low + (2 + radius), 1)
    room = tl.full((), 1, tl.float64) * batch
    stride = tl.full((), 1, tl.int64)
    fits = (tl.sum(bad) == 0) & (tl.max(tl.where(known, tl.maximum(tl.abs(low), tl.abs(high)), 0), 0) < 2147483000.0)
    tl.store(strides, stride)
    for k in range(dimension):
        size = tl.sum(tl.where(axis == k, sizes, 0), 0)
        room *= size
        stride *= tl.where(fits & (room < 4611686018427387904.0), size, 1).to(tl.int64)
        tl.store(strides + k + 1, stride)
    fits = fits & (room < 4611686018427387904.0)
    tl.store(lowest + axis, tl.where(fits, low, 0).to(tl.int64), mask=known)
    tl.store(info + 1, fits.to(tl.int64))


@triton.jit
def _keys(
    cells, order, lowest, strides, info, keys, count, dimension, size,
    ROWS: tl.constexpr, AXES: tl.constexpr, CORNERS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    axis = tl.arange(0, AXES)
    corner = tl.arange(0, CORNERS)
    there = row < count
    known = axis < dimension
    mask = there[:, None] & known[None, :]
    places = row[:, None] * dimension + axis[None, :]
    cell = (
        tl.load(cells + places, mask=mask, other=0).to(tl.int64) - tl.load(lowest + axis, mask=known, other=0)[None, :]
    )
    first = tl.sum(cell * tl.load(strides + axis, mask=known, other=0)[None, :], 1)
    first += row // size * tl.load(strides + dimension)
    step = tl.load(strides + tl.load(order + places, mask=mask, other=0).to(tl.int32), mask=mask, other=0)
    passed = axis[None, None, :] < corner[None, :, None]
    key = first[:, None] + tl.sum(tl.where(passed, step[:, None, :], 0), 2)
    key = tl.where(tl.load(info + 1) != 0, key, 0)
    tl.store(
        keys + row[:, None] * (dimension + 1) + corner[None, :],
        key,
        mask=there[:, None] & (corner[None, :] <= dimension),
    )


@triton.jit
def _heads(keys, place, there):
    """Which of the sorted keys are the first of their kind."""
    key = tl.load(keys + place, mask=there, other=0)
    before = tl.load(keys + place - 1, mask=there & (place > 0), other=0)
    return key, (there & ((place == 0) | (key != before))).to(tl.int32)


@triton.jit
def _count(keys, heads, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(heads + tl.program_id(0), tl.sum(_heads(keys, place, place < count)[1], 0))


@triton.jit
def _scan(heads, info, blocks, BLOCK: tl.constexpr):
    """How many first keys there are before each block, and in all of them, or 0 if there are no keys."""
    total = tl.full((), 0, tl.int32)
    for first in range(0, blocks, BLOCK):
        block = first + tl.arange(0, BLOCK)
        value = tl.load(heads + block, mask=block < blocks, other=0)
        tl.store(heads + block, total + tl.cumsum(value, 0) - value, mask=block < blocks)
        total += tl.sum(value, 0)
    tl.store(info, total.to(tl.int64) * tl.load(info + 1))


@triton.jit
def _number(
    keys, places, heads, numbers, distinct, starts, entries, sources, count, vertices, room, corners,
    PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Numbers the corners; writes where each vertex begins, and vertices that fill up."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < count
    key, head = _heads(keys, place, there)
    before = tl.load(heads + tl.program_id(0), mask=tl.program_id(0).to(tl.int64) * BLOCK < count, other=0)
    number = before + tl.cumsum(head, 0) - 1
    entry = tl.load(places + place, mask=there, other=0)
    tl.store(numbers + entry, number, mask=there)
    tl.store(entries + place, entry.to(tl.int32), mask=there)
    tl.store(sources + place, (entry // corners).to(tl.int32), mask=there)
    first = head != 0
    tl.store(distinct + number, key, mask=first)
    tl.store(starts + number, place.to(tl.int32), mask=first)
    extra = place >= vertices
    tl.store(distinct + place, tl.zeros_like(place) + PADDED, mask=extra & (place < room))
    tl.store(starts + place, tl.zeros_like(place).to(tl.int32) + count, mask=extra & (place < room + 2))


@triton.jit
def _find(
    keys, strides, offsets, found, size, dimension, rounds,
    PADDED: tl.constexpr, BOTH: tl.constexpr, ROWS: tl.constexpr, AXES: tl.constexpr,
):  # fmt: skip
    """Vertices at an offset, by halving the range of ascending keys; with BOTH, those opposite to it in between."""
    axis = tl.arange(0, AXES)
    known = axis < dimension
    tap = tl.program_id(1)
    offset = tl.load(offsets + (tap // 2 if BOTH else tap) * dimension + axis, mask=known, other=0)
    step = tl.sum(offset * tl.load(strides + axis, mask=known, other=0), 0)
    if BOTH:
        step = tl.where(tap % 2 == 0, step, -step)
    vertex = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = vertex < size
    key = tl.load(keys + vertex, mask=there, other=PADDED)
    wanted = key + step
    low = tl.zeros((ROWS,), tl.int32)
    high = low + size
    for _ in range(rounds):
        middle = low + (high - low) // 2
        inside = middle < high
        smaller = tl.load(keys + middle, mask=inside, other=0) < wanted
        low = tl.where(inside & smaller, middle + 1, low)
        high = tl.where(inside & (smaller == 0), middle, high)
    same = (low < size) & (key < PADDED)
    same = same & (tl.load(keys + low, mask=same, other=0) == wanted)
    place = tap.to(tl.int64) * (size + 1) + vertex
    tl.store(found + place, tl.where(same, low, size), mask=vertex <= size)
