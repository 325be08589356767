"""Conditional random fields with learned potentials, for segmentation networks in PyTorch."""

from crfgrad.backend import use_backend
from crfgrad.checks import check_values
from crfgrad.crf import CRF
from crfgrad.dense_crf import DenseCRF, GaussianTerm
from crfgrad.energy import Energy
from crfgrad.lattice import PermutohedralLattice
from crfgrad.loss import log_distribution
from crfgrad.operators import Operator
from crfgrad.potentials import (
    BilateralPotential,
    GaussianBilateralPotential,
    GaussianSpatialPotential,
    PairwisePotential,
    SpatialPotential,
    UnaryPotential,
)
from crfgrad.regularizers import DenseEnergyLoss, EnergyLoss, GatedCRFLoss
from crfgrad.rounding import round_labels
from crfgrad.simplex import project_simplex
from crfgrad.solvers import FrankWolfe, MeanField, MirrorDescent, ProjectedGradient, Solver

__all__ = [
    "CRF",
    "BilateralPotential",
    "DenseCRF",
    "DenseEnergyLoss",
    "Energy",
    "EnergyLoss",
    "FrankWolfe",
    "GatedCRFLoss",
    "GaussianBilateralPotential",
    "GaussianSpatialPotential",
    "GaussianTerm",
    "MeanField",
    "MirrorDescent",
    "Operator",
    "PairwisePotential",
    "PermutohedralLattice",
    "ProjectedGradient",
    "Solver",
    "SpatialPotential",
    "UnaryPotential",
    "check_values",
    "log_distribution",
    "project_simplex",
    "round_labels",
    "use_backend",
]
