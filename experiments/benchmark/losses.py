"""Losses without labels: beside a dense CRF on the same images, and beside windows that are unfolded."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import interpolate, unfold

from crfgrad import DenseCRF, DenseEnergyLoss, GatedCRFLoss
from crfgrad.features import positions_and_colours
from experiments.benchmark import work
from experiments.benchmark.cases import OURS, Case, Goal
from experiments.benchmark.measure import Task

SIZES = {"height": 512, "width": 512, "labels": 21, "batch": 8}
SIGMA_XY, SIGMA_RGB, SCALE = 100.0, 15.0, 0.5
ENERGY = "energy of a dense CRF as a loss"
WINDOW = "energy within windows as a loss, one image of half the size"


def loss_cases(height: int, width: int, labels: int, batch: int) -> Iterator[Case]:
    """Forward and backward, from logits to their gradient; the dense CRF forward alone."""
    image, logits = work.tensors(height, width, labels, batch)
    small, probs = interpolate(image, scale_factor=SCALE), interpolate(logits, scale_factor=SCALE).softmax(1)
    dense = DenseCRF(bilateral_sxy=SIGMA_XY * SCALE, bilateral_srgb=SIGMA_RGB, iterations=work.ITERATIONS)
    contestants = {OURS: energy_loss(image, logits)}
    contestants["the same, its exact gradient"] = energy_loss(image, logits, exact=True)
    contestants["dense mean field at that size, forward"] = work.without_gradients(dense, probs, small)
    yield Case(f"{ENERGY}, {batch} images of {height} x {width}, {labels} labels, at scale {SCALE:g}", contestants)
    one = small[:1], interpolate(logits, scale_factor=SCALE)[:1]
    yield Case(WINDOW, {OURS: window_loss(*one), "windows unfolded": unfolded_loss(*one)})


def loss_goals() -> list[Goal]:
    """What is to be reached."""
    return [Goal(f"{WINDOW}: unfolded / ours", (WINDOW, OURS), (WINDOW, "windows unfolded"), 3.0)]


def energy_loss(image: Tensor, logits: Tensor, exact: bool = False) -> Task:
    """The established loss, or the same with its exact gradient."""
    loss = DenseEnergyLoss(1e-7, SIGMA_RGB, SIGMA_XY, SCALE, gate="exact" if exact else "established")
    return _step(logits, lambda probs: loss(image, probs))


def window_loss(image: Tensor, logits: Tensor) -> Task:
    """The energy within windows of 11 x 11 pixels."""
    loss = GatedCRFLoss()
    return _step(logits, lambda probs: loss(image, probs))


def unfolded_loss(image: Tensor, logits: Tensor, radius: int = 5) -> Task:
    """The same with windows unfolded, as its authors compute it."""
    widths = torch.tensor([6.0, 6.0, 25.5, 25.5, 25.5], device=image.device)
    features = (positions_and_colours(image) / widths).movedim(-1, 1)
    diameter = 2 * radius + 1

    def windows(field: Tensor) -> Tensor:
        """(B, C, D * D, H, W)."""
        unfolded = unfold(field, diameter, padding=radius)
        return unfolded.view(*field.shape[:2], diameter**2, *field.shape[2:])

    def loss(probs: Tensor) -> Tensor:
        kernel = (-0.5 * (windows(features) - features[:, :, None]) ** 2).sum(1, keepdim=True).exp()
        kernel[:, :, diameter**2 // 2] = 0
        message = (kernel * windows(probs)).sum(2)
        return 0.1 * (kernel.sum() - (message * probs).sum()) / probs[:, 0].numel()

    return _step(logits, loss)


def _step(logits: Tensor, loss: Callable[[Tensor], Tensor]) -> Task:
    leaf = logits.clone().requires_grad_()

    def task() -> None:
        leaf.grad = None
        loss(leaf.softmax(1)).sum().backward()

    return task
