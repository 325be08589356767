"""Conditional random fields with learned potentials, for segmentation networks in PyTorch."""

from crfgrad.backend import use_backend
from crfgrad.crf import CRF
from crfgrad.dense_crf import DenseCRF
from crfgrad.energy import Energy
from crfgrad.lattice import PermutohedralLattice
from crfgrad.loss import log_distribution
from crfgrad.potentials import (
    BilateralPotential,
    GaussianBilateralPotential,
    GaussianSpatialPotential,
    Potential,
    SpatialPotential,
    UnaryPotential,
)
from crfgrad.rounding import round_labels
from crfgrad.simplex import project_simplex
from crfgrad.solvers import FrankWolfe, MeanField, MirrorDescent, ProjectedGradient, Solver

__all__ = [
    "CRF",
    "BilateralPotential",
    "DenseCRF",
    "Energy",
    "FrankWolfe",
    "GaussianBilateralPotential",
    "GaussianSpatialPotential",
    "MeanField",
    "MirrorDescent",
    "PermutohedralLattice",
    "Potential",
    "ProjectedGradient",
    "Solver",
    "SpatialPotential",
    "UnaryPotential",
    "log_distribution",
    "project_simplex",
    "round_labels",
    "use_backend",
]
