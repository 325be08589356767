"""Ways to minimise an energy."""

from crfgrad.solvers.base import Solver
from crfgrad.solvers.frank_wolfe import FrankWolfe, MeanField
from crfgrad.solvers.mirror_descent import MirrorDescent
from crfgrad.solvers.projected_gradient import ProjectedGradient

__all__ = ["FrankWolfe", "MeanField", "MirrorDescent", "ProjectedGradient", "Solver"]
