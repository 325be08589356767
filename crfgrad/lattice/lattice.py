"""The permutohedral lattice around a batch of feature vectors."""

from functools import cached_property

import torch
from torch import Tensor

from crfgrad.lattice.functions import Link, filter_links, slice_, splat
from crfgrad.lattice.geometry import embedding_matrix, opposite_taps, tap_offsets


class PermutohedralLattice:
    r"""Sparse lattice for filtering in a feature space of any dimension (Adams et al. 2010).

    A filter K is applied as slice . blur . splat. Each pixel is a convex combination of the d + 1
    corners of its simplex; only vertices next to a pixel exist, and one that does not exist
    contributes zero. Vertices are found by exact integer keys, so two never share one. Images of a
    batch live side by side in one table and never meet.

    Args:
        features: Finite features, scaled so that the Gaussian to apply has unit variance. Gradients
            reach them through the barycentric weights.
        radius: Reach s of a full filter, in lattice steps.

    Shape:
        - features: (B, d, \*) with any trailing shape, for instance (B, 5, H, W)
        - values: (B, C, \*), with the same trailing shape
        - vertex values: (vertices, C)
        - filter weights: (taps, C_out, C_in) with (s+1)^(d+1) - s^(d+1) taps, or (taps,)

    Example:
        >>> ramp = torch.arange(6.0).reshape(1, 1, 6)
        >>> lattice = PermutohedralLattice(ramp / 2)
        >>> lattice.taps, lattice.vertices
        (3, 4)
        >>> lattice.gaussian(torch.ones(1, 2, 6)).shape
        torch.Size([1, 2, 6])
    """

    def __init__(self, features: Tensor, radius: int = 1) -> None:
        if features.dim() < 3 or 0 in features.shape:
            raise ValueError(f"features must be (B, d, ...) and not empty, got {tuple(features.shape)}")
        if radius < 1:
            raise ValueError(f"radius must be 1 or more, got {radius}")
        if not torch.isfinite(features).all():
            raise ValueError("features hold NaN or infinity: check the image and the widths they are divided by")
        self.batch, self.dimension = features.shape[:2]
        self.shape = features.shape[2:]
        self.radius = radius
        self.taps = (radius + 1) ** (self.dimension + 1) - radius ** (self.dimension + 1)

        points = features.flatten(2).transpose(1, 2).flatten(0, 1)  # (B*N, d)
        base, self.barycentric, self._order = _embed(points)
        *strides, image_stride = self._key_strides(base)
        self._strides = torch.tensor(strides, device=points.device)
        image = torch.arange(self.batch, device=points.device).repeat_interleave(len(points) // self.batch)
        first = image * image_stride + (base.to(torch.int64) * self._strides).sum(1)
        steps = self._strides[self._order].cumsum(1)  # (B*N, d), from the first corner to the others
        keys = torch.cat([first[:, None], first[:, None] + steps], dim=1)  # (B*N, d + 1)
        self._keys, self.corners = torch.unique(keys, return_inverse=True)
        self.vertices = len(self._keys)
        self._kept_coefficients: list[Tensor] | None = None

    def splat(self, values: Tensor) -> Tensor:
        """(B, C, *) -> (vertices, C)."""
        if values.shape[0] != self.batch or values.shape[2:] != self.shape:
            expected = ", ".join(map(str, (self.batch, "C", *self.shape)))
            raise ValueError(f"values have shape {tuple(values.shape)}, the lattice was built for ({expected})")
        return splat(self._rows(values), self._weights(values), self.corners, self.vertices)

    def slice(self, vertex_values: Tensor) -> Tensor:
        """(vertices, C) -> (B, C, *)."""
        return self._image(slice_(vertex_values, self._weights(vertex_values), self.corners))

    def filter(self, vertex_values: Tensor, weights: Tensor) -> Tensor:
        """Full filter: vertex v receives the sum over the taps n of W_n x[v + n].

        Takes and gives values of vertices: (vertices, C_in) -> (vertices, C_out).

        It is symmetric as a matrix if W of the opposite tap is the transpose of W, for each tap.
        """
        if len(weights) != self.taps:
            raise ValueError(
                f"weights are for {len(weights)} taps, but this lattice of dimension {self.dimension} and radius "
                f"{self.radius} has {self.taps}"
            )
        return filter_links(vertex_values, weights, self.links)

    def blur(self, vertex_values: Tensor, adjoint: bool = False) -> Tensor:
        """Gaussian filter by [1 2 1]/4 along each of the d + 1 axes in turn; the adjoint in reverse order.

        Takes and gives values of vertices: (vertices, C) -> (vertices, C).

        Fast, and the closest to a Gaussian; but with vertices missing, the axes do not commute and
        it is not quite symmetric. Where that matters take ``filter`` with ``gaussian_taps``.
        """
        for index, source in reversed(self._axes) if adjoint else self._axes:
            step = vertex_values.new_zeros(vertex_values.shape)
            step = step.index_add(0, index, vertex_values[source]).index_add(0, source, vertex_values[index])
            vertex_values = 0.5 * vertex_values + 0.25 * step
        return vertex_values

    def gaussian(self, values: Tensor, adjoint: bool = False) -> Tensor:
        """Gaussian of unit variance in feature space, up to a factor: (B, C, *) -> (B, C, *)."""
        return self.slice(self.blur(self.splat(values), adjoint))

    def filter_self(self, values: Tensor, weights: Tensor) -> Tensor:
        """What slice . filter . splat brings from each pixel to itself: (B, C, *) -> (B, C_out, *).

        Pixel i reaches itself by sum_n c_in W_n, where c_in sums the products of the weights of the
        pairs of its corners that differ by tap n.
        """
        paired = torch.cat([weights[:1], (weights + opposite_taps(weights))[self._self_taps]])
        links = [Link(pixel, pixel) for pixel, _, _ in self._self_pairs]
        coefficients = [coefficient.to(values.dtype) for coefficient in self._self_coefficients()]
        return self._image(filter_links(self._rows(values), paired, links, coefficients))

    @cached_property
    def offsets(self) -> Tensor:
        """The taps as integer vectors: (taps, d)."""
        return tap_offsets(self.dimension, self.radius)

    @cached_property
    def links(self) -> list[Link]:
        """For each tap the pairs of vertices that it connects."""
        everywhere = torch.arange(self.vertices, device=self._keys.device)
        links = [Link(everywhere, everywhere)]
        for offset in self.offsets[1::2]:
            target, source = self._pairs(offset)
            links += [Link(target, source), Link(source, target)]
        return links

    @cached_property
    def _axes(self) -> list[tuple[Tensor, Tensor]]:
        axes = [*torch.eye(self.dimension, dtype=torch.int64), -torch.ones(self.dimension, dtype=torch.int64)]
        return [self._pairs(axis) for axis in axes]

    def _pairs(self, offset: Tensor) -> tuple[Tensor, Tensor]:
        """Vertices v that have a neighbour at v + offset, and that neighbour."""
        wanted = self._keys + (offset.to(self._keys.device) * self._strides).sum()
        found = torch.searchsorted(self._keys, wanted).clamp_max(self.vertices - 1)
        target = (self._keys[found] == wanted).nonzero().squeeze(1)
        return target, found[target]

    @cached_property
    def _self_taps(self) -> list[int]:
        """Taps from a corner of a simplex to a later one: the 0/1 offsets, by the subset they stand for."""
        index = {tuple(offset): tap for tap, offset in enumerate(self.offsets.tolist())}
        subsets = range(1, 2**self.dimension)
        return [index[tuple(subset >> axis & 1 for axis in range(self.dimension))] for subset in subsets]

    def _self_coefficients(self) -> list[Tensor]:
        """c_in of the pixels of each of ``_self_pairs``; kept for the next call unless a gradient runs through."""
        if self._kept_coefficients is not None:
            return self._kept_coefficients
        weight = self.barycentric
        centre, *others = self._self_pairs
        products = [weight[pixel, low] * weight[pixel, high] for pixel, low, high in others]
        coefficients = [weight.square().sum(1)[centre[0]], *products]
        if not weight.requires_grad:
            self._kept_coefficients = coefficients
        return coefficients

    @cached_property
    def _self_pairs(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For the centre and each of ``_self_taps`` the pixels that use it, and between which two corners."""
        order = self._order
        everywhere = torch.arange(len(order), device=order.device)
        passed = torch.cat([torch.zeros_like(order[:, :1]), (2**order).cumsum(1)], 1)  # (B*N, d + 1), axes as bits
        low, high = torch.triu_indices(self.dimension + 1, self.dimension + 1, 1, device=order.device)
        subset = (passed[:, high] - passed[:, low]).flatten()  # (B*N*pairs,), the axes between two corners
        by_subset = subset.argsort(stable=True)
        pixel, pair = by_subset // len(low), by_subset % len(low)
        sizes = torch.bincount(subset, minlength=2**self.dimension)[1:].tolist()
        parts = (column.split(sizes) for column in (pixel, low[pair], high[pair]))
        return [(everywhere, everywhere, everywhere), *zip(*parts, strict=True)]

    def _key_strides(self, base: Tensor) -> list[int]:
        """Strides that pack coordinates, and then the image, into one integer, with room for neighbours."""
        sizes = [int(size) + 2 + self.radius for size in base.amax(0).tolist()]
        strides = [1]
        for size in sizes:
            strides.append(strides[-1] * size)
        if strides[-1] * self.batch >= 2**62:
            raise ValueError(
                f"features span {' x '.join(map(str, sizes))} lattice cells in a batch of {self.batch}, more than "
                "62-bit keys can tell apart: use larger widths, smaller features or fewer feature channels"
            )
        return strides

    def _rows(self, values: Tensor) -> Tensor:
        return values.flatten(2).transpose(1, 2).flatten(0, 1)  # (B*N, C)

    def _image(self, rows: Tensor) -> Tensor:
        channels_first = rows.unflatten(0, (self.batch, -1)).transpose(1, 2)  # (B, C, N)
        return channels_first.unflatten(2, self.shape)  # (B, C, *)

    def _weights(self, values: Tensor) -> Tensor:
        return self.barycentric.to(values.dtype)


def _embed(points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """First corner (from 0 up), barycentric weights and order of the axes of each point's simplex.

    Shape: (points, d) -> (points, d) integral, (points, d + 1), (points, d) int64.
    """
    precise = torch.float32 if points.device.type == "mps" else torch.float64  # MPS has no float64
    position = points.to(precise) @ embedding_matrix(points.shape[1]).to(points.device, precise).mT
    base = position.detach().floor()
    fraction, order = (position - base).sort(dim=1, descending=True, stable=True)
    ends = torch.ones_like(fraction[:, :1])
    barycentric = torch.cat([ends, fraction], 1) - torch.cat([fraction, ends - 1], 1)
    return base - base.amin(0), barycentric.to(points.dtype), order
