"""The CRF as a layer behind a segmentation network."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from crfgrad.checks import check_count, check_finite, check_inputs
from crfgrad.energy import Energy
from crfgrad.layout import labels_last
from crfgrad.potentials import BilateralPotential, Potential, SpatialPotential, UnaryPotential
from crfgrad.simplex import softmax
from crfgrad.solvers import ProjectedGradient, Solver


class CRF(nn.Module):
    """Refines a network's class scores by minimising a learned energy (CRF-Grad, Larsson et al. 2017).

    ``CRF(num_classes)`` is the paper's full model: unary term, free 9 x 9 filters, free filters on
    the permutohedral lattice, and 5 steps of projected gradient descent. In training mode the leak of
    the projection makes entries of q negative: put the loss on ``log_distribution(q)``.

    Args:
        num_classes: Number of labels L, 2 or more.
        potentials: Pairwise potentials: classes or functions that are called with ``num_classes``
            (``functools.partial`` sets their other arguments), or finished potentials.
        solver: Minimises the energy. ``crf.solver`` may be replaced after training.
        unary: The unary potential.
        save_memory: Recompute iterations in the backward pass, see ``Solver.forward``; worth its time with 10 of
            them or more.
        check_colour: Refuse images that cannot be colours 0..255. False for other kinds of channels.

    Shape:
        - logits: (B, L, H, W), any floating-point type
        - image: (B, C, H, W), colours 0..255, uint8 or floating-point, of the size of the logits
        - result: (B, L, H, W), q^T, in float64 if the logits are, else in float32

    Example:
        >>> crf = CRF(num_classes=3).eval()
        >>> q = crf(torch.randn(2, 3, 32, 48), torch.randint(256, (2, 3, 32, 48)))
        >>> q.shape, bool(torch.allclose(q.sum(1), torch.ones(2, 32, 48)))
        (torch.Size([2, 3, 32, 48]), True)
    """

    def __init__(
        self,
        num_classes: int,
        potentials: Sequence[Callable[[int], Potential] | Potential] | None = None,
        solver: Solver | None = None,
        unary: UnaryPotential | None = None,
        save_memory: bool = False,
        check_colour: bool = True,
    ) -> None:
        super().__init__()
        if potentials is None:
            potentials = [SpatialPotential, BilateralPotential]
        if not isinstance(potentials, Sequence) or isinstance(potentials, str):
            raise TypeError(f"potentials must be a list, got {potentials!r}")
        self.num_classes = check_count("num_classes", num_classes, least=2)
        self.unary = UnaryPotential() if unary is None else unary
        self.potentials = nn.ModuleList(_build(potential, num_classes) for potential in potentials)
        self.solver = ProjectedGradient() if solver is None else solver
        self.save_memory = save_memory
        self.check_colour = check_colour

    def forward(self, logits: Tensor, image: Tensor) -> Tensor:
        """Logits and image -> q^T."""
        q: Tensor = self.solver(self.energy(logits, image), self.initial(logits), self.save_memory)
        check_finite("the result of the CRF: check its parameters", q)
        return q

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "solver":
            if not isinstance(value, Solver):
                raise TypeError(f"solver must be a Solver, such as MeanField(), got {value!r}")
            value.train(self.training)  # a new solver leaks or not as the CRF that it joins
        super().__setattr__(name, value)

    def energy(self, logits: Tensor, image: Tensor) -> Energy:
        """The energy of these images, for any q or labelling of them."""
        check_inputs(logits, image, colour=self.check_colour)
        if logits.shape[1] != self.num_classes:
            raise ValueError(
                f"logits have {logits.shape[1]} channels, the CRF was built for {self.num_classes} classes"
            )
        with torch.autocast(logits.device.type, enabled=False):
            logits = logits.to(_precision(logits))
            image = image.to(logits.dtype)
            potentials = cast(list[Potential], self.potentials)
            messages = [potential.bind(image) for potential in potentials]
            return Energy(
                self.unary(labels_last(logits)),
                messages,
                symmetric=all(potential.symmetric for potential in potentials),
                exclude_self=all(potential.exclude_self for potential in potentials),
            )

    def trajectory(self, logits: Tensor, image: Tensor) -> Iterator[Tensor]:
        """Yields q^0, ..., q^T."""
        return self.solver.trajectory(self.energy(logits, image), self.initial(logits))

    def initial(self, logits: Tensor) -> Tensor:
        """q^0 = softmax(logits)."""
        return softmax(labels_last(logits.to(_precision(logits))))


def _build(potential: Callable[[int], Potential] | Potential, num_classes: int) -> Potential:
    built = potential if isinstance(potential, Potential) else potential(num_classes)
    if built.num_classes != num_classes:
        raise ValueError(f"{type(built).__name__} was built for {built.num_classes} classes, the CRF has {num_classes}")
    return built


def _precision(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)
