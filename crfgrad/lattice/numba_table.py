"""Vertices and links of a lattice by compiled kernels, for the CPU."""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from crfgrad.kernels import building, filtering
from crfgrad.kernels.parallel import ranges, run, share
from crfgrad.lattice import functions
from crfgrad.lattice.geometry import (
    axis_offsets,
    barycentric_weights,
    embedding_matrix,
    key_strides,
    lattice_position,
    tap_offsets,
)
from crfgrad.lattice.numba_functions import Blur, Filter, SelfFilter, Slice, Splat, as_rows

STRETCH = 16384  # pixels


class NumbaTable:
    """Equals ``TorchTable``, except that vertices are numbered in order of appearance."""

    def __init__(self, features: Tensor, radius: int) -> None:
        batch, self.dimension, size = features.shape
        self.radius = radius
        pixels = batch * size
        array = as_rows(features)
        matrix = embedding_matrix(self.dimension).numpy()
        lowest, largest = _lattice_extent(array, matrix)
        try:
            strides = key_strides(largest.tolist(), batch, radius)
        except ValueError:  # features that go together span less than each of them by itself
            corners = lattice_position(features.detach()).floor()
            lowest = corners.amin(0).numpy()
            strides = key_strides((corners.amax(0).numpy() - lowest).tolist(), batch, radius)
        self.strides = np.array(strides, np.int64)
        first = np.empty(pixels, np.int64)
        self.order_array = np.empty((pixels, self.dimension), np.int8)
        self.barycentric = features.new_empty(pixels, self.dimension + 1)
        given = (array, matrix, lowest, self.strides)
        run(building.embed, pixels, *given, first, self.order_array, self.barycentric.numpy())
        if features.requires_grad:
            position = lattice_position(features)
            self.barycentric = barycentric_weights(position, position.detach().floor(), self.order).to(features.dtype)
        self.corner_array = np.empty((pixels, self.dimension + 1), np.int32)
        self.keys = self._number(first)
        self.vertices = len(self.keys)

    def _number(self, first: np.ndarray) -> np.ndarray:
        """Numbers the corners of all pixels, each thread for itself and then together; returns the keys."""
        parts = ranges(len(first), grain=16384)

        def number(start: int, stop: int) -> np.ndarray:
            keys: np.ndarray = building.number_vertices(
                first, self.order_array, self.strides, self.corner_array, start, stop
            )
            return keys

        keys = share(number, parts)
        if len(parts) == 1:
            return keys[0]
        merged, numbers = building.merge_keys(np.concatenate(keys))
        ends = np.cumsum([len(part) for part in keys])[:-1]
        own_numbers = dict(zip(parts, np.split(numbers, ends), strict=True))
        share(lambda *part: building.renumber(self.corner_array, own_numbers[part], *part), parts)
        return merged

    def splat(self, rows: Tensor, weights: Tensor) -> Tensor:
        """(B*N, C) -> (vertices, C)."""
        return Splat.apply(rows, weights, self)

    def slice(self, rows: Tensor, weights: Tensor) -> Tensor:
        """(vertices, C) -> (B*N, C)."""
        return Slice.apply(rows, weights, self)

    def slice_onto(self, total: Tensor, rows: Tensor, weights: Tensor) -> None:
        """Adds the slice of rows (vertices, C) to a total (B*N, C), in place."""
        run(filtering.slice_onto, len(weights), as_rows(rows), as_rows(weights), self.corner_array, total.numpy())

    def filter(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Full filter: (vertices, C_in) -> (vertices, C_out)."""
        return Filter.apply(rows, weights, self)

    def blur(self, rows: Tensor, adjoint: bool) -> Tensor:
        """[1 2 1] / 4 along each axis in turn, in reverse for the adjoint: (vertices, C) -> (vertices, C)."""
        return Blur.apply(rows, self, adjoint)

    def filter_self(self, rows: Tensor, weights: Tensor, matrices: Tensor) -> Tensor:
        """What each pixel brings to itself by the matrix (or number) of each set of axes."""
        if matrices.dim() == 1:
            matrices = matrices[:, None, None] * torch.eye(rows.shape[1], dtype=rows.dtype)
        return SelfFilter.apply(rows, weights, matrices, self)

    @cached_property
    def corners(self) -> Tensor:
        """Vertices around each pixel: (pixels, d + 1)."""
        return torch.from_numpy(self.corner_array).long()

    @cached_property
    def order(self) -> Tensor:
        """Axes in order of decreasing fraction: (pixels, d)."""
        return torch.from_numpy(self.order_array).long()

    @cached_property
    def by_order(self) -> np.ndarray:
        """Pixels sorted by their order of the axes, a stretch of them at a time, which stays in the cache."""
        base = self.dimension ** np.arange(self.dimension)
        codes = (self.order_array @ base).astype(np.min_scalar_type(base[-1] * self.dimension))
        stretches = np.pad(codes, (0, -len(codes) % STRETCH), mode="edge").reshape(-1, STRETCH)
        ranks = stretches.argsort(axis=1, kind="stable")  # of small codes a radix sort
        pixels = (ranks + STRETCH * np.arange(len(ranks))[:, None]).ravel()
        return pixels[pixels < len(codes)].astype(np.int32)

    @cached_property
    def neighbours(self) -> np.ndarray:
        """Vertex at each tap from each vertex, -1 where there is none: (taps, vertices)."""
        offsets = tap_offsets(self.dimension, self.radius)
        neighbours = np.full((len(offsets), self.vertices), -1, np.int32)
        neighbours[0] = np.arange(self.vertices)
        self._find(offsets[1::2], neighbours[1:])
        return neighbours

    @cached_property
    def axes(self) -> np.ndarray:
        """Vertices along each of the d + 1 axes, one past the last where there is none: (d + 1, 2, vertices)."""
        neighbours = np.full((2 * (self.dimension + 1), self.vertices), self.vertices, np.int32)
        self._find(axis_offsets(self.dimension), neighbours)
        return neighbours.reshape(self.dimension + 1, 2, self.vertices)

    def _find(self, offsets: Tensor, neighbours: np.ndarray) -> None:
        steps = offsets.numpy() @ self.strides[:-1]
        run(building.find_neighbours, self.vertices, self._slots, self.keys, steps, neighbours)

    @cached_property
    def _slots(self) -> np.ndarray:
        slots: np.ndarray = building.hash_table(self.keys)
        return slots

    @cached_property
    def links(self) -> list[functions.Link]:
        """The neighbours as links of the reference."""
        neighbours = torch.from_numpy(self.neighbours).long()
        targets = [(tap >= 0).nonzero().squeeze(1) for tap in neighbours]
        return [functions.Link(target, tap[target]) for target, tap in zip(targets, neighbours, strict=True)]


def _lattice_extent(features: np.ndarray, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lattice coordinates of first corners lie between these, and above the lowest by up to the largest: (d,), (d,)."""
    parts = share(lambda start, stop: building.extent(features, start, stop), ranges(features.shape[2], grain=1024))
    ends = np.stack([np.min([part[0] for part in parts], axis=0), np.max([part[1] for part in parts], axis=0)])
    products = np.sort(matrix * ends[:, None], axis=0)  # (2, d, d), the smaller and the larger of each term
    lowest, highest = np.floor(products.sum(axis=2))
    return lowest - 1, highest - lowest + 2  # sums in another order may round to the next cell
