"""Entropic mirror descent."""

import torch
from torch import Tensor

from crfgrad.ops.rows import softmax
from crfgrad.solvers.base import Solver


class MirrorDescent(Solver):
    r"""A multiplicative step: :math:`q \leftarrow \mathrm{softmax}(\log q - \gamma \nabla E)`.

    It never leaves the inside of the simplex. Labels below the smallest normal number of the dtype
    count as that number, since log 0 has no gradient.

    Args:
        iterations: T.
        step_size: gamma.
        learn_step_size: Make the step size a parameter.
    """

    def step(self, q: Tensor, gradient: Tensor, excluded: Tensor | None = None) -> Tensor:
        """See ``Solver.step``."""
        log_q = q.clamp_min(torch.finfo(q.dtype).tiny).log()
        return softmax(log_q - self.step_size * gradient, excluded)
