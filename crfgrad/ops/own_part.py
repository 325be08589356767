r"""What a filter on a lattice brings from each pixel to itself.

.. math:: T(g, x, c, W) = \sum_i \sum_k c_{ik} \langle g_i, W_{s(i, k)} x_i \rangle

with values g (N, C_out) and x (N, C_in), a coefficient for the centre and for each pair of corners of a pixel's
simplex, c (N, K), and a matrix for each set s of axes that may lie between two corners, as bits, W (2^d, C_out, C_in).
Pixels come in groups with the same sets: those of group n are ``pixels[starts[n]:starts[n + 1]]``, and
``sets[n]`` (K,) are its sets.
"""

from functools import lru_cache, partial, reduce

import numpy as np
import torch
from torch import Tensor

from crfgrad.ops.chunks import chunks, joined
from crfgrad.ops.forms import derivatives
from crfgrad.ops.registry import operation


def _products(left: Tensor, right: Tensor, order: Tensor) -> Tensor:
    return left.new_empty(left.shape[0], 1 + order.shape[1] * (order.shape[1] + 1) // 2)


@operation(
    "(Tensor left, Tensor right, Tensor order) -> Tensor",
    fake=_products,
    kernel="corner_pairs.products",
    gpu="corner_pairs.products",
)
def corner_pair_products(left: Tensor, right: Tensor, order: Tensor) -> Tensor:
    """The coefficients c of two sets of weights b (N, d + 1), those of the corners in both places: (N, K)."""
    low, high = corner_pairs(order.shape[1] + 1, order.device)
    pairs = left.index_select(1, low) * right.index_select(1, high)
    return torch.cat([(left * right).sum(1, keepdim=True), pairs], dim=1)


@operation(
    "(Tensor grad, Tensor right, Tensor order) -> Tensor",
    fake=lambda grad, right, order: torch.empty_like(right),
    kernel="corner_pairs.by_left",
    gpu="corner_pairs.by_left",
)
def corner_pair_left(grad: Tensor, right: Tensor, order: Tensor) -> Tensor:
    """The gradient by the weights on the left: (N, d + 1)."""
    low, high = corner_pairs(order.shape[1] + 1, order.device)
    return grad[:, :1] * right + _at(low, grad[:, 1:] * right.index_select(1, high), right)


@operation(
    "(Tensor grad, Tensor left, Tensor order) -> Tensor",
    fake=lambda grad, left, order: torch.empty_like(left),
    kernel="corner_pairs.by_right",
    gpu="corner_pairs.by_right",
)
def corner_pair_right(grad: Tensor, left: Tensor, order: Tensor) -> Tensor:
    """The gradient by the weights on the right: (N, d + 1)."""
    low, high = corner_pairs(order.shape[1] + 1, order.device)
    return grad[:, :1] * left + _at(high, grad[:, 1:] * left.index_select(1, low), left)


def _at(corners: Tensor, products: Tensor, like: Tensor) -> Tensor:
    """Products of pairs (N, pairs) summed up by one corner of each, in the same order on every device: (N, d + 1)."""
    places = corners[:, None] == torch.arange(like.shape[1], device=corners.device)
    return products @ places.to(products.dtype)


@lru_cache(maxsize=16)
def corner_pairs(corners: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The first and the second corner of each pair."""
    with torch.inference_mode(False):
        low, high = torch.triu_indices(corners, corners, 1, device=device)
        return low, high


def _groups(order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    groups = torch.library.get_ctx().new_dynamic_size()
    new = partial(order.new_empty, dtype=torch.int64)
    return new(order.shape[0]), new(groups + 1), new(groups, 1 + order.shape[1] * (order.shape[1] + 1) // 2)


@operation(
    "(Tensor order) -> (Tensor, Tensor, Tensor)", fake=_groups, kernel="own_part.group", gpu="corner_pairs.group"
)
def own_part_groups(order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Groups of pixels by the order of their axes (N, d); here each pixel is one by itself.

    Returns:
        Pixels (N,), starts (groups + 1,) and sets (groups, K), int64.
    """
    axes = 2 ** order.long()  # (N, d)
    passed = torch.cat([torch.zeros_like(axes[:, :1]), axes.cumsum(1)], dim=1)  # (N, d + 1)
    low, high = corner_pairs(order.shape[1] + 1, order.device)
    between = passed.index_select(1, high) - passed.index_select(1, low)
    numbers = torch.arange(len(order) + 1, device=order.device)
    return numbers[:-1].clone(), numbers, torch.cat([passed[:, :1], between], dim=1)


def _by_set(coefficients: Tensor, pixels: Tensor, starts: Tensor, sets: Tensor, count: int) -> Tensor:
    """The coefficient of each set of axes: (N, 2^d)."""
    places = places_of(pixels, starts, sets)
    return coefficients.new_zeros(len(coefficients), count).scatter_(1, places, coefficients)


def places_of(pixels: Tensor, starts: Tensor, sets: Tensor) -> Tensor:
    """The sets of each pixel: (N, K)."""
    if len(sets) == len(pixels) and _in_order(pixels):
        return sets  # of groups of one pixel each
    each = sets.repeat_interleave(starts.diff(), dim=0, output_size=len(pixels))
    return torch.empty_like(each).index_copy_(0, pixels, each)


def _in_order(pixels: Tensor) -> bool:
    """Whether pixels stand in their order; those of a kernel's groups do not, be they of one pixel each."""
    return pixels.device.type != "cpu" or bool((np.diff(pixels.numpy()) == 1).all())


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """Products of all pairs of entries of rows (n, C_out) and (n, C_in): (n, C_out * C_in)."""
    return (left[:, :, None] * right[:, None, :]).flatten(1)


@operation(
    "(Tensor values, Tensor coefficients, Tensor matrices, Tensor pixels, Tensor starts, Tensor sets,"
    " int count, bool symmetric) -> Tensor",
    fake=lambda values, coefficients, matrices, *_: values.new_empty(values.shape[0], matrices.shape[1]),
    kernel="own_part.own_part",
    gpu="own_part.own_part",
)
def own_part_filter(
    values: Tensor,
    coefficients: Tensor,
    matrices: Tensor,
    pixels: Tensor,
    starts: Tensor,
    sets: Tensor,
    count: int,
    symmetric: bool,
) -> Tensor:
    """The own part, the derivative by g: (N, C_out). ``symmetric`` promises that all matrices are."""
    by_set = _by_set(coefficients, pixels, starts, sets, count)
    columns = matrices.flatten(0, 1).mT  # (C_in, 2^d * C_out)

    def some(rows: slice) -> Tensor:
        each = (values[rows] @ columns).unflatten(1, matrices.shape[:2])  # (n, 2^d, C_out)
        return torch.bmm(by_set[rows, None, :], each).squeeze(1)

    return joined([some(rows) for rows in chunks(len(values), columns.shape[1], values)])


@operation(
    "(Tensor grad, Tensor coefficients, Tensor matrices, Tensor pixels, Tensor starts, Tensor sets,"
    " int count, bool symmetric) -> Tensor",
    fake=lambda grad, coefficients, matrices, *_: grad.new_empty(grad.shape[0], matrices.shape[2]),
    gpu="own_part.own_part_transpose",
)
def own_part_transpose(
    grad: Tensor,
    coefficients: Tensor,
    matrices: Tensor,
    pixels: Tensor,
    starts: Tensor,
    sets: Tensor,
    count: int,
    symmetric: bool,
) -> Tensor:
    """The derivative by x: (N, C_in)."""
    out: Tensor = own_part_filter(grad, coefficients, matrices.mT, pixels, starts, sets, count, symmetric)
    return out


@operation(
    "(Tensor grad, Tensor values, Tensor matrices, Tensor pixels, Tensor starts, Tensor sets,"
    " int count, bool symmetric) -> Tensor",
    fake=lambda grad, values, matrices, pixels, starts, sets, *_: grad.new_empty(grad.shape[0], sets.shape[1]),
    kernel="own_part.own_part_coefficients",
    gpu="own_part.own_part_coefficients",
)
def own_part_coefficients(
    grad: Tensor,
    values: Tensor,
    matrices: Tensor,
    pixels: Tensor,
    starts: Tensor,
    sets: Tensor,
    count: int,
    symmetric: bool,
) -> Tensor:
    """The derivative by c: (N, K)."""
    flat = matrices.flatten(1).mT

    def some(rows: slice) -> Tensor:
        return _outer(grad[rows], values[rows]) @ flat  # (n, 2^d)

    by_set = joined([some(rows) for rows in chunks(len(values), len(flat), values)])
    return by_set.gather(1, places_of(pixels, starts, sets))


@operation(
    "(Tensor grad, Tensor values, Tensor coefficients, Tensor pixels, Tensor starts, Tensor sets,"
    " int count, bool symmetric) -> Tensor",
    fake=lambda grad, values, coefficients, pixels, starts, sets, count, _: grad.new_empty(
        count, grad.shape[1], values.shape[1]
    ),
    kernel="own_part.own_part_matrices",
    gpu="own_part.own_part_matrices",
)
def own_part_matrices(
    grad: Tensor,
    values: Tensor,
    coefficients: Tensor,
    pixels: Tensor,
    starts: Tensor,
    sets: Tensor,
    count: int,
    symmetric: bool,
) -> Tensor:
    """The derivative by W, or if symmetric by its symmetric part: (2^d, C_out, C_in)."""
    by_set = _by_set(coefficients, pixels, starts, sets, count)

    def some(rows: slice) -> Tensor:
        return by_set[rows].mT @ _outer(grad[rows], values[rows])  # (2^d, C_out * C_in)

    parts = [some(rows) for rows in chunks(len(values), grad.shape[1] * values.shape[1], values)]
    total = reduce(torch.add, parts).unflatten(1, (grad.shape[1], -1))  # (2^d, C_out, C_in)
    return torch.lerp(total, total.mT, 0.5) if symmetric else total


_pair_products, _, _ = derivatives(corner_pair_products, corner_pair_left, corner_pair_right)
own_part, own_transpose, own_coefficients, own_matrices = derivatives(
    own_part_filter, own_part_transpose, own_part_coefficients, own_part_matrices
)


def coefficients(barycentric: Tensor, order: Tensor) -> Tensor:
    """The coefficients c of the weights of the corners, differentiable: (N, d + 1) -> (N, K)."""
    return _pair_products(barycentric, barycentric.view_as(barycentric), order)  # the compiler wants two tensors
