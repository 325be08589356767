"""The Gaussian dense CRF of Krähenbühl and Koltun (2011), to refine probability maps."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from crfgrad.checks import (
    check_colours,
    check_finite,
    check_fraction,
    check_inputs,
    check_positive,
    check_transforms,
    values_are_checked,
)
from crfgrad.energy import Energy, labels_first
from crfgrad.features import Widths, positions, positions_and_colours, spread_widths
from crfgrad.gaussian import gaussian_kernel
from crfgrad.operators import Mixed, Operator
from crfgrad.ops.rows import softmax
from crfgrad.solvers import MeanField, Solver

Array = TypeVar("Array", np.ndarray, Tensor)
Compatibility = float | Sequence[float] | np.ndarray | Tensor


class DenseCRF(nn.Module):
    r"""Refines probabilities with two Gaussian kernels and fixed parameters; nothing is learned.

    .. math:: k(f_i, f_j) = \exp(-|f_i - f_j|^2 / 2) / \sqrt{D_i D_j}

    on positions, and on positions and colours. Parameters mean what they mean in the established
    implementations; like them it keeps what a pixel brings to itself.

    Args:
        gaussian_sxy: Width of the position kernel in pixels, one number or (x, y).
        gaussian_compat: Compatibility of the position kernel. A number w rewards equal labels by w
            (Potts); a vector is the cost of each label with itself, a matrix that of each pair.
            0 leaves the kernel out.
        bilateral_sxy: Width in position of the bilateral kernel, one number or (x, y).
        bilateral_srgb: Its width in colour, 0..255, one number or one for each channel.
        bilateral_compat: Its compatibility.
        iterations: Number of iterations.
        solver: Solver to build with that number: ``MeanField`` or ``ProjectedGradient``, say.
        eps: Probabilities below this count as this.
        check_colour: Refuse images that cannot be colours 0..255.

    Shape:
        - probabilities: (L, H, W) or (B, L, H, W), numpy or torch
        - image: numpy (H, W, C) or (B, H, W, C), torch (C, H, W) or (B, C, H, W); colours 0..255
        - result: as the probabilities, in float64 if they are, else in float32

    Example:
        >>> probabilities = np.full((2, 20, 30), 0.5, dtype=np.float32)
        >>> image = np.zeros((20, 30, 3), dtype=np.uint8)
        >>> q = DenseCRF()(probabilities, image)
        >>> q.shape, q.dtype
        ((2, 20, 30), dtype('float32'))
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
    ) -> None:
        super().__init__()
        if isinstance(solver, Solver):
            raise TypeError(
                f"solver must be a class, such as {type(solver).__name__}, which is built with the iterations"
            )
        spread_widths("gaussian_sxy", gaussian_sxy, 2)
        spread_widths("bilateral_sxy", bilateral_sxy, 2)
        self.gaussian_sxy = gaussian_sxy
        self.gaussian_compat = gaussian_compat
        self.bilateral_sxy = bilateral_sxy
        self.bilateral_srgb = bilateral_srgb
        self.bilateral_compat = bilateral_compat
        self.solver = solver(iterations)
        self.eps = check_fraction("eps", check_positive("eps", eps))
        self.check_colour = check_colour
        self.eval()

    def train(self, mode: bool = True) -> "DenseCRF":
        """Stays in evaluation mode, since nothing is learned."""
        return super().train(False)

    def forward(self, probabilities: Array, image: Array) -> Array:
        """Probabilities and image -> refined probabilities."""
        if isinstance(probabilities, np.ndarray) != isinstance(image, np.ndarray):
            raise TypeError("probabilities and image must both be numpy arrays or both be torch tensors")
        if probabilities.ndim not in (3, 4) or image.ndim != probabilities.ndim:
            raise ValueError(
                "probabilities must be (L, H, W) and the image (H, W, C) in numpy, (C, H, W) in torch, or both batches "
                f"of these; got {tuple(probabilities.shape)} and {tuple(image.shape)}"
            )
        if isinstance(probabilities, np.ndarray):
            if image.shape[-3:-1] != probabilities.shape[-2:]:
                raise ValueError(
                    f"probabilities are {tuple(probabilities.shape)} and the image is {tuple(image.shape)}: as numpy "
                    "arrays they must be (L, H, W) and (H, W, C), with the same H and W"
                )
            pixels = torch.from_numpy(np.ascontiguousarray(np.moveaxis(image, -1, -3)))
            with torch.no_grad():
                return self(torch.from_numpy(np.ascontiguousarray(probabilities)), pixels).numpy()
        if probabilities.dim() == 3:
            return self(probabilities[None], image[None])[0]
        energy = self.energy(probabilities, image)
        refined: Tensor = self.solver(energy, labels_first(softmax(energy.costs, factor=-1)))
        return refined

    def energy(self, probabilities: Tensor, image: Tensor) -> Energy:
        """The energy of a batch: (B, L, H, W) and (B, C, H, W)."""
        check_transforms()
        check_inputs(probabilities, image, name="probabilities")
        check_finite("probabilities", probabilities)
        check_finite("image", image)
        if self.check_colour:
            check_colours(image)
        if values_are_checked(probabilities):
            _check_distributions(probabilities)
        with torch.autocast(probabilities.device.type, enabled=False):
            probabilities = probabilities.to(torch.promote_types(probabilities.dtype, torch.float32))
            image = image.to(probabilities.dtype)
            unary = -probabilities.clamp_min(self.eps).log()
            bilateral_widths = spread_widths("bilateral_sxy", self.bilateral_sxy, 2)
            bilateral_widths += spread_widths("bilateral_srgb", self.bilateral_srgb, image.shape[1])
            operators = [
                _gaussian(features / unary.new_tensor(widths), compat, unary.shape[1])
                for compat, features, widths in (
                    (self.gaussian_compat, positions(image), spread_widths("gaussian_sxy", self.gaussian_sxy, 2)),
                    (self.bilateral_compat, positions_and_colours(image), bilateral_widths),
                )
                if not isinstance(compat, float | int) or compat != 0
            ]
            return Energy(unary, operators)


def _gaussian(features: Tensor, compat: Compatibility, labels: int) -> Operator:
    """A normalised Gaussian of features (B, *, d), and what labels cost each other."""
    if isinstance(compat, float | int):
        return gaussian_kernel(features, factor=-compat)
    cost = torch.as_tensor(compat, dtype=features.dtype, device=features.device)
    matrix = cost.diag() if cost.dim() == 1 else cost
    if matrix.shape != (labels, labels):
        raise ValueError(f"compat has shape {tuple(cost.shape)}, but the probabilities have {labels} labels")
    return Mixed(gaussian_kernel(features), matrix, symmetric=False)


def _check_distributions(probabilities: Tensor) -> None:
    if probabilities.min() < 0 or probabilities.max() > 1 + 1e-4:
        low, high = float(probabilities.min()), float(probabilities.max())
        raise ValueError(f"probabilities run from {low:.3g} to {high:.3g}, not 0 to 1: give softmax(logits)")
    total = probabilities.sum(dim=1)
    if (total - 1).abs().max() > 0.01:
        low, high = float(total.min()), float(total.max())
        raise ValueError(f"probabilities of a pixel sum to {low:.3g} up to {high:.3g}, not to 1: normalise them")
