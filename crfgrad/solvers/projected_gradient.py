"""Projected gradient descent: Algorithm 1 of the paper."""

from torch import Tensor

from crfgrad.checks import check_fraction
from crfgrad.ops.rows import project_step
from crfgrad.solvers.base import Solver


class ProjectedGradient(Solver):
    r"""A step against the gradient (9), then back to the simplex: :math:`q \leftarrow P(q - \gamma \nabla E)`.

    With leak 0 and a step below 2 over the norm of K (see ``Energy.operator_norm``), every iteration
    lowers the energy.

    Args:
        iterations: T.
        step_size: gamma.
        learn_step_size: Make the step size a parameter.
        leak: Leak of the projection in training mode: keeps a gradient for labels at zero.
        eval_leak: The same in evaluation mode. 0 keeps q on the simplex.

    Example:
        >>> import torch
        >>> from crfgrad import Energy
        >>> energy = Energy(unary=torch.tensor([1.0, 0.0]).reshape(1, 2, 1, 1))
        >>> q = torch.full((1, 2, 1, 1), 0.5)
        >>> ProjectedGradient(iterations=1, step_size=0.4).eval()(energy, q).flatten()
        tensor([0.3000, 0.7000])
    """

    def __init__(
        self,
        iterations: int = 5,
        step_size: float = 0.5,
        learn_step_size: bool = False,
        leak: float = 0.01,
        eval_leak: float = 0.0,
    ) -> None:
        super().__init__(iterations, step_size, learn_step_size)
        self.leak = check_fraction("leak", leak)
        self.eval_leak = check_fraction("eval_leak", eval_leak)

    def extra_repr(self) -> str:
        """Shown by print(crf)."""
        return f"{super().extra_repr()}, leak={self.leak}, eval_leak={self.eval_leak}"

    def step(self, q: Tensor, gradient: Tensor, excluded: Tensor | None = None) -> Tensor:
        """See ``Solver.step``."""
        return project_step(q, gradient, self.step_size, excluded, self.leak if self.training else self.eval_leak)
