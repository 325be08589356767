"""Triton kernels without a GPU: by Triton's interpreter, and compiled for processors that are not there."""
