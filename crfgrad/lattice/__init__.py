"""Permutohedral lattice: fast filtering in high-dimensional feature spaces."""

from crfgrad.lattice.geometry import gaussian_taps, opposite_taps, tap_offsets
from crfgrad.lattice.lattice import PermutohedralLattice

__all__ = ["PermutohedralLattice", "gaussian_taps", "opposite_taps", "tap_offsets"]
