"""The terms of the energy."""

from crfgrad.potentials.base import Message, Potential
from crfgrad.potentials.bilateral import BilateralPotential, GaussianBilateralPotential
from crfgrad.potentials.spatial import GaussianSpatialPotential, SpatialPotential
from crfgrad.potentials.unary import UnaryPotential

__all__ = [
    "BilateralPotential",
    "GaussianBilateralPotential",
    "GaussianSpatialPotential",
    "Message",
    "Potential",
    "SpatialPotential",
    "UnaryPotential",
]
