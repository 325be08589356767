"""Vertices and links of a lattice in plain torch: the reference, and the path for GPUs."""

from functools import cached_property

import torch
from torch import Tensor

from crfgrad.lattice.functions import Link, filter_links, slice_, splat
from crfgrad.lattice.geometry import axis_offsets, barycentric_weights, key_strides, lattice_position, tap_offsets


class TorchTable:
    """The vertices around points, and the linear maps between points and vertices.

    Args:
        features: (B, d, N).
        radius: Reach of a full filter.
    """

    def __init__(self, features: Tensor, radius: int) -> None:
        batch, self.dimension, size = features.shape
        self.radius = radius
        position = lattice_position(features)
        base = position.detach().floor()
        self.order = (position.detach() - base).argsort(dim=1, descending=True, stable=True)
        self.barycentric = barycentric_weights(position, base, self.order).to(features.dtype)
        base = base - base.amin(0)
        *strides, image_stride = key_strides(base.amax(0).tolist(), batch, radius)
        self.strides = torch.tensor(strides, device=features.device)
        image = torch.arange(batch, device=features.device).repeat_interleave(size)
        first = image * image_stride + (base.to(torch.int64) * self.strides).sum(1)
        steps = self.strides[self.order].cumsum(1)  # (B*N, d), from the first corner to the others
        keys = torch.cat([first[:, None], first[:, None] + steps], dim=1)  # (B*N, d + 1)
        self.keys, self.corners = torch.unique(keys, return_inverse=True)
        self.vertices = len(self.keys)

    def splat(self, rows: Tensor, weights: Tensor) -> Tensor:
        """(B*N, C) -> (vertices, C)."""
        return splat(rows, weights, self.corners, self.vertices)

    def slice(self, rows: Tensor, weights: Tensor) -> Tensor:
        """(vertices, C) -> (B*N, C)."""
        return slice_(rows, weights, self.corners)

    def slice_onto(self, total: Tensor, rows: Tensor, weights: Tensor) -> None:
        """Adds the slice of rows (vertices, C) to a total (B*N, C), in place."""
        total += self.slice(rows, weights)

    def filter(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Full filter: (vertices, C_in) -> (vertices, C_out)."""
        return filter_links(rows, weights, self.links)

    def blur(self, rows: Tensor, adjoint: bool) -> Tensor:
        """[1 2 1] / 4 along each axis in turn, in reverse for the adjoint: (vertices, C) -> (vertices, C)."""
        for index, source in reversed(self.axes) if adjoint else self.axes:
            step = rows.new_zeros(rows.shape)
            step = step.index_add(0, index, rows[source]).index_add(0, source, rows[index])
            rows = 0.5 * rows + 0.25 * step
        return rows

    def filter_self(self, rows: Tensor, weights: Tensor, matrices: Tensor) -> Tensor:
        """What each pixel brings to itself by the matrix (or number) of each set of axes: see ``self_filter``."""
        return self_filter(rows, weights, matrices, self.self_pairs)

    @cached_property
    def links(self) -> list[Link]:
        """For each tap the pairs of vertices that it connects."""
        everywhere = torch.arange(self.vertices, device=self.keys.device)
        links = [Link(everywhere, everywhere)]
        for offset in tap_offsets(self.dimension, self.radius)[1::2]:
            target, source = self._pairs(offset)
            links += [Link(target, source), Link(source, target)]
        return links

    @cached_property
    def axes(self) -> list[tuple[Tensor, Tensor]]:
        """The same for the steps along the d + 1 axes, in one direction."""
        return [self._pairs(axis) for axis in axis_offsets(self.dimension)]

    @cached_property
    def self_pairs(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """See ``self_pairs``."""
        return self_pairs(self.order)

    def _pairs(self, offset: Tensor) -> tuple[Tensor, Tensor]:
        """Vertices v that have a neighbour at v + offset, and that neighbour."""
        wanted = self.keys + (offset.to(self.keys.device) * self.strides).sum()
        found = torch.searchsorted(self.keys, wanted).clamp_max(self.vertices - 1)
        target = (self.keys[found] == wanted).nonzero().squeeze(1)
        return target, found[target]


def self_pairs(order: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For each set of axes (as bits) the pixels two of whose corners it lies between, and these corners.

    The empty set, which is the centre of a filter, stands for all pixels.
    """
    dimension = order.shape[1]
    everywhere = torch.arange(len(order), device=order.device)
    passed = torch.cat([torch.zeros_like(order[:, :1]), (2**order).cumsum(1)], 1)  # (B*N, d + 1), axes as bits
    low, high = torch.triu_indices(dimension + 1, dimension + 1, 1, device=order.device)
    subset = (passed[:, high] - passed[:, low]).flatten()  # (B*N*pairs,), the axes between two corners
    by_subset = subset.argsort(stable=True)
    pixel, pair = by_subset // len(low), by_subset % len(low)
    sizes = torch.bincount(subset, minlength=2**dimension)[1:].tolist()
    parts = (column.split(sizes) for column in (pixel, low[pair], high[pair]))
    return [(everywhere, everywhere, everywhere), *zip(*parts, strict=True)]


def self_filter(rows: Tensor, weights: Tensor, matrices: Tensor, pairs: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Row i becomes sum_n c_in W_n times row i: (pixels, C_in) -> (pixels, C_out).

    c_in sums the products of the barycentric weights of the pairs of corners of pixel i that lie n apart.

    Args:
        rows: (pixels, C_in).
        weights: Barycentric weights, (pixels, d + 1).
        matrices: (2^d, C_out, C_in) or (2^d,), by the set of axes between the corners.
        pairs: See ``self_pairs``.
    """
    products = [weights[pixel, low] * weights[pixel, high] for pixel, low, high in pairs[1:]]
    links = [Link(pixel, pixel) for pixel, _, _ in pairs]
    return filter_links(rows, matrices, links, [weights.square().sum(1), *products])
