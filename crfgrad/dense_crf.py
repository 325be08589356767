"""The Gaussian dense CRF of Krähenbühl and Koltun (2011), to refine probability maps."""

from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from crfgrad.checks import (
    check_colours,
    check_finite,
    check_fraction,
    check_inputs,
    check_positive,
    check_scores,
    check_transforms,
    excluded_labels,
    values_are_checked,
)
from crfgrad.energy import Energy, labels_first
from crfgrad.features import Widths, positions, positions_and_colours, spread_widths
from crfgrad.gaussian import Compatibility, Normalization, check_normalization, gaussian_term
from crfgrad.lattice import build_lattice
from crfgrad.operators import Operator
from crfgrad.ops.rows import softmax
from crfgrad.solvers import MeanField, Solver

Array = TypeVar("Array", np.ndarray, Tensor)
Kernel = tuple[Tensor, Compatibility, Normalization]


class GaussianTerm(NamedTuple):
    """A further pairwise term of a ``DenseCRF``: a Gaussian kernel in the space of some features.

    Attributes:
        features: Divided by the widths of the kernel: (H, W, d) or (B, H, W, d) beside an image, else (N, d) or
            (B, N, d).
        compat: See ``DenseCRF``.
        normalization: See ``DenseCRF``.
    """

    features: np.ndarray | Tensor
    compat: Compatibility
    normalization: Normalization = "symmetric"


class DenseCRF(nn.Module):
    r"""Refines probabilities with Gaussian kernels and fixed parameters; nothing is learned.

    .. math:: k(f_i, f_j) = \exp(-|f_i - f_j|^2 / 2) / \sqrt{D_i D_j}

    on the positions of an image, on its positions and colours, and on the features of further terms. Parameters mean
    what they mean in the established implementations; like them it keeps what a pixel brings to itself.

    Args:
        gaussian_sxy: Width of the position kernel in pixels, one number or (x, y).
        gaussian_compat: Compatibility of the position kernel. A number w rewards equal labels by w
            (Potts); a vector is the cost of each label with itself, a matrix that of each pair: row l is what
            label l pays, and the matrix is taken as it is, symmetric or not. 0 leaves the kernel out.
        bilateral_sxy: Width in position of the bilateral kernel, one number or (x, y).
        bilateral_srgb: Its width in colour, 0..255, one number or one for each channel.
        bilateral_compat: Its compatibility.
        iterations: Number of iterations.
        solver: Solver to build with that number: ``MeanField`` or ``ProjectedGradient``, say.
        eps: Probabilities below this count as this.
        check_colour: Refuse images that cannot be colours 0..255.
        normalization: What divides the two kernels of the image by the sums D: "symmetric" as above, "before"
            1 / D_j, "after" 1 / D_i, "none" nothing.

    Shape:
        - probabilities, or unary energies in their place: (L, H, W) or (B, L, H, W); without an image (L, N) or
          (B, L, N); numpy or torch
        - image: numpy (H, W, C) or (B, H, W, C), torch (C, H, W) or (B, C, H, W); colours 0..255
        - result: as the probabilities, in float64 if they are, else in float32

    Example:
        >>> probabilities = np.full((2, 20, 30), 0.5, dtype=np.float32)
        >>> image = np.zeros((20, 30, 3), dtype=np.uint8)
        >>> q = DenseCRF()(probabilities, image)
        >>> q.shape, q.dtype
        ((2, 20, 30), dtype('float32'))

        Points in a space of two dimensions, given their unary energies:

        >>> features = np.random.default_rng(0).normal(size=(50, 2))
        >>> DenseCRF()(unary=np.ones((4, 50)), terms=[GaussianTerm(features, compat=3)]).shape
        (4, 50)
    """

    def __init__(
        self,
        gaussian_sxy: Widths = 3.0,
        gaussian_compat: Compatibility = 3.0,
        bilateral_sxy: Widths = 80.0,
        bilateral_srgb: Widths = 13.0,
        bilateral_compat: Compatibility = 10.0,
        iterations: int = 5,
        solver: Callable[[int], Solver] = MeanField,
        eps: float = 1e-5,
        check_colour: bool = True,
        normalization: Normalization = "symmetric",
    ) -> None:
        super().__init__()
        if isinstance(solver, Solver):
            raise TypeError(
                f"solver must be a class, such as {type(solver).__name__}, which is built with the iterations"
            )
        spread_widths("gaussian_sxy", gaussian_sxy, 2, "axes")
        spread_widths("bilateral_sxy", bilateral_sxy, 2, "axes")
        spread_widths("bilateral_srgb", bilateral_srgb, np.size(bilateral_srgb))
        self.gaussian_sxy = gaussian_sxy
        self.gaussian_compat = gaussian_compat
        self.bilateral_sxy = bilateral_sxy
        self.bilateral_srgb = bilateral_srgb
        self.bilateral_compat = bilateral_compat
        self.solver = solver(iterations)
        self.eps = check_fraction("eps", check_positive("eps", eps))
        self.check_colour = check_colour
        self.normalization = check_normalization(normalization)
        self.eval()

    def train(self, mode: bool = True) -> "DenseCRF":
        """Stays in evaluation mode, since nothing is learned."""
        return super().train(False)

    def forward(
        self,
        probabilities: Array | None = None,
        image: Array | None = None,
        *,
        unary: Array | None = None,
        terms: Sequence[GaussianTerm] = (),
    ) -> Array:
        """Probabilities and image -> refined probabilities.

        Args:
            probabilities: Of a network.
            image: The image; without one, only the further terms act.
            unary: Energies in place of probabilities, any numbers; plus infinity excludes a label.
            terms: Further pairwise terms.
        """
        name, scores = _scores(probabilities, unary)
        if image is None and not terms:
            raise TypeError("give an image, or terms: without them there is nothing to refine with")
        if isinstance(terms, GaussianTerm) or not all(isinstance(term, GaussianTerm) for term in terms):
            raise TypeError("terms must be a list of GaussianTerm")
        if isinstance(scores, np.ndarray):
            _check_kinds(np.ndarray, name, image, terms)
            return self._of_arrays(name, scores, image, terms)
        _check_kinds(Tensor, name, image, terms)
        _check_dimensions(name, scores, image)
        batched = scores.dim() == (3 if image is None else 4)
        if not batched:
            scores, image = scores[None], None if image is None else image[None]
            terms = [term._replace(features=term.features[None]) for term in terms]
        energy = self.energy(image=image, terms=terms, **{name: scores})
        refined: Tensor = self.solver(energy, initial(energy))
        return refined if batched else refined[0]

    def energy(
        self,
        probabilities: Tensor | None = None,
        image: Tensor | None = None,
        *,
        unary: Tensor | None = None,
        terms: Sequence[GaussianTerm] = (),
    ) -> Energy:
        """The energy of a batch of tensors, see ``forward``."""
        check_transforms()
        name, scores = _scores(probabilities, unary)
        if image is None:
            check_scores(name, scores, "batch, labels, points")
        else:
            check_inputs(scores, image, name=name)
            check_finite("image", image)
            if self.check_colour:
                check_colours(image)
        if unary is None:
            check_finite(name, scores)
            if values_are_checked(scores):
                _check_distributions(scores)
        with torch.autocast(scores.device.type, enabled=False):
            scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
            costs = -scores.clamp_min(self.eps).log() if unary is None else scores
            operators = [
                gaussian_term(build_lattice(features), compat, costs.shape[1], normalization)
                for features, compat, normalization in self._kernels(costs, image, terms)
                if not isinstance(compat, float | int | Real) or compat != 0
            ]
            return Energy(costs, operators) if unary is None else energy_of_costs(costs, operators)

    def _kernels(self, costs: Tensor, image: Tensor | None, terms: Sequence[GaussianTerm]) -> Iterator[Kernel]:
        """Features (B, *, d) in the type of the costs, for the kernels of the image and the further ones."""
        if image is not None:
            image = image.to(costs.dtype)
            near = costs.new_tensor(spread_widths("gaussian_sxy", self.gaussian_sxy, 2, "axes"))
            yield positions(image) / near, self.gaussian_compat, self.normalization
            widths = spread_widths("bilateral_sxy", self.bilateral_sxy, 2, "axes")
            widths += spread_widths("bilateral_srgb", self.bilateral_srgb, image.shape[1])
            alike = positions_and_colours(image) / costs.new_tensor(widths)
            yield alike, self.bilateral_compat, self.normalization
        expected = costs[:, 0].shape
        for number, (features, compat, normalization) in enumerate(terms):
            if features.shape[:-1] != expected or 0 in features.shape:
                wanted = ", ".join(map(str, expected))
                raise ValueError(
                    f"features of term {number} have shape {tuple(features.shape)}, but must be ({wanted}, d)"
                )
            yield torch.as_tensor(features).to(costs), compat, normalization

    def _of_arrays(
        self, name: str, scores: np.ndarray, image: np.ndarray | None, terms: Sequence[GaussianTerm]
    ) -> np.ndarray:
        """See ``forward``."""
        _check_dimensions(name, scores, image)
        pixels = None
        if image is not None:
            if image.shape[-3:-1] != scores.shape[-2:]:
                raise ValueError(
                    f"{name} are {tuple(scores.shape)} and the image is {tuple(image.shape)}: as numpy arrays they "
                    "must be (L, H, W) and (H, W, C), with the same H and W"
                )
            pixels = _tensor(np.moveaxis(image, -1, -3))
        terms = [term._replace(features=_tensor(term.features)) for term in terms]
        labels = -2 if image is None else -3
        rows = _tensor(np.moveaxis(scores, labels, -1))  # side by side in memory, as an energy has them
        with torch.no_grad():
            refined: Tensor = self(image=pixels, terms=terms, **{name: rows.movedim(-1, labels)})
        return refined.numpy()


def energy_of_costs(unary: Tensor, operators: Sequence[Operator]) -> Energy:
    """The energy of unary costs (B, L, *), of which plus infinity excludes a label."""
    excluded = excluded_labels(unary, name="unary energies", excluding=torch.inf)
    return Energy(unary if excluded is None else unary.masked_fill(excluded, 0), operators, excluded)


def initial(energy: Energy) -> Tensor:
    """q^0 = softmax(-psi): (B, L, *)."""
    return labels_first(softmax(energy.costs, energy.excluded, factor=-1))


def _scores(probabilities: Array | None, unary: Array | None) -> tuple[str, Array]:
    if probabilities is not None and unary is None:
        return "probabilities", probabilities
    if unary is not None and probabilities is None:
        return "unary", unary
    raise TypeError("give either probabilities or unary")


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))  # torch has no read-only tensors


def _check_kinds(kind: type, name: str, image: object, terms: Sequence[GaussianTerm]) -> None:
    if not all(one is None or isinstance(one, kind) for one in (image, *(term.features for term in terms))):
        raise TypeError(f"{name}, image and features must all be numpy arrays or all be torch tensors")


def _check_dimensions(name: str, scores: np.ndarray | Tensor, image: np.ndarray | Tensor | None) -> None:
    if image is None and scores.ndim not in (2, 3):
        raise ValueError(
            f"{name} must be (L, N) or (B, L, N) where there is no image, got {tuple(scores.shape)}: flatten the pixels"
        )
    if image is not None and (scores.ndim not in (3, 4) or image.ndim != scores.ndim):
        raise ValueError(
            f"{name} must be (L, H, W) and the image (H, W, C) in numpy, (C, H, W) in torch, or both batches of these; "
            f"got {tuple(scores.shape)} and {tuple(image.shape)}"
        )


def _check_distributions(probabilities: Tensor) -> None:
    if probabilities.min() < 0 or probabilities.max() > 1 + 1e-4:
        low, high = float(probabilities.min()), float(probabilities.max())
        raise ValueError(f"probabilities run from {low:.3g} to {high:.3g}, not 0 to 1: give softmax(logits)")
    total = probabilities.sum(dim=1)
    if (total - 1).abs().max() > 0.01:
        low, high = float(total.min()), float(total.max())
        raise ValueError(f"probabilities of a pixel sum to {low:.3g} up to {high:.3g}, not to 1: normalise them")
