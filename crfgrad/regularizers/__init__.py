"""Losses that need no labels: energies of a network's probabilities, to put beside a loss on the labels there are."""

from crfgrad.regularizers.dense_energy import DenseEnergyLoss
from crfgrad.regularizers.energy import EnergyLoss
from crfgrad.regularizers.gated_crf import GatedCRFLoss

__all__ = ["DenseEnergyLoss", "EnergyLoss", "GatedCRFLoss"]
