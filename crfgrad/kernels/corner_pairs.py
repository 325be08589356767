"""Compiled twins of ``corner_pair_products`` and its gradients in ``crfgrad.ops.own_part``."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from crfgrad.kernels.parallel import kernel, run


def products(left: Tensor, right: Tensor, order: Tensor) -> Tensor:
    """See ``crfgrad.ops.own_part.corner_pair_products``: a coefficient for the centre and each pair of corners."""
    corners = left.shape[1]
    return _by_pixel(_products, left, right, 1 + corners * (corners - 1) // 2)


def by_left(grad: Tensor, right: Tensor, order: Tensor) -> Tensor:
    """See ``crfgrad.ops.own_part.corner_pair_left``."""
    return _by_pixel(_by_left, grad, right, right.shape[1])


def by_right(grad: Tensor, left: Tensor, order: Tensor) -> Tensor:
    """See ``crfgrad.ops.own_part.corner_pair_right``."""
    return _by_pixel(_by_right, grad, left, left.shape[1])


def _by_pixel(function: Callable[..., None], first: Tensor, second: Tensor, columns: int) -> Tensor:
    out = torch.empty(len(first), columns, dtype=first.dtype)
    run(function, len(first), first.numpy(), second.numpy(), out.numpy())
    return out


@kernel
def _products(left: np.ndarray, right: np.ndarray, out: np.ndarray, start: int, stop: int) -> None:
    corners = left.shape[1]
    for i in range(start, stop):
        out[i, 0] = 0
        place = 1
        for low in range(corners):
            out[i, 0] += left[i, low] * right[i, low]
            for high in range(low + 1, corners):
                out[i, place] = left[i, low] * right[i, high]
                place += 1


@kernel
def _by_left(grad: np.ndarray, right: np.ndarray, out: np.ndarray, start: int, stop: int) -> None:
    corners = right.shape[1]
    for i in range(start, stop):
        place = 1
        for low in range(corners):
            out[i, low] = grad[i, 0] * right[i, low]
            for high in range(low + 1, corners):
                out[i, low] += grad[i, place] * right[i, high]
                place += 1


@kernel
def _by_right(grad: np.ndarray, left: np.ndarray, out: np.ndarray, start: int, stop: int) -> None:
    corners = left.shape[1]
    for i in range(start, stop):
        place = 1
        for high in range(corners):
            out[i, high] = grad[i, 0] * left[i, high]
        for low in range(corners):
            for high in range(low + 1, corners):
                out[i, high] += grad[i, place] * left[i, low]
                place += 1
