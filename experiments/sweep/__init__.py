"""Sweeps in W&B's format on this machine, without an account: python -m experiments.sweep."""
