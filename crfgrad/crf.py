"""The CRF as a layer behind a segmentation network."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from crfgrad.checks import (
    check_colours,
    check_count,
    check_finite,
    check_inputs,
    check_transforms,
    check_valid,
    excluded_labels,
    values_are_checked,
)
from crfgrad.energy import Energy, labels_first, labels_last
from crfgrad.features import Spacing, check_spacing, spread_widths
from crfgrad.operators import Masked, Sum
from crfgrad.ops.rows import softmax
from crfgrad.potentials import BilateralPotential, PairwisePotential, SpatialPotential, UnaryPotential
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
        check_colour: Refuse images that cannot be colours 0..255. False for other kinds of channels; the default is
            True for images of two dimensions.
        dimensions: 2 for images (B, C, H, W), 3 for volumes (B, C, D, H, W), 1 for sequences (B, C, T). Potentials
            that are built here are called with ``dimensions`` where it is not 2.
        spacing: Distance between neighbouring pixels along each axis of the image, in their order, in the unit of
            the widths of potentials (millimetres, say); a call may give another one.

    Shape:
        - logits: (B, L, *S), with S = (H, W) for images; minus infinity excludes a label at a pixel
        - image: (B, C, *S), of the size of the logits; colours 0..255, uint8 or floating-point; of volumes and
          sequences any finite values
        - valid: (B, *S) bool: pixels outside of it send and receive nothing, as if they were not there
        - spacing: one number, one for each axis, or a tensor (B, dimensions) with those of each image
        - result: (B, L, *S), q^T, in float64 if the logits are, else in float32

    Example:
        >>> crf = CRF(num_classes=3).eval()
        >>> q = crf(torch.randn(2, 3, 32, 48), torch.randint(256, (2, 3, 32, 48)))
        >>> q.shape, bool(torch.allclose(q.sum(1), torch.ones(2, 32, 48)))
        (torch.Size([2, 3, 32, 48]), True)

        A volume, whose slices are twice as far from each other as its pixels:

        >>> crf = CRF(num_classes=2, dimensions=3, spacing=(2.0, 1.0, 1.0)).eval()
        >>> crf(torch.randn(1, 2, 6, 16, 20), torch.randn(1, 1, 6, 16, 20)).shape
        torch.Size([1, 2, 6, 16, 20])
    """

    def __init__(
        self,
        num_classes: int,
        potentials: Sequence[Callable[..., PairwisePotential] | PairwisePotential] | None = None,
        solver: Solver | None = None,
        unary: UnaryPotential | None = None,
        save_memory: bool = False,
        check_colour: bool | None = None,
        dimensions: int = 2,
        spacing: Spacing | None = None,
    ) -> None:
        super().__init__()
        if potentials is None:
            potentials = [SpatialPotential, BilateralPotential]
        if not isinstance(potentials, Sequence) or isinstance(potentials, str):
            raise TypeError(f"potentials must be a list, got {potentials!r}")
        self.num_classes = check_count("num_classes", num_classes, least=2)
        self.unary = UnaryPotential() if unary is None else unary
        if dimensions not in (1, 2, 3):
            raise ValueError(f"dimensions must be 1, 2 or 3, got {dimensions}")
        self.dimensions = dimensions
        self.potentials = nn.ModuleList(_build(potential, num_classes, dimensions) for potential in potentials)
        self.solver = ProjectedGradient() if solver is None else solver
        self.save_memory = save_memory
        self.check_colour = dimensions == 2 if check_colour is None else check_colour
        if spacing is not None and not isinstance(spacing, Tensor):
            spread_widths("spacing", spacing, dimensions, "axes")
        self.spacing = spacing

    def forward(
        self, logits: Tensor, image: Tensor, valid: Tensor | None = None, spacing: Spacing | None = None
    ) -> Tensor:
        """Logits and image -> q^T."""
        logits = _prepared(logits)
        energy = self.energy(logits, image, valid, spacing)
        q: Tensor = self.solver(energy, self.initial(logits, valid), self.save_memory)
        check_finite("the result of the CRF: check its parameters", q if valid is None else q * valid[:, None])
        return q

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "solver":
            if not isinstance(value, Solver):
                raise TypeError(f"solver must be a Solver, such as MeanField(), got {value!r}")
            value.train(self.training)  # a new solver leaks or not as the CRF that it joins
        super().__setattr__(name, value)

    def energy(
        self, logits: Tensor, image: Tensor, valid: Tensor | None = None, spacing: Spacing | None = None
    ) -> Energy:
        """The energy of these images, for any q or labelling of them."""
        check_transforms()
        check_inputs(logits, image, dimensions=self.dimensions)
        check_valid(valid, logits)
        spacing = self.spacing if spacing is None else spacing
        check_spacing(spacing, image)
        if logits.shape[1] != self.num_classes:
            raise ValueError(
                f"logits have {logits.shape[1]} channels, the CRF was built for {self.num_classes} classes"
            )
        with torch.autocast(logits.device.type, enabled=False):
            logits = _only_valid(_prepared(logits), valid)
            image = _only_valid(image.to(logits.dtype), valid)
            check_finite("image", image)
            potentials = cast(list[PairwisePotential], self.potentials)
            if self.check_colour:
                check_colours(image)
            elif values_are_checked(image):
                for potential in potentials:
                    potential.check_values(image, valid)
            excluded = excluded_labels(logits, valid)
            operators = [potential.bind(image, valid, spacing) for potential in potentials]
            unary = self.unary(logits)
            if valid is None:
                return Energy(unary, operators, excluded)
            mask = valid[..., None].to(unary.dtype)  # (B, *S, 1)
            return Energy(torch.where(valid[:, None], unary, 0), [Masked(Sum(operators), mask)], excluded)

    def trajectory(
        self, logits: Tensor, image: Tensor, valid: Tensor | None = None, spacing: Spacing | None = None
    ) -> Iterator[Tensor]:
        """Yields q^0, ..., q^T."""
        return self.solver.trajectory(self.energy(logits, image, valid, spacing), self.initial(logits, valid))

    def initial(self, logits: Tensor, valid: Tensor | None = None) -> Tensor:
        """q^0 = softmax(logits)."""
        return labels_first(softmax(labels_last(_only_valid(_prepared(logits), valid))))


def _build(
    potential: Callable[..., PairwisePotential] | PairwisePotential, num_classes: int, dimensions: int
) -> PairwisePotential:
    if isinstance(potential, PairwisePotential):
        built = potential
    else:
        built = potential(num_classes) if dimensions == 2 else potential(num_classes, dimensions=dimensions)
    name = type(built).__name__
    if built.num_classes != num_classes:
        raise ValueError(f"{name} was built for {built.num_classes} classes, the CRF has {num_classes}")
    if built.dimensions != dimensions:
        raise ValueError(
            f"{name} was built for {built.dimensions} dimensions, the CRF has {dimensions}: give both the same"
        )
    return built


def _only_valid(channels: Tensor, valid: Tensor | None) -> Tensor:
    """Logits or an image with 0 outside of the mask, where there may be anything: NaN times 0 would be NaN."""
    return channels if valid is None else channels.masked_fill(~valid[:, None], 0)


def _prepared(logits: Tensor) -> Tensor:
    """Logits (B, L, *) in full precision and with the labels last in memory."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.dim() < 2:
        return logits  # to be refused
    return labels_first(labels_last(logits.to(torch.promote_types(logits.dtype, torch.float32))))
