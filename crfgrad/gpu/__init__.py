"""Triton kernels for the operations of ``crfgrad.ops``, for GPUs; imported when one is first needed.

A launcher has the signature of its operation and gives NotImplemented for what it does not serve, on which the
reference runs.
"""
