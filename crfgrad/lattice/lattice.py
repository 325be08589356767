"""The permutohedral lattice around a batch of feature vectors."""

import copy
from functools import cached_property

import torch
from torch import Tensor

from crfgrad.backend import Backend, compiled
from crfgrad.lattice.geometry import opposite_taps, tap_offsets
from crfgrad.lattice.torch_table import TorchTable


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
        backend: See ``use_backend``.

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

    def __init__(self, features: Tensor, radius: int = 1, backend: Backend = "auto") -> None:
        if features.dim() < 3 or 0 in features.shape:
            raise ValueError(f"features must be (B, d, ...) and not empty, got {tuple(features.shape)}")
        if radius < 1:
            raise ValueError(f"radius must be 1 or more, got {radius}")
        self.batch, self.dimension = features.shape[:2]
        self.shape = features.shape[2:]
        self.radius = radius
        self.taps = (radius + 1) ** (self.dimension + 1) - radius ** (self.dimension + 1)
        self._table = _build(features.flatten(2), radius, backend)
        self.barycentric = self._table.barycentric
        self.vertices = self._table.vertices

    def scaled(self, factor: Tensor | float) -> "PermutohedralLattice":
        """The same lattice with a factor (B, 1, *) on what each pixel gives and gets: splat . D and D . slice."""
        lattice = copy.copy(self)
        lattice.barycentric = self.barycentric * (self._rows(factor) if isinstance(factor, Tensor) else factor)
        return lattice

    def splat(self, values: Tensor) -> Tensor:
        """(B, C, *) -> (vertices, C)."""
        if values.shape[0] != self.batch or values.shape[2:] != self.shape:
            expected = ", ".join(map(str, (self.batch, "C", *self.shape)))
            raise ValueError(f"values have shape {tuple(values.shape)}, the lattice was built for ({expected})")
        return self._table.splat(self._rows(values), self._weights(values))

    def slice(self, vertex_values: Tensor) -> Tensor:
        """(vertices, C) -> (B, C, *)."""
        return self._image(self._table.slice(vertex_values, self._weights(vertex_values)))

    def slice_onto(self, total: Tensor, vertex_values: Tensor) -> None:
        """Adds slice of (vertices, C) to a total (B, C, *) in place, without recording gradients."""
        rows = self._rows(total)
        if rows.data_ptr() != total.data_ptr() or not rows.is_contiguous():  # not a view: labels are not last in memory
            total.add_(self.slice(vertex_values))
        else:
            self._table.slice_onto(rows, vertex_values, self._weights(vertex_values))

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
        return self._table.filter(vertex_values, weights)

    def blur(self, vertex_values: Tensor, adjoint: bool = False) -> Tensor:
        """Gaussian filter by [1 2 1]/4 along each of the d + 1 axes in turn; the adjoint in reverse order.

        Takes and gives values of vertices: (vertices, C) -> (vertices, C).

        Fast, and the closest to a Gaussian; but with vertices missing, the axes do not commute and
        it is not quite symmetric. Where that matters take ``filter`` with ``gaussian_taps``.
        """
        return self._table.blur(vertex_values, adjoint)

    def gaussian(self, values: Tensor, adjoint: bool = False) -> Tensor:
        """Gaussian of unit variance in feature space, up to a factor: (B, C, *) -> (B, C, *)."""
        return self.slice(self.blur(self.splat(values), adjoint))

    def filter_self(self, values: Tensor, weights: Tensor) -> Tensor:
        """What slice . filter . splat brings from each pixel to itself: (B, C, *) -> (B, C_out, *).

        Pixel i reaches itself by sum_n c_in W_n, where c_in sums the products of the weights of the
        pairs of its corners that differ by tap n.
        """
        paired = torch.cat([weights[:1], (weights + opposite_taps(weights))[self._self_taps]])
        return self._image(self._table.filter_self(self._rows(values), self._weights(values), paired))

    @cached_property
    def offsets(self) -> Tensor:
        """The taps as integer vectors: (taps, d)."""
        return tap_offsets(self.dimension, self.radius)

    @cached_property
    def _self_taps(self) -> list[int]:
        """Taps from a corner of a simplex to a later one: the 0/1 offsets, by the set of axes as bits."""
        index = {tuple(offset): tap for tap, offset in enumerate(self.offsets.tolist())}
        subsets = range(1, 2**self.dimension)
        return [index[tuple(subset >> axis & 1 for axis in range(self.dimension))] for subset in subsets]

    def _rows(self, values: Tensor) -> Tensor:
        return values.flatten(2).transpose(1, 2).flatten(0, 1)  # (B*N, C)

    def _image(self, rows: Tensor) -> Tensor:
        channels_first = rows.unflatten(0, (self.batch, -1)).transpose(1, 2)  # (B, C, N)
        return channels_first.unflatten(2, self.shape)  # (B, C, *)

    def _weights(self, values: Tensor) -> Tensor:
        return self.barycentric.to(values.dtype)


def _build(features: Tensor, radius: int, backend: Backend) -> TorchTable:
    if not compiled(backend, features):
        return TorchTable(features, radius)
    from crfgrad.lattice.numba_table import NumbaTable  # the compiler takes a second to import

    return NumbaTable(features, radius)  # type: ignore[return-value]
