"""Building a permutohedral lattice: the vertices around points, and the neighbours of each vertex.

Vertices are numbered by their keys, coordinates packed into one integer, in ascending order.
"""

from typing import Any

import torch
from torch import Tensor

from crfgrad.geometry import axis_offsets, embed, embedding_matrix, key_strides, table, tap_offsets, taps_of
from crfgrad.ops.forms import derivatives
from crfgrad.ops.registry import operation, signed


def check_size(count: int, dimension: int) -> None:
    """Raises a ValueError if the corners of some points are too many for their numbers."""
    if count * (dimension + 1) >= 2**31:
        raise ValueError(f"{count} pixels have too many corners for 32-bit numbers: split the batch")


PADDED = 2**62
"""Above all keys: that of all vertices that are there to fill up, which have no entries and no neighbours."""


def padded_count(vertices: int, corners: int) -> int:
    """How many vertices there are room for: corners, or a half of that, or a fourth, ..., of a 128th at least."""
    return next(room for room in (-(-corners // 2**n) for n in range(7, -1, -1)) if room >= vertices)


def fill_up(keys: Tensor, starts: Tensor, corners: int) -> tuple[Tensor, Tensor]:
    """Keys of vertices and where their entries begin, with vertices that fill up."""
    more = padded_count(len(keys), corners) - len(keys)
    filled = torch.nn.functional.pad(keys, (0, more), value=PADDED)
    return filled, torch.nn.functional.pad(starts, (0, more), value=corners)


def _built(points: Tensor, size: int, radius: int, padded: bool) -> tuple[Tensor, ...]:
    count, dimension = points.shape
    vertices = torch.library.get_ctx().new_dynamic_size()
    return (
        points.new_empty(count, dimension + 1, dtype=torch.int32),
        points.new_empty(count, dimension, dtype=torch.int8),
        points.new_empty(count, dimension + 1),
        points.new_empty(vertices, dtype=torch.int64),
        points.new_empty(dimension + 1, dtype=torch.int64),
        points.new_empty(count * (dimension + 1), dtype=torch.int32),
        points.new_empty(count * (dimension + 1), dtype=torch.int32),
        points.new_empty(vertices + 2, dtype=torch.int32),
    )


@operation(
    "(Tensor points, SymInt size, int radius, bool padded)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    fake=_built,
    kernel="vertices.build",
    gpu="vertices.build",
)
def lattice_build(points: Tensor, size: int, radius: int, padded: bool) -> tuple[Tensor, ...]:
    """The simplices around points (N, d) of images of ``size`` points, with room for filters of a radius.

    It waits for the device once, to learn the number of vertices. If ``padded``, vertices without entries and
    neighbours are added up to one of 8 numbers, so that what is compiled or captured for images of one size meets
    few shapes.

    Returns:
        Corners (N, d + 1) int32; order of the axes (N, d) int8; weights of the corners (N, d + 1); keys (V,) and
        strides (d + 1,) int64; entries and sources (N (d + 1),) and starts (V + 2,) int32, see
        ``crfgrad.ops.interpolation``.
    """
    count, dimension = points.shape
    check_size(count, dimension)
    cells, order, barycentric = embed(points)
    lowest, highest = torch.aminmax(cells, dim=0)
    sizes = highest - lowest + (2 + radius)
    room = sizes.prod() * (count // size)  # float, for integers would overflow
    strides = torch.nn.functional.pad(sizes.long(), (1, 0), value=1).cumprod(0)
    steps = torch.cat([(cells - lowest).long() * strides[:-1], strides[order]], dim=1)  # (N, 2 d)
    # the first corner, which is all of the coordinates together, and from there to the others
    corners = steps.cumsum(1)[:, dimension - 1 :].view(count // size, size, dimension + 1)
    if len(corners) > 1:
        corners = corners + strides[-1] * torch.arange(len(corners), device=points.device)[:, None, None]
    keys, entries = corners.flatten().sort(stable=True)
    numbers = torch.nn.functional.pad((keys[1:] != keys[:-1]).cumsum(0), (1, 0))
    fits = room < 2.0**62  # not for NaN either
    vertices = int(torch.where(fits, numbers[-1] + 1, 0).item())
    if vertices == 0:
        key_strides((highest - lowest).tolist(), count // size, radius)  # says what is wrong
    corners = torch.empty_like(entries).scatter_(0, entries, numbers).view(count, dimension + 1)
    entries = entries.int()
    distinct = keys.new_empty(vertices).scatter_(0, numbers, keys)
    starts = torch.searchsorted(numbers, torch.arange(vertices + 2, device=points.device), out_int32=True)
    if padded:
        distinct, starts = fill_up(distinct, starts, len(entries))
    return (
        corners.int(),
        order.to(torch.int8),
        barycentric.to(points.dtype),
        distinct,
        strides,
        entries,
        entries // (dimension + 1),
        starts,
    )


def _neighbours(keys: Tensor, strides: Tensor, radius: int) -> Tensor:
    return keys.new_empty(taps_of(strides.shape[0] - 1, radius), keys.shape[0] + 1, dtype=torch.int32)


@operation(
    "(Tensor keys, Tensor strides, int radius) -> Tensor",
    fake=_neighbours,
    kernel="vertices.neighbours",
    gpu="vertices.neighbours",
)
def lattice_neighbours(keys: Tensor, strides: Tensor, radius: int) -> Tensor:
    """The vertex at each tap from each vertex, V where there is none, and from V: (taps, V + 1) int32."""
    return _find(keys, strides, table(tap_offsets, len(strides) - 1, radius, device=keys.device, dtype=keys.dtype))


def _axes(keys: Tensor, strides: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    new, axes = keys.new_empty, strides.shape[0]
    return (
        new(2 * axes, keys.shape[0] + 1, dtype=torch.int32),
        new(axes, keys.shape[0] + 1, dtype=torch.int32),
        new(axes, dtype=torch.int32),
    )


@operation(
    "(Tensor keys, Tensor strides) -> (Tensor, Tensor, Tensor)", fake=_axes, kernel="vertices.axes", gpu="vertices.axes"
)
def lattice_axes(keys: Tensor, strides: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The vertices along the d + 1 axes of the separable blur.

    Returns:
        Those after (2k) and before (2k + 1) each vertex along axis k, V for none: (2 (d + 1), V + 1) int32. For the
        kernels of the CPU, the order in which vertices follow each other along each axis (d + 1, V + 1) int32, and
        how many have a neighbour (d + 1,) int32; here -1, for not known.
    """
    offsets = table(axis_offsets, len(strides) - 1, device=keys.device, dtype=keys.dtype)
    both = torch.stack([offsets, -offsets], dim=1).flatten(0, 1)
    paths = keys.new_zeros(len(strides), len(keys) + 1, dtype=torch.int32)
    return _find(keys, strides, both), paths, torch.full_like(paths[:, 0], -1)


def _find(keys: Tensor, strides: Tensor, offsets: Tensor) -> Tensor:
    steps = (offsets * strides[:-1]).sum(1)
    wanted = keys + steps[:, None]  # (offsets, V)
    places = torch.searchsorted(keys, wanted).clamp_max_(len(keys) - 1)
    found = (keys.index_select(0, places.flatten()).view_as(places) == wanted) & (keys < PADDED)
    return torch.nn.functional.pad(torch.where(found, places, len(keys)).int(), (0, 1), value=len(keys))


@operation("(Tensor features) -> Tensor", fake=torch.empty_like)
def lattice_embed(features: Tensor) -> Tensor:
    """Lattice coordinates of vectors of features, without rounding: (N, d)."""
    return features @ _matrix(features).mT


@operation("(Tensor cells) -> Tensor", fake=torch.empty_like)
def lattice_embed_transpose(cells: Tensor) -> Tensor:
    """The transpose of ``lattice_embed``: (N, d)."""
    return cells @ _matrix(cells)


def _matrix(like: Tensor) -> Tensor:
    return table(embedding_matrix, like.shape[1], device=like.device, dtype=like.dtype)


_, _embed_transpose = derivatives(lattice_embed, lattice_embed_transpose)


class _Weights(torch.autograd.Function):
    """The weights of the corners as a function of the points, with the simplices held."""

    @staticmethod
    @signed
    def forward(points: Tensor, barycentric: Tensor, order: Tensor) -> Tensor:
        return barycentric.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (order,) = ctx.saved_tensors
        by_rank = grad[:, 1:] - grad[:, :-1]  # (N, d), by the fractions in descending order
        by_axis = torch.zeros_like(by_rank).scatter(1, order.long(), by_rank)
        return _embed_transpose(by_axis), None, None


def barycentric_weights(points: Tensor, barycentric: Tensor, order: Tensor) -> Tensor:
    """Weights that were built around points, differentiable by these: (N, d + 1)."""
    weights: Tensor = _Weights.apply(points, barycentric, order)
    return weights
