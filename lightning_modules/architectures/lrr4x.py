"""LRR-4x: Laplacian pyramid reconstruction and refinement (Ghiasi and Fowlkes 2016)."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from lightning_modules.architectures.base import PyramidModel, small_
from lightning_modules.architectures.upsampling import LearnedUpsampling, bilinear_kernel

FACTOR = 4  # by which every level is reconstructed
BASES = 10  # for each class
NEIGHBOURHOOD = 5  # of features that the coefficients are computed from


class LRR4x(PyramidModel):
    """Scores reconstructed from the features at stride 32, refined near boundaries by those at 16, 8 and 4.

    Each level reconstructs scores at four times the resolution of its features, so that the last one (4x) is
    at the size of the image: s_32 = R_32, and s_k = up(s_2k) + mask(up(s_2k)) R_k for k = 16, 8, 4.

    The masks' gradients are followed. The paper also has losses on each level, which are not part of the
    network, and takes the basis functions from training masks; here they start as cosines, and are learned.
    Arguments: see ``PyramidModel``.

    Shape:
        - image: (B, C, H, W), H and W divisible by 32
        - scores: (B, L, H, W)
    """

    strides: ClassVar[tuple[int, ...]] = (32, 16, 8, 4)

    def build_decoder(self, channels: list[int], classes: int) -> tuple[nn.Module, nn.Module]:
        """Scores at the size of the image."""
        return LRR4xDecoder(channels, classes), nn.Identity()


class LRR4xDecoder(nn.Module):
    """Features of an encoder -> scores at the size of the image.

    Args:
        channels: Channels of the features at strides 32, 16, 8 and 4.
        classes: Number of labels.
    """

    def __init__(self, channels: list[int], classes: int) -> None:
        super().__init__()
        self.levels = nn.ModuleList(Reconstruction(number, classes) for number in channels)

    def forward(self, features: list[Tensor]) -> Tensor:
        """Features, finest first -> scores."""
        coarsest, *finer = features[:1:-1]
        first, *levels = self.levels
        scores: Tensor = first(coarsest)  # (B, L, H/8, W/8)
        for level, feature in zip(levels, finer, strict=True):
            scores = interpolate(scores, scale_factor=2, mode="bilinear")  # (B, L, H/4, W/4), ... (B, L, H, W)
            scores = scores + boundary_mask(scores) * level(feature)
        return scores


class Reconstruction(nn.Module):
    """Scores of each class as a sum of basis functions of that class, at ``FACTOR`` times the resolution.

    Args:
        channels: Channels of the features, from which the coefficients of the basis functions are computed.
        classes: Number of labels.

    Shape:
        - feature: (B, C, H, W)
        - scores: (B, L, 4 H, 4 W)
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.coefficients = small_(nn.Conv2d(channels, classes * BASES, NEIGHBOURHOOD, padding=NEIGHBOURHOOD // 2))
        self.basis = LearnedUpsampling(classes * BASES, classes, FACTOR, groups=classes)
        with torch.no_grad():
            self.basis.weight.copy_(cosine_basis(BASES, FACTOR)[:, None].repeat(classes, 1, 1, 1))

    def forward(self, feature: Tensor) -> Tensor:
        """Feature -> scores."""
        scores: Tensor = self.basis(self.coefficients(feature))
        return scores


def boundary_mask(scores: Tensor, width: int = 2 * FACTOR + 1) -> Tensor:
    """How much the probability of each class changes near a pixel: max p - min p in a window.

    Zero inside a region that is labelled with certainty, one at a sharp boundary.

    Args:
        scores: (B, L, H, W).
        width: Of the window.
    """
    p = scores.softmax(dim=1)
    highest, negative_lowest = (_dilate(part, width) for part in (p, -p))
    return highest + negative_lowest


def cosine_basis(number: int, factor: int) -> Tensor:
    """The smoothest products of cosines, faded out like a bilinear kernel, which is the first of them.

    Returns:
        (number, 2 factor, 2 factor).
    """
    size = 2 * factor
    position = (torch.arange(size) + 0.5) / size
    waves = torch.cos(torch.pi * torch.arange(size)[:, None] * position)  # (frequency, position)
    pairs = sorted(
        ((i, j) for i in range(size) for j in range(size)), key=lambda pair: (pair[0] ** 2 + pair[1] ** 2, pair)
    )
    products = torch.stack([waves[i][:, None] * waves[j] for i, j in pairs[:number]])
    return products * bilinear_kernel(factor)


def _dilate(x: Tensor, width: int) -> Tensor:
    """The maximum in a square window, one direction after the other, which is faster than both at once."""
    rows = max_pool2d(x, (width, 1), stride=1, padding=(width // 2, 0))
    return max_pool2d(rows, (1, width), stride=1, padding=(0, width // 2))
