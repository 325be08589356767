"""Tests of the data modules."""
