"""Spatial potentials: cost by relative position, the same everywhere in the image (7)."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from crfgrad.checks import check_count, check_positive
from crfgrad.potentials.base import Message, Potential, mix_labels, potts, symmetrised

WIDEST = 13
"""Columns of a filter that a CPU is fast for; the gradient of wider ones takes up to a hundred times as long."""


def correlate(q: Tensor, filters: Tensor, groups: int = 1) -> Tensor:
    """Filters of odd size over q, with zeros around it; on a CPU wide ones in stripes.

    Shape:
        - q: (B, L, H, W)
        - filters: (L, L / groups, 2s+1, 2s+1)
        - returns: (B, L, H, W)
    """
    rows, columns = filters.shape[2] // 2, filters.shape[3] // 2
    stripes = math.ceil(filters.shape[3] / WIDEST) if q.device.type == "cpu" else 1
    # channels_last: more than twice as fast for a 9 x 9 convolution on a CPU, ten times with a group for each label
    if stripes == 1:
        return conv2d(q.contiguous(memory_format=torch.channels_last), filters, padding=(rows, columns), groups=groups)
    wide = pad(q, (columns, columns))  # (B, L, H, W + 2s)
    result = torch.zeros_like(q)
    first = 0
    for stripe in filters.tensor_split(stripes, dim=3):
        seen = wide[..., first : first + q.shape[3] + stripe.shape[3] - 1].contiguous(memory_format=torch.channels_last)
        result = result + conv2d(seen, stripe, padding=(rows, 0), groups=groups)
        first += stripe.shape[3]
    return result


class SpatialPotential(Potential):
    r"""A free filter of (2s+1) x (2s+1) for each pair of labels, learned from zero.

    .. math:: v_{il} = \sum_{j, m} k_{lm}(p_i - p_j)\, q_{jm}

    ``kernel()[l, m, s + dy, s + dx]`` is k_lm(-dy, -dx), the cost that label l at a pixel pays for
    label m at (dy, dx) from it. The centre is zero: a pixel does not interact with itself. Outside
    the image there is nothing, so no cost.

    Args:
        num_classes: Number of labels L.
        radius: Reach s in pixels; 4 gives the paper's 9 x 9.
        symmetric: Hold k_lm(d) = k_ml(-d).

    Shape:
        - image: (B, C, H, W); only its size matters
        - message: (B, L, H, W) -> (B, L, H, W)

    Example:
        >>> potential = SpatialPotential(num_classes=2, radius=1)
        >>> potential.kernel().shape
        torch.Size([2, 2, 3, 3])
    """

    def __init__(self, num_classes: int, radius: int = 4, symmetric: bool = True) -> None:
        super().__init__(num_classes, symmetric)
        self.radius = check_count("radius", radius, least=1)
        size = 2 * self.radius + 1
        self.weight = nn.Parameter(torch.zeros(num_classes, num_classes, size, size))

    def kernel(self) -> Tensor:
        """The filters as they act: (L, L, 2s+1, 2s+1)."""
        weight: Tensor = self.weight
        if self.symmetric:
            weight = (weight + weight.transpose(0, 1).flip(2, 3)) / 2
        others = torch.ones_like(weight[0, 0])
        others[self.radius, self.radius] = 0
        return weight * others

    def bind(self, image: Tensor) -> Message:
        """See ``Potential.bind``."""
        kernel = self.kernel().to(image.dtype)

        def message(q: Tensor, adjoint: bool = False) -> Tensor:
            return correlate(q, kernel.transpose(0, 1).flip(2, 3) if adjoint else kernel)

        return message


class GaussianSpatialPotential(Potential):
    r"""The spatial potential with the shape held to a Gaussian of learned width and strength.

    .. math:: k_{lm}(d) = \mu_{lm} \, g(d) / \sum_{d' \neq 0} g(d'), \quad g(d) = \exp(-|d|^2 / 2 \sigma^2)

    Args:
        num_classes: Number of labels L.
        radius: Where the Gaussian is cut off, in pixels.
        sigma: Initial width in pixels.
        strength: Initial compatibility: a pixel surrounded by another label pays this cost.
        symmetric: Hold mu symmetric.

    Shape:
        - image: (B, C, H, W); only its size matters
        - message: (B, L, H, W) -> (B, L, H, W)

    Example:
        >>> potential = GaussianSpatialPotential(num_classes=2, strength=3.0)
        >>> round(float(potential.kernel()[0, 1].sum().detach()), 4)
        3.0
    """

    def __init__(
        self,
        num_classes: int,
        radius: int = 4,
        sigma: float = 2.0,
        strength: float = 1.0,
        symmetric: bool = True,
    ) -> None:
        super().__init__(num_classes, symmetric)
        self.radius = check_count("radius", radius, least=1)
        self.log_sigma = nn.Parameter(torch.tensor(math.log(check_positive("sigma", sigma))))
        self.compatibility = nn.Parameter(strength * potts(num_classes))

    @property
    def sigma(self) -> Tensor:
        """The width in pixels."""
        return self.log_sigma.exp()

    def kernel(self) -> Tensor:
        """The filters as they act: (L, L, 2s+1, 2s+1)."""
        return symmetrised(self.compatibility, self.symmetric)[:, :, None, None] * self._shape(self.log_sigma)

    def bind(self, image: Tensor) -> Message:
        """See ``Potential.bind``."""
        shape = self._shape(self.log_sigma.to(image.dtype))
        compatibility = symmetrised(self.compatibility, self.symmetric).to(image.dtype)

        def message(q: Tensor, adjoint: bool = False) -> Tensor:
            one_each = shape.expand(self.num_classes, 1, -1, -1)  # (L, 1, 2s+1, 2s+1), the same filter for every label
            blurred = correlate(q, one_each, groups=self.num_classes)
            return mix_labels(compatibility, blurred, adjoint)

        return message

    def _shape(self, log_sigma: Tensor) -> Tensor:
        """The Gaussian without its centre, with sum 1: (2s+1, 2s+1)."""
        shift = torch.arange(-self.radius, self.radius + 1, device=log_sigma.device, dtype=log_sigma.dtype)
        squared = shift[:, None] ** 2 + shift**2
        centre = squared == 0
        exponent = (-squared / 2 * torch.exp(-2 * log_sigma)).masked_fill(centre, -torch.inf)
        return exponent.flatten().softmax(0).reshape(squared.shape)  # finite for any width, however small
