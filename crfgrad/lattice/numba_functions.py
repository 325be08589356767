"""What a ``NumbaTable`` does to rows of values, with gradients, by compiled kernels."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from crfgrad.kernels import filtering, own
from crfgrad.kernels.matrix import VECTOR
from crfgrad.kernels.parallel import ranges, run, share
from crfgrad.lattice import functions
from crfgrad.lattice.geometry import opposite_taps
from crfgrad.lattice.torch_table import self_filter, self_pairs

if TYPE_CHECKING:
    from crfgrad.lattice.numba_table import NumbaTable


def as_rows(tensor: Tensor) -> np.ndarray:
    """The values of a tensor, contiguous, without gradient."""
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
    return np.pad(as_rows(tensor), [(0, 0)] * (tensor.dim() - axes) + [(0, size) for size in missing])


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


class Splat(torch.autograd.Function):
    """See ``NumbaTable.splat``."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor, table: "NumbaTable") -> Tensor:
        ctx.save_for_backward(values if ctx.needs_input_grad[1] else None, weights)
        ctx.table = table
        rows = as_rows(values)
        # each thread adds to vertices of its own, which together must not be many more than the pixels
        grain = max(1024, table.vertices // 4)
        shape = (table.vertices, values.shape[1])
        given = (rows, as_rows(weights), table.corner_array)
        return torch.from_numpy(_summed(filtering.splat, len(rows), shape, rows.dtype, *given, grain=grain))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        values, weights = ctx.saved_tensors
        table: NumbaTable = ctx.table
        grad_values = table.slice(grads[0], weights) if ctx.needs_input_grad[0] else None
        grad_weights = CornerProducts.apply(values, grads[0], table) if ctx.needs_input_grad[1] else None
        return grad_values, grad_weights, None


class Slice(torch.autograd.Function):
    """See ``NumbaTable.slice``."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor, table: "NumbaTable") -> Tensor:
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
        grad_weights = CornerProducts.apply(grads[0], values, table) if ctx.needs_input_grad[1] else None
        return grad_values, grad_weights, None


class CornerProducts(torch.autograd.Function):
    """Inner products of the rows of pixels with those of their corners: (pixels, d + 1)."""

    @staticmethod
    def forward(ctx: Any, pixels: Tensor, vertices: Tensor, table: "NumbaTable") -> Tensor:
        ctx.save_for_backward(pixels, vertices)
        ctx.table = table
        out = pixels.new_empty(len(pixels), table.dimension + 1)
        run(filtering.corner_products, len(pixels), as_rows(pixels), as_rows(vertices), table.corner_array, out.numpy())
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        pixels, vertices = ctx.saved_tensors
        table: NumbaTable = ctx.table
        grad_pixels = table.slice(vertices, grads[0]) if ctx.needs_input_grad[0] else None
        grad_vertices = table.splat(pixels, grads[0]) if ctx.needs_input_grad[1] else None
        return grad_pixels, grad_vertices, None


class Blur(torch.autograd.Function):
    """See ``NumbaTable.blur``."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, table: "NumbaTable", adjoint: bool) -> Tensor:
        ctx.table, ctx.adjoint = table, adjoint
        source, out = np.empty((2, table.vertices + 1, values.shape[1]), as_rows(values).dtype)
        source[:-1] = as_rows(values)
        source[-1] = out[-1] = 0  # the value of a vertex that does not exist
        for axis in table.axes[::-1] if adjoint else table.axes:
            run(filtering.blur_axis, table.vertices, source, axis, out)
            source, out = out, source
        return torch.from_numpy(source[:-1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.table.blur(grads[0], not ctx.adjoint), None, None


class Filter(torch.autograd.Function):
    """See ``NumbaTable.filter``."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor, table: "NumbaTable") -> Tensor:
        ctx.save_for_backward(values, weights)
        ctx.table = table
        numbers = weights.dim() == 1
        out = values.new_empty(len(values), values.shape[1] if numbers else weights.shape[1])
        function = filtering.filter_numbers if numbers else filtering.filter_matrices
        taps = as_rows(weights) if numbers else _padded(weights.mT, 1)
        run(function, len(values), as_rows(values), taps, table.neighbours, out.numpy())
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
            rows = [as_rows(side) if numbers else _padded(side, 1) for side in (grads[0], values)]
            function = filtering.filter_numbers_gradient if numbers else filtering.filter_matrices_gradient
            grad_weights = _weight_gradient(function, weights, *rows, table.neighbours)
        return grad_values, grad_weights, None


class SelfFilter(torch.autograd.Function):
    """See ``NumbaTable.filter_self``."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor, matrices: Tensor, table: "NumbaTable") -> Tensor:
        ctx.save_for_backward(values, weights, matrices)
        ctx.table = table
        out = values.new_empty(len(values), matrices.shape[1])
        given = (as_rows(values), as_rows(weights), table.order_array, table.by_order, _padded(matrices.mT, 1))
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
        grad, rows, order = as_rows(grads[0]), as_rows(values), table.order_array
        grad_values = grad_weights = grad_matrices = None
        if ctx.needs_input_grad[0]:
            grad_values = table.filter_self(grads[0], weights, matrices.mT)
        if ctx.needs_input_grad[1]:
            grad_weights = torch.empty_like(weights)
            given = (grad, rows, as_rows(matrices), as_rows(weights), order)
            run(own.filter_self_weight_gradient, len(values), *given, grad_weights.numpy(), grain=256)
        if ctx.needs_input_grad[2]:
            given = (grad, rows, as_rows(weights), order, table.by_order)
            grad_matrices = _weight_gradient(own.filter_self_gradient, matrices, *given)
        return grad_values, grad_weights, grad_matrices, None
