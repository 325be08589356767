"""Tests of ``crfgrad.pydensecrf``."""
