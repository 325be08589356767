r"""Between the pixels and the vertices of a lattice: slice, splat, and the gradient of the weights.

.. math:: T(p, v, b) = \sum_i \sum_k b_{ik} \langle p_i, v_{c(i, k)} \rangle

with pixels p (N, C), vertices v (V + 1, C), and weights b and vertices c of the d + 1 corners around each pixel,
(N, d + 1). ``entries`` are the flat indices of the corners, sorted by vertex, and ``sources`` the pixels to which
these belong; those of vertex n stand from ``starts[n]`` to ``starts[n + 1]``. Vertex V stands for all that do not
exist: it has no entries, and its values are 0.
"""

from functools import lru_cache

import torch
from torch import Tensor

from crfgrad.ops.chunks import chunks, joined
from crfgrad.ops.forms import derivatives
from crfgrad.ops.registry import operation


def weighted_sums(rows: Tensor, which: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    """Row n is the sum of ``weights[k] * rows[which[k]]`` for k from ``starts[n]`` to ``starts[n + 1]``.

    Deterministic on every device, and never as large as the products.
    """
    summed: Tensor = torch.ops.aten._embedding_bag_forward_only(
        rows, which, starts, mode=0, per_sample_weights=weights, include_last_offset=True
    )[0]
    return summed


@lru_cache(maxsize=4)
def every(count: int, size: int, device: torch.device) -> Tensor:
    """0, size, ..., count * size: where rows of one size begin."""
    with torch.inference_mode(False):
        return torch.arange(0, count * size + 1, size, device=device, dtype=torch.int32)


def _pixels(vertices: Tensor, barycentric: Tensor, corners: Tensor, *_: Tensor) -> Tensor:
    return vertices.new_empty(corners.shape[0], vertices.shape[1])


def _vertices(
    pixels: Tensor, barycentric: Tensor, corners: Tensor, entries: Tensor, sources: Tensor, starts: Tensor
) -> Tensor:
    return pixels.new_empty(starts.shape[0] - 1, pixels.shape[1])


def _weights(pixels: Tensor, vertices: Tensor, corners: Tensor, *_: Tensor) -> Tensor:
    return pixels.new_empty(corners.shape)


@operation(
    "(Tensor vertices, Tensor barycentric, Tensor corners, Tensor entries, Tensor sources, Tensor starts) -> Tensor",
    fake=_pixels,
    kernel="interpolation.interpolate",
    gpu="interpolation.interpolate",
)
def lattice_slice(
    vertices: Tensor, barycentric: Tensor, corners: Tensor, entries: Tensor, sources: Tensor, starts: Tensor
) -> Tensor:
    """Each pixel's value from the corners of its simplex, the derivative by p: (N, C)."""
    return weighted_sums(vertices, corners.flatten(), every(*corners.shape, corners.device), barycentric.flatten())


def _like(base: Tensor, *_: Tensor) -> Tensor:
    return torch.empty_like(base, memory_format=torch.contiguous_format)


@operation(
    "(Tensor base, Tensor vertices, Tensor barycentric, Tensor corners, Tensor entries, Tensor sources, Tensor starts)"
    " -> Tensor",
    fake=_like,
    kernel="interpolation.interpolate_onto",
)
def lattice_slice_onto(base: Tensor, vertices: Tensor, barycentric: Tensor, corners: Tensor, *_: Tensor) -> Tensor:
    """``base + lattice_slice(...)`` in one pass, for where no gradient is wanted: (N, C)."""
    return base + weighted_sums(
        vertices, corners.flatten(), every(*corners.shape, corners.device), barycentric.flatten()
    )


@operation(
    "(Tensor pixels, Tensor barycentric, Tensor corners, Tensor entries, Tensor sources, Tensor starts) -> Tensor",
    fake=_vertices,
    kernel="interpolation.splat",
    gpu="interpolation.splat",
)
def lattice_splat(
    pixels: Tensor, barycentric: Tensor, corners: Tensor, entries: Tensor, sources: Tensor, starts: Tensor
) -> Tensor:
    """Each pixel's value to the corners of its simplex, the derivative by v: (V + 1, C)."""
    weights = barycentric.flatten().index_select(0, entries)
    return weighted_sums(pixels, sources, starts, weights)


@operation(
    "(Tensor pixels, Tensor vertices, Tensor corners, Tensor entries, Tensor sources, Tensor starts) -> Tensor",
    fake=_weights,
    kernel="interpolation.corner_products",
    gpu="interpolation.corner_products",
)
def lattice_corner_products(
    pixels: Tensor, vertices: Tensor, corners: Tensor, entries: Tensor, sources: Tensor, starts: Tensor
) -> Tensor:
    """Inner product of each pixel with each of its corners, the derivative by b: (N, d + 1)."""

    def some(rows: slice) -> Tensor:
        around = vertices.index_select(0, corners[rows].flatten()).unflatten(0, (-1, corners.shape[1]))  # (n, d + 1, C)
        return torch.bmm(around, pixels[rows, :, None]).squeeze(-1)

    return joined([some(rows) for rows in chunks(len(pixels), corners.shape[1] * pixels.shape[1], pixels)])


slice_, splat, corner_products = derivatives(lattice_slice, lattice_splat, lattice_corner_products)
