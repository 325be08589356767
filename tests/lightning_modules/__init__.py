"""Tests of networks, losses, metrics, training and the command line."""
