"""Regularised Frank-Wolfe, and mean field as its special case."""

from torch import Tensor

from crfgrad.solvers.base import Solver


class FrankWolfe(Solver):
    r"""Moves towards the minimiser of the energy, linearised and minus tau times the entropy.

    .. math:: q \leftarrow (1 - \gamma)\, q + \gamma\, \mathrm{softmax}(-\nabla E / \tau)

    Args:
        iterations: T.
        step_size: gamma, 0 to 1.
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
        if step_size > 1:
            raise ValueError(f"step_size must be at most 1 to stay on the simplex, got {step_size}")
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        self.temperature = temperature

    def step(self, q: Tensor, gradient: Tensor) -> Tensor:
        """See ``Solver.step``."""
        vertex = (-gradient / self.temperature).softmax(dim=1)
        return q + self.step_size * (vertex - q)


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
