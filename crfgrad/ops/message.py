r"""The message of a filter on a lattice, in as few calls as there can be.

.. math:: r = \sum_t a_t + S v + O x, \quad v = F u, \quad u = S^T x

with the slice S of a lattice, a filter F on its vertices, and the own part O, see ``interpolation``, ``taps`` and
``own_part`` of ``crfgrad.ops``; a_t are what else a pixel receives. The matrices of F and of O are one tensor, the
second after the first. All gradients are made of the same functions, so that there are those of any order.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from crfgrad.ops import interpolation, own_part, taps
from crfgrad.ops.registry import operation, signed


@operation(
    "(Tensor vertices, Tensor barycentric, Tensor corners, Tensor entries, Tensor sources, Tensor starts,"
    " Tensor? pixels, Tensor? coefficients, Tensor? matrices, Tensor? own_pixels, Tensor? own_starts, Tensor? sets,"
    " int count, bool symmetric, Tensor? first, Tensor? second) -> Tensor",
    fake=lambda vertices, barycentric, corners, *_: vertices.new_empty(corners.shape[0], vertices.shape[1]),
    gpu="own_part.receive",
)
def lattice_receive(
    vertices: Tensor,
    barycentric: Tensor,
    corners: Tensor,
    entries: Tensor,
    sources: Tensor,
    starts: Tensor,
    pixels: Tensor | None,
    coefficients: Tensor | None,
    matrices: Tensor | None,
    own_pixels: Tensor | None,
    own_starts: Tensor | None,
    sets: Tensor | None,
    count: int,
    symmetric: bool,
    first: Tensor | None,
    second: Tensor | None,
) -> Tensor:
    """The sum of a slice, an own part if there is one, and up to two fields: (N, C)."""
    total: Tensor = interpolation.lattice_slice(vertices, barycentric, corners, entries, sources, starts)
    if pixels is not None:
        groups = own_pixels, own_starts, sets, count, symmetric
        total.add_(own_part.own_part_filter(pixels, coefficients, matrices, *groups))
    for one in (first, second):
        if one is not None:
            total.add_(one)
    return total


@operation(
    "(Tensor by_vertices, Tensor vertices, Tensor neighbours, Tensor grad, Tensor pixels, Tensor coefficients,"
    " Tensor own_pixels, Tensor own_starts, Tensor sets, int count, bool symmetric) -> Tensor",
    fake=lambda by_vertices, vertices, neighbours, grad, pixels, coefficients, own_pixels, starts, sets, count, _: (
        grad.new_empty(neighbours.shape[0] + count, grad.shape[1], pixels.shape[1])
    ),
    gpu="own_part.message_matrices",
)
def lattice_message_matrices(
    by_vertices: Tensor,
    vertices: Tensor,
    neighbours: Tensor,
    grad: Tensor,
    pixels: Tensor,
    coefficients: Tensor,
    own_pixels: Tensor,
    own_starts: Tensor,
    sets: Tensor,
    count: int,
    symmetric: bool,
) -> Tensor:
    """The gradients of the matrices of the filter and of the own part, one after the other."""
    groups = own_pixels, own_starts, sets, count, symmetric
    return torch.cat(
        [
            taps.lattice_filter_matrices(by_vertices, vertices, neighbours),
            own_part.own_part_matrices(grad, pixels, coefficients, *groups),
        ]
    )


class Between(NamedTuple):
    """Where pixels and vertices lie to each other, see ``crfgrad.lattice.Lattice``."""

    corners: Tensor
    entries: Tensor
    sources: Tensor
    starts: Tensor


class Groups(NamedTuple):
    """Of pixels with the same own part, see ``crfgrad.ops.own_part``."""

    pixels: Tensor
    starts: Tensor
    sets: Tensor
    number: int
    symmetric: bool


class _Receive(torch.autograd.Function):
    @staticmethod
    @signed
    def forward(
        vertices: Tensor,
        barycentric: Tensor,
        pixels: Tensor | None,
        coefficients: Tensor | None,
        matrices: Tensor | None,
        first: Tensor | None,
        second: Tensor | None,
        between: Between,
        groups: Groups | None,
    ) -> Tensor:
        own = (None, None, None, 0, True) if groups is None else groups
        received: Tensor = lattice_receive(
            vertices, barycentric, *between, pixels, coefficients, matrices, *own, first, second
        )
        return received

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, first, second, ctx.between, ctx.groups = inputs
        ctx.save_for_backward(*tensors)
        ctx.added = first is not None, second is not None

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        vertices, barycentric, pixels, coefficients, matrices = ctx.saved_tensors
        between, needed = ctx.between, ctx.needs_input_grad
        grads: list[Tensor | None] = [None] * 5
        if needed[0]:
            grads[0] = interpolation.splat(grad, barycentric, *between)
        if needed[1]:
            grads[1] = interpolation.corner_products(grad, vertices, *between)
        if needed[2]:
            grads[2] = own_part.own_transpose(grad, coefficients, matrices, *ctx.groups)
        if needed[3]:
            grads[3] = own_part.own_coefficients(grad, pixels, matrices, *ctx.groups)
        if needed[4]:
            grads[4] = own_part.own_matrices(grad, pixels, coefficients, *ctx.groups)
        return (*grads, *(grad if there else None for there in ctx.added), None, None)


class _Matrices(torch.autograd.Function):
    """Gradients of the matrices."""

    @staticmethod
    @signed
    def forward(
        by_vertices: Tensor,
        vertices: Tensor,
        grad: Tensor,
        pixels: Tensor,
        coefficients: Tensor,
        neighbours: Tensor,
        groups: Groups,
    ) -> Tensor:
        found: Tensor = lattice_message_matrices(by_vertices, vertices, neighbours, grad, pixels, coefficients, *groups)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.neighbours, ctx.groups = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, upper: Tensor) -> tuple[Any, ...]:
        by_vertices, vertices, grad, pixels, coefficients = ctx.saved_tensors
        neighbours, groups = ctx.neighbours, ctx.groups
        filters, own = upper[: len(neighbours)], upper[len(neighbours) :]
        if groups.symmetric:
            own = (own + own.mT) / 2
        return (
            taps.filter_matrices(vertices, filters, neighbours),
            taps.filter_transpose(by_vertices, filters, neighbours),
            own_part.own_part(pixels, coefficients, own, *groups),
            own_part.own_transpose(grad, coefficients, own, *groups),
            own_part.own_coefficients(grad, pixels, own, *groups) if ctx.needs_input_grad[4] else None,
            None,
            None,
        )


class _Message(torch.autograd.Function):
    """What is in between, u and v, are results too: gradients of gradients reach the pixels through them."""

    @staticmethod
    @signed
    def forward(
        pixels: Tensor,
        barycentric: Tensor,
        matrices: Tensor,
        coefficients: Tensor | None,
        first: Tensor | None,
        second: Tensor | None,
        neighbours: Tensor,
        between: Between,
        groups: Groups | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        number = len(neighbours)
        u = interpolation.lattice_splat(pixels, barycentric, *between)
        v = taps.lattice_filter(u, matrices[:number], neighbours)
        own = (None, None, None) if groups is None else (pixels, coefficients, matrices[number:])
        given = (None, None, None, 0, True) if groups is None else groups
        return lattice_receive(v, barycentric, *between, *own, *given, first, second), u, v

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        pixels, barycentric, matrices, coefficients, first, second, neighbours, ctx.between, ctx.groups = inputs
        ctx.save_for_backward(pixels, barycentric, matrices, coefficients, neighbours, *output[1:])
        ctx.added = first is not None, second is not None
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, by_u: Tensor | None, by_v: Tensor | None) -> tuple[Any, ...]:
        pixels, barycentric, matrices, coefficients, neighbours, u, v = ctx.saved_tensors
        between, groups, needed = ctx.between, ctx.groups, ctx.needs_input_grad
        grad = torch.zeros_like(pixels) if grad is None else grad
        filters, own = matrices[: len(neighbours)], matrices[len(neighbours) :]
        to_v = _sum(interpolation.splat(grad, barycentric, *between), by_v)
        to_u = _sum(taps.filter_transpose(to_v, filters, neighbours), by_u)
        grads: list[Tensor | None] = [None] * 4
        if needed[0] and groups is None:
            grads[0] = interpolation.slice_(to_u, barycentric, *between)
        elif needed[0]:
            grads[0] = _Receive.apply(to_u, barycentric, grad, coefficients, own.mT, None, None, between, groups)
        if needed[1]:
            received = interpolation.corner_products(grad, v, *between)
            grads[1] = received + interpolation.corner_products(pixels, to_u, *between)
        if needed[2] and groups is None:
            grads[2] = taps.filter_gradient(to_v, u, neighbours)
        elif needed[2]:
            grads[2] = _Matrices.apply(to_v, u, grad, pixels, coefficients, neighbours, groups)
        if needed[3]:
            grads[3] = own_part.own_coefficients(grad, pixels, own, *groups)
        return (*grads, *(grad if there else None for there in ctx.added), None, None, None)


def _sum(one: Tensor, other: Tensor | None) -> Tensor:
    return one if other is None else one + other


def message(
    pixels: Tensor,
    barycentric: Tensor,
    matrices: Tensor,
    coefficients: Tensor | None,
    added: list[Tensor],
    neighbours: Tensor,
    between: Between,
    groups: Groups | None,
) -> Tensor:
    """What pixels (N, C) send each other through a lattice, and some fields (N, C): differentiable by all of them.

    Args:
        pixels: x.
        barycentric: Weights of the corners.
        matrices: Those of F, and of O after them if there is an own part, (taps, C, C) or (taps + 2^d, C, C).
        coefficients: Those of the own part.
        added: The fields.
        neighbours: Of the vertices.
        between: Where pixels and vertices lie to each other.
        groups: Those of the own part.
    """
    while len(added) > 2:
        added = [added[0] + added[1], *added[2:]]
    first, second = (*added, None, None)[:2]
    received: Tensor = _Message.apply(
        pixels, barycentric, matrices, coefficients, first, second, neighbours, between, groups
    )[0]
    return received
