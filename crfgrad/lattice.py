"""The permutohedral lattice around a batch of feature vectors."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from crfgrad.geometry import subset_taps, taps_of
from crfgrad.ops import interpolation, own_part, taps
from crfgrad.ops.lattice import barycentric_weights, lattice_axes, lattice_build, lattice_neighbours
from crfgrad.ops.message import Between, Groups


class Lattice(NamedTuple):
    """Tensors of a lattice; all images of a batch live side by side in it and never meet.

    Attributes:
        corners: The vertices around each pixel: (N, d + 1) int32.
        order: The axes in order of decreasing fraction: (N, d) int8.
        barycentric: Weight of each corner: (N, d + 1).
        keys: Packed coordinates of the vertices, ascending: (V,) int64.
        strides: Of the coordinates, and of the images, in the keys: (d + 1,) int64.
        entries: Flat indices of the corners, sorted by vertex: (N * (d + 1),) int32.
        sources: The pixels to which these belong: (N * (d + 1),) int32.
        starts: Where the entries of each vertex begin: (V + 2,) int32; vertex V stands for those that do not exist.
    """

    corners: Tensor
    order: Tensor
    barycentric: Tensor
    keys: Tensor
    strides: Tensor
    entries: Tensor
    sources: Tensor
    starts: Tensor

    def splat(self, pixels: Tensor) -> Tensor:
        """Gives each pixel's value to the corners of its simplex: (N, C) -> (V + 1, C)."""
        return interpolation.splat(pixels, self.barycentric, *self.between)

    def slice(self, vertices: Tensor) -> Tensor:
        """Interpolates each pixel's value from the corners of its simplex: (V + 1, C) -> (N, C)."""
        return interpolation.slice_(vertices, self.barycentric, *self.between)

    def slice_onto(self, base: Tensor, vertices: Tensor) -> Tensor:
        """``base + slice(vertices)`` for base (N, C)."""
        if torch.is_grad_enabled():
            return base + self.slice(vertices)
        added: Tensor = interpolation.lattice_slice_onto(base, vertices, self.barycentric, *self.between)
        return added

    @property
    def between(self) -> Between:
        """Where pixels and vertices lie to each other."""
        return Between(self.corners, self.entries, self.sources, self.starts)

    def scaled(self, factor: Tensor | float) -> "Lattice":
        """The same with a factor (N, 1) on what each pixel gives and gets: splat . D and D . slice."""
        return self._replace(barycentric=self.barycentric * factor)

    def without_last_pixel(self) -> "Lattice":
        """The same vertices, but the last pixel neither gives nor gets."""
        gone = self.starts.long()[self.corners[-1].long() + 1] - 1  # it comes last at each of its vertices
        stays = torch.ones_like(self.entries, dtype=torch.bool)
        stays[gone] = False
        before = torch.nn.functional.pad(stays.cumsum(0), (1, 0))
        return self._replace(
            corners=self.corners[:-1],
            order=self.order[:-1],
            barycentric=self.barycentric[:-1],
            entries=self.entries[stays],
            sources=self.sources[stays],
            starts=before[self.starts.long()].int(),
        )

    def neighbours(self, radius: int) -> Tensor:
        """The vertex at each tap from each vertex, V where there is none: (taps, V + 1)."""
        found: Tensor = lattice_neighbours(self.keys, self.strides, radius)
        return found

    def axes(self) -> tuple[Tensor, Tensor, Tensor]:
        """The vertices along the axes of the separable blur, see ``crfgrad.ops.lattice.lattice_axes``."""
        found: tuple[Tensor, Tensor, Tensor] = lattice_axes(self.keys, self.strides)
        return found


def build_lattice(features: Tensor, radius: int = 1, padded: bool = False) -> Lattice:
    """The lattice around features (B, *S, d), with room for filters of a radius; gradients reach the weights.

    If ``padded``, there are vertices at no pixel too, so that images of one size give one of 8 numbers of vertices.
    """
    points = features.flatten(0, -2)  # (N, d)
    built = Lattice(*lattice_build(points.detach(), math.prod(features.shape[1:-1]), radius, padded))
    if features.requires_grad:
        return built._replace(barycentric=barycentric_weights(points, built.barycentric, built.order))
    return built


class OwnPart(NamedTuple):
    """What is needed to find what a filter brings from each pixel to itself, see ``crfgrad.ops.own_part``."""

    coefficients: Tensor
    pixels: Tensor
    starts: Tensor
    sets: Tensor

    @classmethod
    def of(cls, lattice: Lattice) -> "OwnPart":
        """Of the pixels of a lattice."""
        groups = own_part.own_part_groups(lattice.order)
        return cls(own_part.coefficients(lattice.barycentric, lattice.order), *groups)

    def apply(self, pixels: Tensor, matrices: Tensor, symmetric: bool = False) -> Tensor:
        """What the matrices (2^d, C_out, C_in) of the sets of axes bring: (N, C_in) -> (N, C_out)."""
        return own_part.own_part(pixels, self.coefficients, matrices, *self.groups(len(matrices), symmetric))

    def groups(self, count: int, symmetric: bool) -> Groups:
        """The groups of pixels, for matrices of so many sets."""
        return Groups(self.pixels, self.starts, self.sets, count, symmetric)


class PermutohedralLattice:
    r"""Sparse lattice for filtering in a feature space of any dimension (Adams et al. 2010).

    A filter K is applied as slice . blur . splat. Each pixel is a convex combination of the d + 1
    corners of its simplex; only vertices next to a pixel exist, and one that does not exist
    contributes zero. Vertices are found by exact integer keys, so two never share one. Images of a
    batch live side by side and never meet.

    Args:
        features: Finite features, scaled so that the Gaussian to apply has unit variance. Gradients
            reach them through the barycentric weights.
        radius: Reach s of a full filter, in lattice steps.

    Shape:
        - features: (B, d, \*) with any trailing shape, for instance (B, 5, H, W)
        - values: (B, C, \*), with the same trailing shape
        - vertex values: (vertices, C)
        - filters: (taps, C_out, C_in) with (s+1)^(d+1) - s^(d+1) taps, or (taps,)

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
        if not features.is_floating_point():
            raise TypeError(f"features must be floating-point, got {features.dtype}")
        if radius < 1:
            raise ValueError(f"radius must be 1 or more, got {radius}")
        self.batch, self.dimension = features.shape[:2]
        self.shape = features.shape[2:]
        self.radius = radius
        self.taps = taps_of(self.dimension, radius)
        self.tensors = build_lattice(features.movedim(1, -1).contiguous(), radius)
        self.vertices = len(self.tensors.keys)

    def splat(self, values: Tensor) -> Tensor:
        """(B, C, *) -> (vertices, C)."""
        return self._as(values).splat(self._rows(values))[:-1]

    def slice(self, vertex_values: Tensor) -> Tensor:
        """(vertices, C) -> (B, C, *)."""
        return self._image(self._as(vertex_values).slice(self._checked(vertex_values)))

    def filter(self, vertex_values: Tensor, filters: Tensor) -> Tensor:
        """Full filter: vertex v receives the sum over the taps n of W_n x[v + n].

        Takes and gives values of vertices: (vertices, C_in) -> (vertices, C_out).

        It is symmetric as a matrix if W of the opposite tap is the transpose of W, for each tap.
        """
        self._check_filters(filters, vertex_values.shape[-1])
        function = taps.filter_numbers if filters.dim() == 1 else taps.filter_matrices
        return function(self._checked(vertex_values), filters, self.tensors.neighbours(self.radius))[:-1]

    def blur(self, vertex_values: Tensor, transposed: bool = False) -> Tensor:
        """Gaussian filter by [1 2 1]/4 along each of the d + 1 axes in turn; the transpose in reverse order.

        Takes and gives values of vertices: (vertices, C) -> (vertices, C).

        Fast, and the closest to a Gaussian; but with vertices missing, the axes do not commute and
        it is not quite symmetric. Where that matters take ``filter`` with ``gaussian_taps``.
        """
        return taps.blur(self._checked(vertex_values), *self.tensors.axes(), transposed)[:-1]

    def gaussian(self, values: Tensor, transposed: bool = False) -> Tensor:
        """Gaussian of unit variance in feature space, up to a factor: (B, C, *) -> (B, C, *)."""
        return self.slice(self.blur(self.splat(values), transposed))

    def own_part(self, values: Tensor, filters: Tensor) -> Tensor:
        """What slice . filter . splat brings from each pixel to itself: (B, C, *) -> (B, C_out, *).

        Pixel i reaches itself by sum_n c_in W_n, where c_in sums the products of the weights of the
        pairs of its corners that differ by tap n.
        """
        self._check_filters(filters, values.shape[1])
        if filters.dim() == 1:
            channels = values.shape[1]
            filters = filters[:, None, None] * torch.eye(channels, dtype=filters.dtype, device=filters.device)
        matrices = paired_taps(filters, subset_taps(self.dimension, self.radius).to(filters.device))
        return self._image(OwnPart.of(self._as(values)).apply(self._rows(values), matrices))

    def _check_filters(self, filters: Tensor, channels: int) -> None:
        if len(filters) != self.taps:
            raise ValueError(
                f"filters are for {len(filters)} taps, but this lattice of dimension {self.dimension} and radius "
                f"{self.radius} has {self.taps}"
            )
        if filters.dim() not in (1, 3) or (filters.dim() == 3 and filters.shape[2] != channels):
            raise ValueError(
                f"filters have shape {tuple(filters.shape)}, but must be (taps,) or (taps, C_out, {channels})"
            )

    def _checked(self, vertex_values: Tensor) -> Tensor:
        """Values of the vertices, and of the one that stands for those that do not exist: (V, C) -> (V + 1, C)."""
        if vertex_values.dim() != 2 or vertex_values.shape[0] != self.vertices or 0 in vertex_values.shape:
            raise ValueError(
                f"values of vertices must be ({self.vertices}, C) on this lattice, got {tuple(vertex_values.shape)}"
            )
        return torch.nn.functional.pad(vertex_values, (0, 0, 0, 1))

    def _rows(self, values: Tensor) -> Tensor:
        if values.shape[0] != self.batch or values.shape[2:] != self.shape or 0 in values.shape:
            expected = ", ".join(map(str, (self.batch, "C", *self.shape)))
            raise ValueError(f"values have shape {tuple(values.shape)}, the lattice was built for ({expected})")
        return values.movedim(1, -1).flatten(0, -2)  # (N, C)

    def _image(self, rows: Tensor) -> Tensor:
        return rows.unflatten(0, (self.batch, *self.shape)).movedim(-1, 1)  # (B, C, *)

    def _as(self, like: Tensor) -> Lattice:
        """The lattice with weights of the type of some values."""
        return self.tensors._replace(barycentric=self.tensors.barycentric.to(like.dtype))


def paired_taps(filters: Tensor, subset_taps: Tensor) -> Tensor:
    """The matrices by which a pixel reaches itself, by the set of axes between two corners as bits: (2^d, ...).

    A tap between two corners of a simplex is a set of axes; it and its opposite join each pair of corners.

    Args:
        filters: (taps, ...).
        subset_taps: See ``crfgrad.geometry.subset_taps``.
    """
    both = filters + taps.opposite_taps(filters)
    return torch.cat([filters[:1], both.index_select(0, subset_taps)])
