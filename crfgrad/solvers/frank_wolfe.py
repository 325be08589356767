"""Regularised Frank-Wolfe, and mean field as its special case."""

import torch
from torch import Tensor

from crfgrad.checks import check_fraction, check_positive
from crfgrad.ops.rows import softmax
from crfgrad.solvers.base import Solver


class FrankWolfe(Solver):
    r"""Moves towards the minimiser of the energy, linearised and minus tau times the entropy.

    .. math:: q \leftarrow (1 - \gamma)\, q + \gamma\, \mathrm{softmax}(-\nabla E / \tau)

    Args:
        iterations: T.
        step_size: gamma, above 0 and up to 1. A learned one acts as 1 where it exceeds 1, so that q stays
            on the simplex.
        learn_step_size: Make the step size a parameter.
        temperature: tau. Towards 0 this becomes plain Frank-Wolfe, and loses its gradient.
    """

    def __init__(
        self,
        iterations: int = 5,
        step_size: float = 0.5,
        learn_step_size: bool = False,
        temperature: float = 0.5,
    ) -> None:
        super().__init__(iterations, step_size, learn_step_size)
        check_fraction("step_size", step_size)
        self.temperature = check_positive("temperature", temperature)

    def extra_repr(self) -> str:
        """Shown by print(crf)."""
        return f"{super().extra_repr()}, temperature={self.temperature}"

    def step(self, q: Tensor, gradient: Tensor, excluded: Tensor | None = None) -> Tensor:
        """See ``Solver.step``."""
        corner = softmax(gradient, excluded, -1 / self.temperature)
        step = self.step_size
        if isinstance(step, Tensor):
            return torch.lerp(q, corner, step.to(q.dtype).clamp_max(1))
        return torch.lerp(q, corner, step) if step < 1 else corner


class MeanField(FrankWolfe):
    r"""Parallel mean field: :math:`q \leftarrow \mathrm{softmax}(-\nabla E)`.

    It minimises the energy minus the entropy, so it may raise the energy itself.

    Args:
        iterations: T.
        step_size: 1 is the usual update; less damps it.
        learn_step_size: Make the step size a parameter.
    """

    def __init__(self, iterations: int = 5, step_size: float = 1.0, learn_step_size: bool = False) -> None:
        super().__init__(iterations, step_size, learn_step_size, temperature=1.0)
