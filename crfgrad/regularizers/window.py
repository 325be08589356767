r"""Gaussian kernels between the pixels of a window, shift by shift.

.. math:: g_{ij} = \sum_k w_k \exp(-|f^k_i - f^k_j|^2 / 2), \quad 0 < |i - j|_\infty \le R

A kernel is symmetric, so that half of the shifts do, and no memory grows with the window.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Place = tuple[slice, slice, slice, slice]


class WindowKernel(NamedTuple):
    """One Gaussian: its weight w, and its features in units of their widths, (B, d, H, W)."""

    weight: float
    features: Tensor

    def between(self, here: Place, there: Place) -> Tensor:
        """The kernel between pixels in two places: (B, 1, h, w)."""
        squared = (self.features[here] - self.features[there]).square_().sum(1, keepdim=True)
        return squared.mul_(-0.5).exp_().mul_(self.weight)


def half_of_the_shifts(height: int, width: int, radius: int) -> Iterator[tuple[Place, Place]]:
    """Where pixels are, and where their partners are, for one of each pair of opposite shifts."""
    for dy in range(min(radius, height - 1) + 1):
        reach = min(radius, width - 1)
        for dx in range(-reach if dy else 1, reach + 1):
            here = slice(0, height - dy), slice(max(0, -dx), width - max(0, dx))
            there = slice(dy, height), slice(max(0, dx), width - max(0, -dx))
            yield (slice(None), slice(None), *here), (slice(None), slice(None), *there)


def received(
    fields: Tensor,
    kernels: Sequence[WindowKernel],
    radius: int,
    source: Tensor | None = None,
    destination: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""What pixels receive from those around, and the sum of all weights.

    .. math:: \sum_j m_{ij} y_j, \quad \sum_{ij} m_{ij} / 2, \quad m_{ij} = g_{ij} (t_i s_j + t_j s_i)

    Args:
        fields: Y, (B, F, H, W).
        kernels: What g is made of.
        radius: R.
        source: S, (B, 1, H, W), 1 everywhere if it is None.
        destination: T, the same.

    Shape:
        (B, F, H, W) and ().
    """
    if fields.device.type == "cpu" and len(fields) > 1:  # one image at a time stays in the cache
        parts = []
        for b in range(len(fields)):
            one = slice(b, b + 1)
            own = [kernel._replace(features=kernel.features[one]) for kernel in kernels]
            masks = (None if mask is None else mask[one] for mask in (source, destination))
            parts.append(received(fields[one], own, radius, *masks))
        return torch.cat([part for part, _ in parts]), torch.stack([total for _, total in parts]).sum()
    sums, total = torch.zeros_like(fields), fields.new_zeros(())
    for here, there in half_of_the_shifts(fields.shape[2], fields.shape[3], radius):
        weight = kernels[0].between(here, there)
        for kernel in kernels[1:]:
            weight += kernel.between(here, there)
        weight *= _both_ways(source, destination, here, there)
        total += weight.sum()
        sums[here].addcmul_(fields[there], weight)
        sums[there].addcmul_(fields[here], weight)
    return sums, total


def _both_ways(source: Tensor | None, destination: Tensor | None, here: Place, there: Place) -> Tensor | float:
    """T_i s_j + t_j s_i."""
    if source is None and destination is None:
        return 2.0
    if source is None or destination is None:
        mask = source if destination is None else destination
        assert mask is not None
        return mask[here] + mask[there]
    return destination[here] * source[there] + destination[there] * source[here]


class _WithGradient(torch.autograd.Function):
    """A number whose gradient was found along with it."""

    @staticmethod
    def forward(probs: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return grad * gradient, None, None


def window_energy(
    probs: Tensor,
    kernels: Sequence[WindowKernel],
    radius: int,
    source: Tensor | None = None,
    destination: Tensor | None = None,
    compatibility: Tensor | None = None,
) -> Tensor:
    r"""The energy of probabilities y within windows; it has one derivative, by the probabilities.

    .. math:: \sum_{ij} t_i g_{ij} s_j (1 - \langle y_i, y_j \rangle) \quad \text{or} \quad
        \sum_{ij} t_i g_{ij} s_j \langle y_i, \mu y_j \rangle

    Args:
        probs: Y, (B, L, H, W).
        kernels: What g is made of.
        radius: Reach of the window in pixels.
        source: S, (B, 1, H, W), 1 everywhere if it is None.
        destination: T, the same.
        compatibility: Mu, (L, L); without it equal labels agree.
    """
    with torch.no_grad():
        y = probs.detach()
        if compatibility is None:
            gradient, total = received(y, kernels, radius, source, destination)
            gradient = -gradient
            value = total + (y * gradient).sum() / 2
        else:
            sent = y if source is None else y * source
            taken = y if destination is None else y * destination
            around, _ = received(torch.cat([sent, taken], 1), kernels, radius)
            of_sent, of_taken = (around / 2).chunk(2, dim=1)
            of_sent = of_sent if destination is None else of_sent * destination
            of_taken = of_taken if source is None else of_taken * source
            cost = torch.einsum("lm,bmhw->blhw", compatibility, of_sent)
            value = (y * cost).sum()
            gradient = cost + torch.einsum("ml,bmhw->blhw", compatibility, of_taken)
    energy: Tensor = _WithGradient.apply(probs, value, gradient)
    return energy
