"""Small random fields that several tests share."""

from functools import partial

import torch
from torch import Tensor

from crfgrad import BilateralPotential, Operator, PairwisePotential, SpatialPotential

LABELS = 3
SIZES = {1: (8,), 2: (3, 4), 3: (2, 3, 2)}
"""By dimensions, sizes of images whose pairs of pixels can be gone through."""


def randomise(potential: PairwisePotential) -> PairwisePotential:
    """Moves all entries of kernels, and other parameters, away from their initial values, so that no term is zero."""
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter += 0.3 * getattr(potential, "unit", 1.0) * torch.randn_like(parameter)
    return potential.double()


def message(operator: Operator, q: Tensor) -> Tensor:
    """K q for q (B, L, *S)."""
    return operator.matmul(q.movedim(1, -1)).movedim(-1, 1)


def random_image(batch: int = 1, channels: int = 3, sizes: tuple[int, ...] = SIZES[2]) -> Tensor:
    return 40 * torch.rand(batch, channels, *sizes, dtype=torch.float64)


def random_q(batch: int = 1, labels: int = LABELS, sizes: tuple[int, ...] = SIZES[2]) -> Tensor:
    return torch.randn(batch, labels, *sizes, dtype=torch.float64).softmax(1)


small_spatial = partial(SpatialPotential, radius=2)
small_bilateral = partial(BilateralPotential, sigma_xy=3.0, sigma_value=20.0)
