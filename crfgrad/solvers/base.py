"""The loop that all solvers share."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from crfgrad.checks import check_count, check_positive
from crfgrad.energy import Energy, labels_first, labels_last


class Solver(nn.Module, ABC):
    """Minimises an energy over the simplex, starting at q^0, in T unrolled iterations.

    A subclass says what one step does; it knows nothing of images or potentials.

    Args:
        iterations: T. May be changed after training.
        step_size: gamma, or its initial value if learned.
        learn_step_size: Make the step size a parameter (by its logarithm, so it stays positive).

    Shape:
        - q: (B, L, H, W)
        - energies: (T + 1, B)
    """

    def __init__(self, iterations: int = 5, step_size: float = 0.5, learn_step_size: bool = False) -> None:
        super().__init__()
        self.iterations = check_count("iterations", iterations, least=0)
        check_positive("step_size", step_size)
        self.log_step_size = nn.Parameter(torch.tensor(math.log(step_size))) if learn_step_size else None
        self._step_size = step_size

    @property
    def step_size(self) -> float | Tensor:
        """The step size gamma."""
        return self._step_size if self.log_step_size is None else self.log_step_size.exp()

    @step_size.setter
    def step_size(self, value: float) -> None:
        self._step_size = check_positive("step_size", value)
        if self.log_step_size is not None:
            with torch.no_grad():
                self.log_step_size.fill_(math.log(value))

    @abstractmethod
    def step(self, q: Tensor, gradient: Tensor, excluded: Tensor | None = None) -> Tensor:
        """One iteration: q^t and psi + K q^t -> q^(t+1), all (B, *, L) with the labels last.

        Where the mask ``excluded`` is given, q^(t+1) is 0 there; ``crfgrad.ops.rows`` has what does that.
        """

    def trajectory(self, energy: Energy, q: Tensor) -> Iterator[Tensor]:
        """Yields q^0, ..., q^T."""
        yield q
        q = labels_last(energy.checked(q))
        for _ in range(self.iterations):
            q = self._advance(energy, q, 1)
            yield labels_first(q)

    def _advance(self, energy: Energy, q: Tensor, iterations: int) -> Tensor:
        for _ in range(iterations):
            q = self.step(q, energy.direction(q), energy.excluded)
        return q

    def energies(self, energy: Energy, q: Tensor) -> Tensor:
        """E(q^0), ..., E(q^T) of each image: (T + 1, B)."""
        return torch.stack([energy(state) for state in self.trajectory(energy, q)])

    def forward(self, energy: Energy, q: Tensor, save_memory: bool = False) -> Tensor:
        """Returns q^T.

        With ``save_memory``, the backward pass recomputes stretches of about sqrt(T) iterations: it then keeps
        about 2 sqrt(T) of them at a time, and takes the time of the forward pass once more. It pays from about
        10 iterations on.
        """
        q = labels_last(energy.checked(q))
        if not save_memory:
            return labels_first(self._advance(energy, q, self.iterations))
        stretch = math.ceil(math.sqrt(self.iterations))
        for done in range(0, self.iterations, max(stretch, 1)):
            q = checkpoint(self._advance, energy, q, min(stretch, self.iterations - done), use_reentrant=False)
        return labels_first(q)

    def extra_repr(self) -> str:
        """Shown by print(crf)."""
        with torch.no_grad():
            return f"iterations={self.iterations}, step_size={float(self.step_size):.3g}"
