"""Gaussian kernels on a lattice, normalised as those of established dense CRFs."""

from typing import Literal, get_args

import torch
from torch import Tensor

from crfgrad.lattice import build_lattice
from crfgrad.operators import LatticeBlur
from crfgrad.ops import taps

Normalization = Literal["none", "before", "after", "symmetric"]


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
    if normalization not in get_args(Normalization):
        raise ValueError(f'there is no normalization "{normalization}": use {", ".join(get_args(Normalization))}')
    lattice = build_lattice(features)
    axes = lattice.axes()
    if normalization == "none":
        return LatticeBlur(lattice, lattice.scaled(factor * raw_scale(features.shape[-1])), axes)
    ones = features.new_ones(lattice.corners.shape[0], 1)
    sums = lattice.slice(taps.blur(lattice.splat(ones), *axes, False))  # (N, 1)
    if normalization == "before":
        return LatticeBlur(lattice.scaled(1 / sums), lattice.scaled(factor), axes)
    if normalization == "after":
        return LatticeBlur(lattice, lattice.scaled(factor / sums), axes)
    lattice = lattice.scaled(torch.rsqrt(sums))
    return LatticeBlur(lattice, lattice.scaled(factor), axes)


def raw_scale(dimension: int) -> float:
    """The established raw kernel in units of ours, whose blur along an axis is [1 2 1] / 4: theirs is [1 2 1] / 2."""
    return float(2 ** (dimension + 1) / (1 + 2.0**-dimension))
