"""Compiled kernels for the CPU, each equal to a function of plain torch.

A kernel works on rows ``start`` to ``stop`` and holds no lock, so that any number of threads can share
the work. Compiled code is kept on the disk.
"""
