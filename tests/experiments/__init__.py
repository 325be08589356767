"""Tests of what produces the results."""
