r"""Filters over the pixels of an image, the same everywhere.

.. math:: T(g, q, k) = \sum_i \sum_d \langle g_i, k(d)\, q_{i + d} \rangle

with fields g and q (B, *S, C), and a matrix for each displacement d, k (C, C, *K) with odd sizes K; nothing is
outside of the image. A kernel (1, 1, *K) acts on each label alone. The filter is a convolution or, where that is
faster, a product in frequency space.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from crfgrad.backend import compiled
from crfgrad.ops import spectra
from crfgrad.ops.forms import derivatives
from crfgrad.ops.registry import HALF, operation

WIDEST = 13
"""Columns that a CPU convolves fast; the gradient of wider filters takes up to a hundred times as long."""


def by_spectra(shape: Sequence[int], device: torch.device) -> bool:
    """Whether a kernel (C_out, C_in, *K) gets a spectrum: where that is faster, forward and backward.

    On a CPU in float32: from 49 taps on, or fewer for many labels.
    """
    taps, labels = math.prod(shape[2:]), (shape[0] * shape[1]) ** 0.5
    return device.type == "cpu" and (taps >= 49 or (taps >= 25 and taps * labels >= 250))


def _convolved(shape: Sequence[int], field: Tensor) -> bool:
    if field.dtype in HALF or not by_spectra(shape, field.device):
        return True
    return not compiled() and shape[-1] <= WIDEST


@operation("(Tensor q, Tensor kernel, int[] shape) -> Tensor", fake=lambda q, kernel, shape: torch.empty_like(q))
def spatial_filter(q: Tensor, kernel: Tensor, shape: list[int]) -> Tensor:
    """The filter, the derivative by g: (B, *S, C). ``shape`` is that of the kernel."""
    if _convolved(shape, q):
        return convolve(q, kernel)
    by = _implementation(q)
    product = by.product(_by_label(by.analyse(q, shape[2:]), shape), by.transform(kernel))
    return by.synthesise(_of_labels(product, q), list(q.shape[:-1]), shape[2:])


@operation("(Tensor grad, Tensor kernel, int[] shape) -> Tensor", fake=lambda grad, *_: torch.empty_like(grad))
def spatial_filter_transpose(grad: Tensor, kernel: Tensor, shape: list[int]) -> Tensor:
    """The transpose of the filter, the derivative by q: (B, *S, C)."""
    if _convolved(shape, grad):
        return convolve_transpose(grad, kernel)
    by = _implementation(grad)
    product = by.product_field(_by_label(by.synthesise_transpose(grad, shape[2:]), shape), by.transform(kernel))
    return by.analyse_transpose(_of_labels(product, grad), list(grad.shape[:-1]), shape[2:])


@operation("(Tensor grad, Tensor q, int[] shape) -> Tensor", fake=lambda grad, q, shape: grad.new_empty(shape))
def spatial_filter_kernel(grad: Tensor, q: Tensor, shape: list[int]) -> Tensor:
    """The derivative by k: (C_out, C_in, *K)."""
    if _convolved(shape, grad):
        return convolution_gradient(grad, q, shape).contiguous()
    by = _implementation(grad)
    spectra_of_both = by.synthesise_transpose(grad, shape[2:]), by.analyse(q, shape[2:])
    return by.transform_transpose(by.product_kernel(*(_by_label(one, shape) for one in spectra_of_both)), shape)


def _implementation(tensor: Tensor) -> Any:
    """What transforms and multiplies spectra: ``crfgrad.ops.spectra`` or its compiled twin."""
    if tensor.device.type != "cpu" or not compiled():
        return spectra
    from crfgrad.kernels import spectra as compiled_spectra

    return compiled_spectra


def _by_label(spectrum: Tensor, shape: list[int]) -> Tensor:
    """Where a kernel acts on each label alone, labels become tiles: (F, tiles, C, 2) -> (F, tiles * C, 1, 2)."""
    return spectrum.reshape(spectrum.shape[0], -1, 1, 2) if shape[1] == 1 else spectrum


def _of_labels(spectrum: Tensor, like: Tensor) -> Tensor:
    """Back again."""
    return spectrum.reshape(spectrum.shape[0], -1, like.shape[-1], 2)


def convolve(q: Tensor, kernel: Tensor) -> Tensor:
    """The filter as a convolution. On a CPU it is fast where the labels are last, as they are here."""
    labels, dims = q.shape[-1], kernel.ndim - 2
    groups = labels // kernel.shape[1]
    convolution = (torch.conv1d, torch.conv2d, torch.conv3d)[dims - 1]
    padding = [size // 2 for size in kernel.shape[2:]]
    first = q.movedim(-1, 1)  # (B, C, *S)
    weights = kernel.expand(groups * kernel.shape[0], *kernel.shape[1:])
    return convolution(first, weights, padding=padding, groups=groups).movedim(1, -1).contiguous()


def convolve_transpose(grad: Tensor, kernel: Tensor) -> Tensor:
    """The transpose of ``convolve``."""
    return _convolution_backward(grad, grad, kernel, [True, False, False])[0].movedim(1, -1).contiguous()


def convolution_gradient(grad: Tensor, q: Tensor, shape: list[int]) -> Tensor:
    """The gradient of ``convolve`` with respect to a kernel of this shape."""
    gradient = _convolution_backward(grad, q, _empty(q, shape), [False, True, False])[1]
    groups = q.shape[-1] // shape[1]
    return gradient.unflatten(0, (groups, -1)).sum(0) if groups > 1 else gradient


def _convolution_backward(grad: Tensor, q: Tensor, kernel: Tensor, needed: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    dims, groups = kernel.ndim - 2, q.shape[-1] // kernel.shape[1]
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        grad.movedim(-1, 1),
        q.movedim(-1, 1),
        kernel.expand(groups * kernel.shape[0], *kernel.shape[1:]),
        None,
        [1] * dims,
        [size // 2 for size in kernel.shape[2:]],
        [1] * dims,
        False,
        [0] * dims,
        groups,
        needed,
    )
    return gradients


def _empty(like: Tensor, shape: list[int]) -> Tensor:
    """Memory of a kernel, as a convolution of fields whose labels are last in memory wants it."""
    order = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=order)


_filter, _transpose, _ = derivatives(spatial_filter, spatial_filter_transpose, spatial_filter_kernel)


def prepared(kernel: Tensor) -> Tensor:
    """A kernel in the order of memory that convolutions of fields whose labels are last want."""
    return kernel.contiguous(memory_format=torch.channels_last) if kernel.dim() == 4 else kernel.contiguous()


def apply(q: Tensor, kernel: Tensor, transposed: bool = False) -> Tensor:
    """The filter of a kernel (C, C, *K) or (1, 1, *K), or its transpose: (B, *S, C) -> (B, *S, C)."""
    return (_transpose if transposed else _filter)(q, kernel, list(kernel.shape))
