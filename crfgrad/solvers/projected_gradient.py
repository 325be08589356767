"""Projected gradient descent: Algorithm 1 of the paper."""

from torch import Tensor

from crfgrad.simplex import project_simplex
from crfgrad.solvers.base import Solver


class ProjectedGradient(Solver):
    r"""A step against the gradient (9), then back to the simplex: :math:`q \leftarrow P(q - \gamma \nabla E)`.

    With leak 0 and a step below 2 / ``energy.operator_norm()``, every iteration lowers the energy.

    Args:
        iterations: T.
        step_size: gamma.
        learn_step_size: Make the step size a parameter.
        leak: Leak of the projection in training mode: keeps a gradient for labels at zero.
        eval_leak: The same in evaluation mode. 0 keeps q on the simplex.
    """

    def __init__(
        self,
        iterations: int = 5,
        step_size: float = 0.5,
        learn_step_size: bool = False,
        leak: float = 0.1,
        eval_leak: float = 0.0,
    ) -> None:
        super().__init__(iterations, step_size, learn_step_size)
        for name, value in (("leak", leak), ("eval_leak", eval_leak)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must be between 0 and 1, got {value}")
        self.leak = leak
        self.eval_leak = eval_leak

    def step(self, q: Tensor, gradient: Tensor) -> Tensor:
        """See ``Solver.step``."""
        return project_simplex(q - self.step_size * gradient, leak=self.leak if self.training else self.eval_leak)
