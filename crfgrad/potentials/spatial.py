"""Spatial potentials: cost by relative position, the same everywhere in the image (7)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from crfgrad.checks import check_count, check_positive
from crfgrad.features import Spacing, spread_widths
from crfgrad.operators import EachImage, Mixed, Operator, SpatialFilter, on_blocks
from crfgrad.potentials.base import FreePotential, PairwisePotential, potts, symmetrised


class SpatialPotential(FreePotential):
    r"""A free filter of (2s+1) x (2s+1) for each pair of labels, learned from zero; of any spacing, it counts pixels.

    .. math:: v_{il} = \sum_{j, m} k_{lm}(p_i - p_j)\, q_{jm}

    ``kernel()[l, m, s + dy, s + dx]`` is k_lm(-dy, -dx), the cost that label l at a pixel pays for
    label m at (dy, dx) from it. The centre is zero: a pixel does not interact with itself. Outside
    the image there is nothing, so no cost.

    Args:
        num_classes: Number of labels L.
        radius: Reach s in pixels; 4, the default for images and sequences, gives the paper's 9 x 9. 2 for volumes.
        symmetric: Hold k_lm(d) = k_ml(-d).
        stride: Side of square blocks of pixels on whose means the filters act: with 4, filters of 9 x 9 reach 16
            pixels far, at a sixteenth of the cost. 1 is the filter on pixels.
        dimensions: Of the images: 1 for sequences, 2, or 3 for volumes.

    Shape:
        - image: (B, C, *S); only its size matters

    Example:
        >>> potential = SpatialPotential(num_classes=2, radius=1)
        >>> potential.kernel().shape
        torch.Size([2, 2, 3, 3])
    """

    def __init__(
        self,
        num_classes: int,
        radius: int | None = None,
        symmetric: bool = True,
        stride: int = 1,
        dimensions: int = 2,
    ) -> None:
        super().__init__(num_classes, symmetric, dimensions)
        self.radius = check_count("radius", usual_radius(dimensions) if radius is None else radius, least=1)
        self.stride = check_count("stride", stride, least=1)
        size = [2 * self.radius + 1] * dimensions
        self.start(torch.zeros(num_classes, num_classes, *size), unit=math.prod(size) - 1)
        others = torch.ones(size)
        others[(self.radius,) * dimensions] = 0
        self.register_buffer("share", others / (2 * self.unit if symmetric else self.unit), persistent=False)

    share: Tensor

    def kernel(self, dtype: torch.dtype | None = None) -> Tensor:
        """The filters as they act, in a type: (L, L, 2s+1, 2s+1), with as many sides as there are dimensions."""
        filters = self.filters.to(dtype or self.filters.dtype)
        if self.symmetric:
            filters = filters + filters.transpose(0, 1).flip(tuple(range(2, filters.dim())))
        return filters * self.share.to(filters.dtype)

    def bind(self, image: Tensor, valid: Tensor | None = None, spacing: Spacing | None = None) -> Operator:
        """See ``PairwisePotential.bind``."""
        return on_blocks(SpatialFilter(self.kernel(image.dtype), self.symmetric), self.stride)

    def extra_repr(self) -> str:
        """Shown by print(crf)."""
        return f"{super().extra_repr()}, radius={self.radius}, stride={self.stride}"


class GaussianSpatialPotential(PairwisePotential):
    r"""The spatial potential with the shape held to a Gaussian of learned width and strength.

    .. math:: k_{lm}(d) = \mu_{lm} \, g(d) / \sum_{d' \neq 0} g(d'), \quad g(d) = \exp(-|d|^2 / 2 \sigma^2)

    Args:
        num_classes: Number of labels L.
        radius: Where the Gaussian is cut off, in pixels; 4, or 2 for volumes, if it is None.
        sigma: Initial width, in pixels or in the unit of the spacing.
        strength: Initial compatibility: a pixel surrounded by another label pays this cost.
        symmetric: Hold mu symmetric.
        stride: Side of square blocks of pixels on whose means the Gaussian acts; radius and sigma then
            count blocks, and with a spacing blocks times the spacing.
        dimensions: Of the images: 1 for sequences, 2, or 3 for volumes.

    Shape:
        - image: (B, C, *S); only its size matters

    Example:
        >>> potential = GaussianSpatialPotential(num_classes=2, strength=3.0)
        >>> round(float(potential.kernel()[0, 1].sum().detach()), 4)
        3.0
    """

    def __init__(
        self,
        num_classes: int,
        radius: int | None = None,
        sigma: float = 2.0,
        strength: float = 1.0,
        symmetric: bool = True,
        stride: int = 1,
        dimensions: int = 2,
    ) -> None:
        super().__init__(num_classes, symmetric, dimensions)
        self.radius = check_count("radius", usual_radius(dimensions) if radius is None else radius, least=1)
        self.stride = check_count("stride", stride, least=1)
        self.log_sigma = nn.Parameter(torch.tensor(math.log(check_positive("sigma", sigma))))
        self.compatibility = nn.Parameter(strength * potts(num_classes))

    @property
    def sigma(self) -> Tensor:
        """The width in pixels."""
        return self.log_sigma.exp()

    def kernel(self) -> Tensor:
        """The filters as they act where the spacing is 1: (L, L, 2s+1, 2s+1), or with another number of sides."""
        shape = self._shape(self.log_sigma, [1.0] * self.dimensions)
        return (
            symmetrised(self.compatibility, self.symmetric).view(*self.compatibility.shape, *[1] * shape.dim()) * shape
        )

    def bind(self, image: Tensor, valid: Tensor | None = None, spacing: Spacing | None = None) -> Operator:
        """See ``PairwisePotential.bind``."""
        compatibility = symmetrised(self.compatibility, self.symmetric).to(image.dtype)
        return Mixed(on_blocks(self._gaussian(image, spacing), self.stride), compatibility, self.symmetric)

    def _gaussian(self, image: Tensor, spacing: Spacing | None) -> Operator:
        log_sigma = self.log_sigma.to(image.dtype)
        if isinstance(spacing, Tensor) and spacing.dim() == 2:
            return EachImage([self._filter(log_sigma, one.to(log_sigma).unbind()) for one in spacing])
        if isinstance(spacing, Tensor):
            return self._filter(log_sigma, spacing.to(log_sigma).unbind())
        return self._filter(
            log_sigma, spread_widths("spacing", 1.0 if spacing is None else spacing, self.dimensions, "axes")
        )

    def _filter(self, log_sigma: Tensor, steps: Sequence[float | Tensor]) -> Operator:
        return SpatialFilter(self._shape(log_sigma, steps)[None, None], symmetric=True)

    def _shape(self, log_sigma: Tensor, steps: Sequence[float | Tensor]) -> Tensor:
        """The Gaussian without its centre, with sum 1: (2s+1, 2s+1)."""
        shift = torch.arange(-self.radius, self.radius + 1, device=log_sigma.device, dtype=log_sigma.dtype)
        along = torch.meshgrid(*(step * shift for step in steps), indexing="ij")
        squared = torch.stack([distance**2 for distance in along]).sum(0)
        exponent = (-squared / 2 * torch.exp(-2 * log_sigma)).masked_fill(squared == 0, -torch.inf)
        return exponent.flatten().softmax(0).reshape(squared.shape)  # finite for any width, however small


def usual_radius(dimensions: int) -> int:
    """Reach of a filter where none is given."""
    return 2 if dimensions == 3 else 4
