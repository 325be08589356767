"""Vertices and links of a lattice by compiled kernels, for the CPU."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crfgrad.kernels import building, filtering, own
from crfgrad.kernels.matrix import VECTOR
from crfgrad.kernels.parallel import ranges, run, share
from crfgrad.lattice import functions
from crfgrad.lattice.geometry import (
    axis_offsets,
    barycentric_weights,
    embedding_matrix,
    key_strides,
    lattice_position,
    opposite_taps,
    tap_offsets,
)
from crfgrad.lattice.torch_table import self_filter, self_pairs

STRETCH = 16384  # pixels


class NumbaTable:
    """Equals ``TorchTable``, except that vertices are numbered in order of appearance."""

    def __init__(self, features: Tensor, radius: int) -> None:
        batch, self.dimension, size = features.shape
        self.radius = radius
        pixels = batch * size
        array = _rows(features)
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
        self._order = np.empty((pixels, self.dimension), np.int8)
        self.barycentric = features.new_empty(pixels, self.dimension + 1)
        given = (array, matrix, lowest, self.strides)
        run(building.embed, pixels, *given, first, self._order, self.barycentric.numpy())
        if features.requires_grad:
            position = lattice_position(features)
            self.barycentric = barycentric_weights(position, position.detach().floor(), self.order).to(features.dtype)
        self._corners = np.empty((pixels, self.dimension + 1), np.int32)
        self.keys = self._number(first)
        self.vertices = len(self.keys)

    def _number(self, first: np.ndarray) -> np.ndarray:
        """Numbers the corners of all pixels, each thread for itself and then together; returns the keys."""
        parts = ranges(len(first), grain=16384)

        def number(start: int, stop: int) -> np.ndarray:
            keys: np.ndarray = building.number_vertices(first, self._order, self.strides, self._corners, start, stop)
            return keys

        keys = share(number, parts)
        if len(parts) == 1:
            return keys[0]
        merged, numbers = building.merge_keys(np.concatenate(keys))
        ends = np.cumsum([len(part) for part in keys])[:-1]
        own_numbers = dict(zip(parts, np.split(numbers, ends), strict=True))
        share(lambda *part: building.renumber(self._corners, own_numbers[part], *part), parts)
        return merged

    def splat(self, rows: Tensor, weights: Tensor) -> Tensor:
        """(B*N, C) -> (vertices, C)."""
        return _Splat.apply(rows, weights, self)

    def slice(self, rows: Tensor, weights: Tensor) -> Tensor:
        """(vertices, C) -> (B*N, C)."""
        return _Slice.apply(rows, weights, self)

    def slice_onto(self, total: Tensor, rows: Tensor, weights: Tensor) -> None:
        """Adds the slice of rows (vertices, C) to a total (B*N, C), in place."""
        run(filtering.slice_onto, len(weights), _rows(rows), _rows(weights), self._corners, total.numpy())

    def filter(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Full filter: (vertices, C_in) -> (vertices, C_out)."""
        return _Filter.apply(rows, weights, self)

    def blur(self, rows: Tensor, adjoint: bool) -> Tensor:
        """[1 2 1] / 4 along each axis in turn, in reverse for the adjoint: (vertices, C) -> (vertices, C)."""
        return _Blur.apply(rows, self, adjoint)

    def filter_self(self, rows: Tensor, weights: Tensor, matrices: Tensor) -> Tensor:
        """What each pixel brings to itself by the matrix (or number) of each set of axes."""
        if matrices.dim() == 1:
            matrices = matrices[:, None, None] * torch.eye(rows.shape[1], dtype=rows.dtype)
        return _SelfFilter.apply(rows, weights, matrices, self)

    @cached_property
    def corners(self) -> Tensor:
        """Vertices around each pixel: (pixels, d + 1)."""
        return torch.from_numpy(self._corners).long()

    @cached_property
    def order(self) -> Tensor:
        """Axes in order of decreasing fraction: (pixels, d)."""
        return torch.from_numpy(self._order).long()

    @cached_property
    def by_order(self) -> np.ndarray:
        """Pixels sorted by their order of the axes, a stretch of them at a time, which stays in the cache."""
        base = self.dimension ** np.arange(self.dimension)
        codes = (self._order @ base).astype(np.min_scalar_type(base[-1] * self.dimension))
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


def _rows(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().contiguous().numpy()
    return array


def _twice_differentiable(
    context: Any, inputs: tuple[Tensor, ...], grad: Tensor, reference: Callable[..., Tensor]
) -> tuple[Tensor | None, ...]:
    """Gradients that can be differentiated again: those of the reference."""
    needed = [tensor for tensor, needs in zip(inputs, context.needs_input_grad, strict=False) if needs]
    grads = iter(torch.autograd.grad(reference(*inputs), needed, grad, create_graph=True))
    return tuple(next(grads) if needs else None for needs in context.needs_input_grad[: len(inputs)])


def _padded(tensor: Tensor, axes: int) -> np.ndarray:
    """The same with zeros up to whole vectors along the last axes, as ``crfgrad.kernels.matrix`` needs it."""
    missing = [-size % VECTOR for size in tensor.shape[-axes:]]
    return np.pad(_rows(tensor), [(0, 0)] * (tensor.dim() - axes) + [(0, size) for size in missing])


def _summed(
    function: Callable[..., None],
    size: int,
    shape: Sequence[int],
    dtype: np.dtype,
    *arguments: np.ndarray,
    grain: int = 1024,
) -> np.ndarray:
    """Sum over the threads of what a kernel adds to an array of zeros."""

    def part(start: int, stop: int) -> np.ndarray:
        out = np.zeros(shape, dtype)
        function(*arguments, out, start, stop)
        return out

    first, *others = share(part, ranges(size, grain))
    for other in others:
        first += other
    return first


def _weight_gradient(function: Callable[..., None], weights: Tensor, *arguments: np.ndarray) -> Tensor:
    """What a kernel adds up for the weights of a filter: one number, or a matrix with padded sides, for each tap."""
    shape = [len(weights), *(size + -size % VECTOR for size in weights.shape[1:])]
    total = _summed(function, len(arguments[0]), shape, arguments[0].dtype, *arguments)
    return torch.from_numpy(total)[tuple(slice(size) for size in weights.shape)].contiguous()


class _Splat(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor, table: NumbaTable) -> Tensor:
        ctx.save_for_backward(values if ctx.needs_input_grad[1] else None, weights)
        ctx.table = table
        rows = _rows(values)
        # each thread adds to vertices of its own, which together must not be many more than the pixels
        grain = max(1024, table.vertices // 4)
        shape = (table.vertices, values.shape[1])
        given = (rows, _rows(weights), table._corners)
        return torch.from_numpy(_summed(filtering.splat, len(rows), shape, rows.dtype, *given, grain=grain))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        values, weights = ctx.saved_tensors
        table: NumbaTable = ctx.table
        grad_values = table.slice(grads[0], weights) if ctx.needs_input_grad[0] else None
        grad_weights = _CornerProducts.apply(values, grads[0], table) if ctx.needs_input_grad[1] else None
        return grad_values, grad_weights, None


class _Slice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor, table: NumbaTable) -> Tensor:
        ctx.save_for_backward(values if ctx.needs_input_grad[1] else None, weights)
        ctx.table = table
        out = values.new_zeros(len(weights), values.shape[1])
        table.slice_onto(out, values, weights)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        values, weights = ctx.saved_tensors
        table: NumbaTable = ctx.table
        grad_values = table.splat(grads[0], weights) if ctx.needs_input_grad[0] else None
        grad_weights = _CornerProducts.apply(grads[0], values, table) if ctx.needs_input_grad[1] else None
        return grad_values, grad_weights, None


class _CornerProducts(torch.autograd.Function):
    """Inner products of the rows of pixels with those of their corners: (pixels, d + 1)."""

    @staticmethod
    def forward(ctx: Any, pixels: Tensor, vertices: Tensor, table: NumbaTable) -> Tensor:
        ctx.save_for_backward(pixels, vertices)
        ctx.table = table
        out = pixels.new_empty(len(pixels), table.dimension + 1)
        run(filtering.corner_products, len(pixels), _rows(pixels), _rows(vertices), table._corners, out.numpy())
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        pixels, vertices = ctx.saved_tensors
        table: NumbaTable = ctx.table
        grad_pixels = table.slice(vertices, grads[0]) if ctx.needs_input_grad[0] else None
        grad_vertices = table.splat(pixels, grads[0]) if ctx.needs_input_grad[1] else None
        return grad_pixels, grad_vertices, None


class _Blur(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, table: NumbaTable, adjoint: bool) -> Tensor:
        ctx.table, ctx.adjoint = table, adjoint
        source, out = np.empty((2, table.vertices + 1, values.shape[1]), _rows(values).dtype)
        source[:-1] = _rows(values)
        source[-1] = out[-1] = 0  # the value of a vertex that does not exist
        for axis in table.axes[::-1] if adjoint else table.axes:
            run(filtering.blur_axis, table.vertices, source, axis, out)
            source, out = out, source
        return torch.from_numpy(source[:-1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.table.blur(grads[0], not ctx.adjoint), None, None


class _Filter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor, table: NumbaTable) -> Tensor:
        ctx.save_for_backward(values, weights)
        ctx.table = table
        numbers = weights.dim() == 1
        out = values.new_empty(len(values), values.shape[1] if numbers else weights.shape[1])
        function = filtering.filter_numbers if numbers else filtering.filter_matrices
        taps = _rows(weights) if numbers else _padded(weights.mT, 1)
        run(function, len(values), _rows(values), taps, table.neighbours, out.numpy())
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        values, weights = ctx.saved_tensors
        table: NumbaTable = ctx.table
        if torch.is_grad_enabled():
            return *_twice_differentiable(
                ctx, (values, weights), grads[0], lambda x, w: functions.filter_links(x, w, table.links)
            ), None
        numbers = weights.dim() == 1
        grad_values = grad_weights = None
        if ctx.needs_input_grad[0]:
            grad_values = table.filter(grads[0], opposite_taps(weights) if numbers else opposite_taps(weights).mT)
        if ctx.needs_input_grad[1]:
            rows = [_rows(side) if numbers else _padded(side, 1) for side in (grads[0], values)]
            function = filtering.filter_numbers_gradient if numbers else filtering.filter_matrices_gradient
            grad_weights = _weight_gradient(function, weights, *rows, table.neighbours)
        return grad_values, grad_weights, None


class _SelfFilter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor, matrices: Tensor, table: NumbaTable) -> Tensor:
        ctx.save_for_backward(values, weights, matrices)
        ctx.table = table
        out = values.new_empty(len(values), matrices.shape[1])
        given = (_rows(values), _rows(weights), table._order, table.by_order, _padded(matrices.mT, 1))
        run(own.filter_self, len(values), *given, out.numpy(), grain=256)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        values, weights, matrices = ctx.saved_tensors
        table: NumbaTable = ctx.table
        if torch.is_grad_enabled():
            pairs = self_pairs(table.order)
            return *_twice_differentiable(
                ctx, (values, weights, matrices), grads[0], lambda x, b, w: self_filter(x, b, w, pairs)
            ), None
        grad, rows, order = _rows(grads[0]), _rows(values), table._order
        grad_values = grad_weights = grad_matrices = None
        if ctx.needs_input_grad[0]:
            grad_values = table.filter_self(grads[0], weights, matrices.mT)
        if ctx.needs_input_grad[1]:
            grad_weights = torch.empty_like(weights)
            given = (grad, rows, _rows(matrices), _rows(weights), order)
            run(own.filter_self_weight_gradient, len(values), *given, grad_weights.numpy(), grain=256)
        if ctx.needs_input_grad[2]:
            given = (grad, rows, _rows(weights), order, table.by_order)
            grad_matrices = _weight_gradient(own.filter_self_gradient, matrices, *given)
        return grad_values, grad_weights, grad_matrices, None
