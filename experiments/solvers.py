"""Which solver a trained CRF is compared with."""

from crfgrad import MeanField, ProjectedGradient, Solver


def switched(solver: Solver, step_size: float = 0.5) -> Solver:
    """Mean field in place of projected gradient descent, projected gradient descent in place of any other.

    Args:
        solver: The solver of a CRF, whose number of iterations the other takes over.
        step_size: Step of projected gradient descent, if it is the one to switch to.
    """
    if isinstance(solver, ProjectedGradient):
        return MeanField(solver.iterations).eval()
    return ProjectedGradient(solver.iterations, step_size).eval()
