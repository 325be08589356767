"""Splat, slice and filter: the linear maps of the lattice, each with its adjoint as gradient.

Values are rows here: (pixels, C) on the image, (vertices, C) on the lattice. Each backward pass
recomputes its gathers instead of keeping them, and is itself differentiable.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Link(NamedTuple):
    """Pairs of rows that one tap connects: row ``target`` of the result receives from row ``source``."""

    target: Tensor
    source: Tensor


class _Splat(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, barycentric: Tensor, corners: Tensor, vertices: int) -> Tensor:
        ctx.save_for_backward(values if ctx.needs_input_grad[1] else None, barycentric, corners)
        splatted = values.new_zeros(vertices, values.shape[1])
        for k in range(corners.shape[1]):
            splatted.index_add_(0, corners[:, k], barycentric[:, k, None] * values)
        return splatted

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        values, barycentric, corners = ctx.saved_tensors
        grad_values = slice_(grads[0], barycentric, corners) if ctx.needs_input_grad[0] else None
        grad_weight = _pair_products(values, grads[0], corners) if ctx.needs_input_grad[1] else None
        return grad_values, grad_weight, None, None


class _Slice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, barycentric: Tensor, corners: Tensor) -> Tensor:
        ctx.save_for_backward(values if ctx.needs_input_grad[1] else None, barycentric, corners)
        ctx.vertices = len(values)
        sliced = barycentric[:, :1] * values[corners[:, 0]]
        for k in range(1, corners.shape[1]):
            sliced.addcmul_(barycentric[:, k, None], values[corners[:, k]])
        return sliced

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        values, barycentric, corners = ctx.saved_tensors
        grad_values = splat(grads[0], barycentric, corners, ctx.vertices) if ctx.needs_input_grad[0] else None
        grad_weight = _pair_products(grads[0], values, corners) if ctx.needs_input_grad[1] else None
        return grad_values, grad_weight, None


class _Filter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor, links: Sequence[Link], *coefficients: Tensor) -> Tensor:
        ctx.save_for_backward(values, weights, *coefficients)
        ctx.links = links
        filtered = values.new_zeros(len(values), weights.shape[1] if weights.dim() == 3 else values.shape[1])
        for n, link in enumerate(links):
            message = _contract(values[link.source], weights[n])
            if coefficients:
                message = coefficients[n][:, None] * message
            filtered.index_add_(0, link.target, message)
        return filtered

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        values, weights, *coefficients = ctx.saved_tensors
        needs_values, needs_weights, _, *needs_coefficient = ctx.needs_input_grad
        grad_values = None
        grad_weights: list[Tensor] = []
        grad_coefficients: list[Tensor | None] = [None] * len(coefficients)
        if needs_values:
            adjoint = [Link(link.source, link.target) for link in ctx.links]
            grad_values = filter_links(grads[0], weights.mT if weights.dim() == 3 else weights, adjoint, coefficients)
        for n, link in enumerate(ctx.links):
            if needs_weights:
                received = coefficients[n][:, None] * grads[0][link.target] if coefficients else grads[0][link.target]
                sent = values[link.source]
                grad_weights.append(received.mT @ sent if weights.dim() == 3 else (received * sent).sum())
            if coefficients and needs_coefficient[n]:
                message = _contract(values[link.source], weights[n])
                grad_coefficients[n] = (grads[0][link.target] * message).sum(1)
        return grad_values, torch.stack(grad_weights) if needs_weights else None, None, *grad_coefficients


def splat(values: Tensor, barycentric: Tensor, corners: Tensor, vertices: int) -> Tensor:
    """Gives each pixel's value to the corners of its simplex: (pixels, C) -> (vertices, C)."""
    return _Splat.apply(values, barycentric, corners, vertices)


def slice_(values: Tensor, barycentric: Tensor, corners: Tensor) -> Tensor:
    """Interpolates each pixel's value from the corners of its simplex: (vertices, C) -> (pixels, C)."""
    return _Slice.apply(values, barycentric, corners)


def filter_links(values: Tensor, weights: Tensor, links: Sequence[Link], coefficients: Sequence[Tensor] = ()) -> Tensor:
    """Sums over the taps n: row ``target_n`` receives coefficient_n * W_n (row ``source_n``).

    Args:
        values: (rows, C_in).
        weights: (taps, C_out, C_in), a matrix at each tap, or (taps,), a number.
        links: The pairs of each tap.
        coefficients: A factor for each pair of each tap; without it, 1.

    Returns:
        (rows, C_out).
    """
    return _Filter.apply(values, weights, links, *coefficients)


def _contract(rows: Tensor, weight: Tensor) -> Tensor:
    return rows * weight if weight.dim() == 0 else rows @ weight.mT


def _pair_products(pixel_rows: Tensor, vertex_rows: Tensor, corners: Tensor) -> Tensor:
    """Inner product of each pixel's row with that of each of its corners: (pixels, d + 1)."""
    products = [(pixel_rows * vertex_rows[corners[:, k]]).sum(1) for k in range(corners.shape[1])]
    return torch.stack(products, dim=1)
