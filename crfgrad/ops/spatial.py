r"""Filters over the pixels of an image, the same everywhere.

.. math:: T(g, q, k) = \sum_i \sum_d \langle g_i, k(d)\, q_{i + d} \rangle

with fields g and q (B, *S, C), and a matrix for each displacement d, k (C, C, *K) with odd sizes K; nothing is
outside of the image. A kernel (1, 1, *K) acts on each label alone. The filter is a convolution or, where that is
faster, a product in frequency space: there the form is T(g, q, s) of the kernel's spectrum s, which is made once for
all fields that the filter is applied to.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from crfgrad.backend import compiled
from crfgrad.ops import spectra
from crfgrad.ops.forms import derivatives
from crfgrad.ops.registry import HALF, on_cpu, operation


class SpatialKernel(NamedTuple):
    """A kernel in the form in which it is applied.

    Attributes:
        weights: The kernel (C, C, *K) or (1, 1, *K), or its spectrum (F, C, C, 2) or (F, 1, 1, 2).
        shape: That of the kernel.
        spectral: Whether the weights are a spectrum.
    """

    weights: Tensor
    shape: list[int]
    spectral: bool

    @classmethod
    def of(cls, kernel: Tensor) -> "SpatialKernel":
        """From the kernel, differentiable."""
        shape = list(kernel.shape)
        if by_spectra(kernel):
            return cls(_spectrum(kernel, shape), shape, True)
        # in the order of memory that convolutions of fields whose labels are last want
        order = torch.channels_last if kernel.dim() == 4 else torch.contiguous_format
        return cls(kernel.contiguous(memory_format=order), shape, False)

    def apply(self, q: Tensor, transposed: bool = False) -> Tensor:
        """The filter, or its transpose: (B, *S, C) -> (B, *S, C)."""
        forms = (_spectral, _spectral_transpose) if self.spectral else (_convolution, _convolution_transpose)
        return forms[transposed](q, self.weights, self.shape)


def by_spectra(kernel: Tensor) -> bool:
    """Whether a kernel gets a spectrum: on a CPU, where that is faster, forward and backward.

    That is from 49 taps on, or fewer for many labels.
    """
    taps, labels = math.prod(kernel.shape[2:]), (kernel.shape[0] * kernel.shape[1]) ** 0.5
    large = taps >= 49 or (taps >= 25 and taps * labels >= 250)
    return large and on_cpu(kernel) and kernel.dtype not in HALF


@operation("(Tensor q, Tensor kernel, int[] shape) -> Tensor", fake=lambda q, kernel, shape: torch.empty_like(q))
def spatial_convolve(q: Tensor, kernel: Tensor, shape: list[int]) -> Tensor:
    """The filter, the derivative by g: (B, *S, C). ``shape`` is that of the kernel."""
    return convolve(q, kernel)


@operation("(Tensor grad, Tensor kernel, int[] shape) -> Tensor", fake=lambda grad, *_: torch.empty_like(grad))
def spatial_convolve_transpose(grad: Tensor, kernel: Tensor, shape: list[int]) -> Tensor:
    """The transpose of the filter, the derivative by q: (B, *S, C)."""
    return convolve_transpose(grad, kernel)


@operation("(Tensor grad, Tensor q, int[] shape) -> Tensor", fake=lambda grad, q, shape: grad.new_empty(shape))
def spatial_convolve_kernel(grad: Tensor, q: Tensor, shape: list[int]) -> Tensor:
    """The derivative by k: (C_out, C_in, *K)."""
    return convolution_gradient(grad, q, shape).contiguous()


@operation("(Tensor q, Tensor spectrum, int[] shape) -> Tensor", fake=lambda q, spectrum, shape: torch.empty_like(q))
def spatial_spectral(q: Tensor, spectrum: Tensor, shape: list[int]) -> Tensor:
    """The filter, the derivative by g: (B, *S, C). ``shape`` is that of the kernel."""
    by = _implementation(q)
    product = by.product(_by_label(by.analyse(q, shape[2:]), shape), spectrum)
    field: Tensor = by.synthesise(_of_labels(product, q), list(q.shape[:-1]), shape[2:])
    return field


@operation("(Tensor grad, Tensor spectrum, int[] shape) -> Tensor", fake=lambda grad, *_: torch.empty_like(grad))
def spatial_spectral_transpose(grad: Tensor, spectrum: Tensor, shape: list[int]) -> Tensor:
    """The transpose of the filter, the derivative by q: (B, *S, C)."""
    by = _implementation(grad)
    product = by.product_field(_by_label(by.synthesise_transpose(grad, shape[2:]), shape), spectrum)
    field: Tensor = by.analyse_transpose(_of_labels(product, grad), list(grad.shape[:-1]), shape[2:])
    return field


def _empty_spectrum(like: Tensor, shape: list[int]) -> Tensor:
    return like.new_empty(spectra.frequencies(shape[2:]), shape[1], shape[0], 2)


@operation("(Tensor grad, Tensor q, int[] shape) -> Tensor", fake=lambda grad, q, shape: _empty_spectrum(grad, shape))
def spatial_spectral_kernel(grad: Tensor, q: Tensor, shape: list[int]) -> Tensor:
    """The derivative by s: (F, C_in, C_out, 2)."""
    by = _implementation(grad)
    both = by.synthesise_transpose(grad, shape[2:]), by.analyse(q, shape[2:])
    product: Tensor = by.product_kernel(*(_by_label(one, shape) for one in both))
    return product


@operation("(Tensor kernel, int[] shape) -> Tensor", fake=_empty_spectrum)
def spatial_spectrum(kernel: Tensor, shape: list[int]) -> Tensor:
    """The spectrum of a kernel (C_out, C_in, *K): (F, C_in, C_out, 2)."""
    spectrum: Tensor = _implementation(kernel).transform(kernel)
    return spectrum


@operation("(Tensor grad, int[] shape) -> Tensor", fake=lambda grad, shape: grad.new_empty(shape))
def spatial_spectrum_transpose(grad: Tensor, shape: list[int]) -> Tensor:
    """The transpose of ``spatial_spectrum``: (C_out, C_in, *K)."""
    kernel: Tensor = _implementation(grad).transform_transpose(grad, shape)
    return kernel


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


_convolution, _convolution_transpose, _ = derivatives(
    spatial_convolve, spatial_convolve_transpose, spatial_convolve_kernel
)
_spectral, _spectral_transpose, _ = derivatives(spatial_spectral, spatial_spectral_transpose, spatial_spectral_kernel)
_spectrum, _ = derivatives(spatial_spectrum, spatial_spectrum_transpose)
"""Of the form <g, F k>, for the transform F."""
