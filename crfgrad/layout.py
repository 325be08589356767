"""Labels last in memory: the order in which convolutions, lattices and projections read a pixel in one go.

Shapes stay (B, L, H, W) throughout; torch calls this memory format channels_last.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from crfgrad.backend import compiled


def labels_last(q: Tensor) -> Tensor:
    """The same values (B, L, H, W) with the labels of a pixel side by side in memory."""
    return q.contiguous(memory_format=torch.channels_last)


def copied(q: Tensor) -> Tensor:
    """A copy with the labels last.

    On a CPU by the threads of our kernels: those of torch go on spinning for some milliseconds after each
    of its operations, and would take a core from the kernels that follow.
    """
    if not compiled("auto", q):
        return q.clone(memory_format=torch.channels_last)
    from crfgrad.kernels.filtering import copy

    return map_rows(copy, q.movedim(1, -1))[0].movedim(-1, 1)


def map_rows(kernel: Callable[..., Any], *inputs: Tensor, factor: float | None = None) -> tuple[Tensor, list[Any]]:
    """Calls ``kernel(*rows, [factor], out, start, stop)`` for rows along the last dimension, in several threads.

    Returns:
        The result, of the shape of the inputs, and what the calls returned.
    """
    from crfgrad.kernels.parallel import run

    shape, dtype = inputs[0].shape, inputs[0].dtype
    rows = [tensor.detach().reshape(-1, shape[-1]).contiguous().numpy() for tensor in inputs]
    out = torch.empty(shape, dtype=dtype)
    factors = [] if factor is None else [rows[0].dtype.type(factor)]
    return out, run(kernel, len(rows[0]), *rows, *factors, out.view(-1, shape[-1]).numpy())
