"""Gaussian kernels on a lattice, normalised as those of established dense CRFs."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from crfgrad.checks import check_finite
from crfgrad.lattice import Lattice, build_lattice
from crfgrad.operators import LatticeBlur, Mixed, Operator
from crfgrad.ops import taps

Normalization = Literal["none", "before", "after", "symmetric"]
Compatibility = float | Sequence[float] | np.ndarray | Tensor


def gaussian_kernel(features: Tensor, normalization: Normalization = "symmetric", factor: float = 1.0) -> LatticeBlur:
    r"""A Gaussian of unit variance in the space of some features, times a factor: K, without labels.

    With G the raw kernel :math:`\exp(-|f_i - f_j|^2 / 2)`, as the lattice approximates it, and D the diagonal of
    its sums :math:`D_i = \sum_j G_{ij}`, K is G ("none"), :math:`G D^{-1}` ("before"), :math:`D^{-1} G` ("after") or
    :math:`D^{-1/2} G D^{-1/2}` ("symmetric"). The scale of the raw kernel is that of the established
    implementation, 0.53 to 0.56 of the exact Gaussian for d = 5. What a pixel brings to itself is a part of it.

    Args:
        features: (B, \*S, d), divided by the widths of the kernel.
        normalization: See above.
        factor: On the whole.
    """
    return gaussian_on(build_lattice(features), normalization, factor)


def gaussian_on(lattice: Lattice, normalization: Normalization = "symmetric", factor: float = 1.0) -> LatticeBlur:
    """The same on a lattice that is built."""
    check_normalization(normalization)
    axes = lattice.axes()
    if normalization == "none":
        return LatticeBlur(lattice, lattice.scaled(factor * raw_scale(lattice.order.shape[1])), axes)
    ones = lattice.barycentric.new_ones(lattice.corners.shape[0], 1)
    sums = lattice.slice(taps.blur(lattice.splat(ones), *axes, False))  # (N, 1)
    if normalization == "before":
        return LatticeBlur(lattice.scaled(1 / sums), lattice.scaled(factor), axes)
    if normalization == "after":
        return LatticeBlur(lattice, lattice.scaled(factor / sums), axes)
    lattice = lattice.scaled(torch.rsqrt(sums))
    return LatticeBlur(lattice, lattice.scaled(factor), axes)


def gaussian_term(
    lattice: Lattice, compat: Compatibility, labels: int, normalization: Normalization = "symmetric"
) -> Operator:
    """A Gaussian kernel, times what labels cost each other: minus a number for equal ones, a vector, or a matrix."""
    if isinstance(compat, Real):
        if not math.isfinite(compat):
            raise ValueError(f"compat must be finite, got {compat}")
        return gaussian_on(lattice, normalization, -float(compat))
    cost = torch.as_tensor(compat, dtype=lattice.barycentric.dtype, device=lattice.barycentric.device)
    check_finite("compat", cost)
    if cost.shape not in ((labels,), (labels, labels)):
        raise ValueError(
            f"compat has shape {tuple(cost.shape)}, but there are {labels} labels: "
            f"give a number, ({labels},) or ({labels}, {labels})"
        )
    return Mixed(gaussian_on(lattice, normalization), cost.diag() if cost.dim() == 1 else cost, symmetric=False)


def check_normalization(normalization: Normalization) -> Normalization:
    """Returns the name, or raises a ValueError if there is none such."""
    if normalization not in get_args(Normalization):
        raise ValueError(f'there is no normalization "{normalization}": use {", ".join(get_args(Normalization))}')
    return normalization


def raw_scale(dimension: int) -> float:
    """The established raw kernel in units of ours, whose blur along an axis is [1 2 1] / 4: theirs is [1 2 1] / 2."""
    return float(2 ** (dimension + 1) / (1 + 2.0**-dimension))
