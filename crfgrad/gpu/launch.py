"""What all launchers share: how kernels start, sizes of blocks, precision of products."""

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

FLOATS = (torch.float32, torch.float64)
LABELS = 256
"""The most labels that a row of a kernel holds in registers."""


def launch(
    kernel: Any, grid: tuple[int, ...], *arguments: Any, warps: int = 4, fused: int = True, **constants: Any
) -> None:
    """Starts a kernel on a grid of programs, of so many warps each.

    Unless ``fused``, a product that is added is rounded before, as it is by other implementations.
    """
    kernel[grid](*arguments, num_warps=warps, enable_fp_fusion=fused, **constants)


def cdiv(count: int, size: int) -> int:
    """How many blocks of a size hold so many."""
    return -(-count // size)


def power(count: int, least: int = 1) -> int:
    """The next power of two."""
    return max(least, triton.next_power_of_2(count))


def precision() -> str:
    """How products of float32 are rounded: as torch's matrix products are, by its older or newer setting."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


def flat(one: Any) -> Any:
    """A tensor as kernels read it; other arguments as they are."""
    return one.detach().contiguous() if isinstance(one, Tensor) else one


def contiguous(function: Callable[..., Any]) -> Callable[..., Any]:
    """A launcher whose tensors are all made contiguous."""

    def call(*arguments: Any) -> Any:
        return function(*map(flat, arguments))

    call.__doc__ = function.__doc__
    return call
