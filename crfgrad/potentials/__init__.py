"""The terms of the energy."""

from crfgrad.potentials.base import PairwisePotential
from crfgrad.potentials.bilateral import BilateralPotential, GaussianBilateralPotential
from crfgrad.potentials.spatial import GaussianSpatialPotential, SpatialPotential
from crfgrad.potentials.unary import UnaryPotential

__all__ = [
    "BilateralPotential",
    "GaussianBilateralPotential",
    "GaussianSpatialPotential",
    "PairwisePotential",
    "SpatialPotential",
    "UnaryPotential",
]
