"""Two labels and Potts costs, on a generated picture or behind a trained network."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from crfgrad import CRF, Energy, GaussianBilateralPotential, GaussianSpatialPotential
from datamodules import SegmentationDataModule
from experiments.scene import make_logits, make_scene
from lightning_modules import SegmentationModule


class Problem(NamedTuple):
    """Two labels on a picture."""

    image: Tensor
    """(3, H, W), colours 0..255."""
    logits: Tensor
    """(1, 2, H, W)."""
    crf: CRF
    energy: Energy


@torch.no_grad()
def potts(image: Tensor, logits: Tensor, strength: float) -> Problem:
    """Gaussian potentials that cost the same wherever labels differ, for an image (3, H, W) and logits (2, H, W)."""
    potentials = [
        GaussianSpatialPotential(2, radius=2, strength=strength),
        GaussianBilateralPotential(2, sigma_xy=8.0, sigma_value=20.0, strength=strength),
    ]
    crf = CRF(2, potentials).double().eval()
    logits = logits[None].double()
    return Problem(image, logits, crf, crf.energy(logits, image[None].double()))


def generated(height: int = 36, width: int = 48, strength: float = 1.0, seed: int = 0) -> Problem:
    """House and trees against the rest of a generated picture, with noisy scores."""
    image, labels = make_scene(height, width, seed)
    return potts(image, make_logits((labels > 1).long(), num_classes=2, stride=4, seed=seed), strength)


@torch.no_grad()
def of_network(
    module: SegmentationModule,
    data: SegmentationDataModule,
    index: int,
    label: str,
    height: int = 36,
    width: int = 48,
    strength: float = 1.0,
) -> Problem:
    """A label against the rest on a test image, with the scores of a trained network; both scaled down.

    Args:
        module: Its head, if it has one, is left out.
        data: Where the image is from.
        index: Number of the image in the test split.
        label: Name of the class that becomes label 1.
        height: Of the problem, in pixels.
        width: The same.
        strength: Cost of different labels against the unary term.
    """
    dataset = data.dataset("test", data.eval_transforms)
    if not 0 <= index < len(dataset):
        raise ValueError(f"there is no test image {index}: give one of 0 to {len(dataset) - 1}")
    image = dataset[index]["image"][None]  # (1, 3, H, W)
    logits = module.infer(image.to(module.device))[0].cpu()  # (1, L, H, W)
    others = torch.arange(logits.shape[1]) != module.class_names.index(label)
    two = torch.stack([logits[:, others].logsumexp(1), logits[:, ~others].squeeze(1)], dim=1)  # (1, 2, H, W)
    small, scores = (interpolate(each.float(), (height, width), mode="area")[0] for each in (image, two))
    return potts(small, scores, strength)
