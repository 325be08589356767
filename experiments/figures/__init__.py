"""Figures and tables of trained runs."""
