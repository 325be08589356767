"""A generated picture with its labels, and the scores of a network that sees it badly."""

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate, one_hot

CLASSES = ("sky", "meadow", "house", "tree")
PALETTE = torch.tensor([[135, 190, 235], [110, 170, 60], [190, 90, 70], [30, 95, 45]], dtype=torch.uint8)


def make_scene(height: int = 180, width: int = 240, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A house and trees on a meadow under a sky, with light, shade, texture and noise.

    Returns:
        The image (3, H, W), float32 colours 0..255, and its labels (H, W).
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, width / height, width), indexing="ij")
    labels = torch.zeros(height, width, dtype=torch.int64)
    horizon = uniform(0.5, 0.6) + 0.03 * torch.sin(uniform(3, 6) * x + uniform(0, 6))
    labels[y > horizon] = 1
    left, top = uniform(0.15, 0.35), uniform(0.33, 0.42)
    wall = (x > left) & (x < left + 0.45) & (y > top) & (y < top + 0.38)
    roof = (y > top - 0.18) & (y <= top) & ((x - left - 0.225).abs() < 0.28 * (y - top + 0.18) / 0.18)
    labels[wall | roof] = 2
    for _ in range(3):
        centre_x, foot, size = uniform(0.0, width / height), uniform(0.6, 0.85), uniform(0.1, 0.17)
        trunk = ((x - centre_x).abs() < 0.015) & (y > foot - 2 * size) & (y < foot)
        ragged = 0.15 * torch.sin(9 * torch.atan2(y - foot + 2.4 * size, x - centre_x) + uniform(0, 6))
        crown = ((x - centre_x) ** 2 + (y - foot + 2.4 * size) ** 2).sqrt() < size * (1 + ragged)
        labels[trunk | crown] = 3

    colour = PALETTE.float()[labels].movedim(-1, 0)  # (3, H, W)
    colour[:, roof & (labels == 2)] *= 0.7
    colour += torch.where(labels == 0, 60 * y, 0.0)  # the sky is brighter at the horizon
    grain = torch.tensor([2.0, 14.0, 5.0, 18.0])[labels]
    texture = _smooth_noise((3, height, width), 2, generator)
    light = 1 + 0.15 * _smooth_noise((1, height, width), height // 4, generator)
    noise = torch.randn(3, height, width, generator=generator)
    return (light * (colour + grain * texture) + 4 * noise).clamp(0, 255), labels


def make_logits(labels: Tensor, num_classes: int = len(CLASSES), stride: int = 8, seed: int = 0) -> Tensor:
    """Scores (L, H, W) of a network of coarse stride: blurred across borders and wrong in patches."""
    generator = torch.Generator().manual_seed(seed)
    height, width = labels.shape
    truth = one_hot(labels, num_classes).movedim(-1, 0).float()[None]  # (1, L, H, W)
    coarse = avg_pool2d(truth, stride, ceil_mode=True)
    blurred = interpolate(coarse, size=(height, width), mode="bilinear")[0]
    patches = _smooth_noise((num_classes, height, width), stride, generator)
    speckle = torch.randn(num_classes, height, width, generator=generator)
    return 3 * blurred + 0.9 * patches + 0.5 * speckle


def _smooth_noise(shape: tuple[int, int, int], scale: int, generator: torch.Generator) -> Tensor:
    """Noise of unit variance whose blobs have about ``scale`` pixels."""
    channels, height, width = shape
    coarse = torch.randn(1, channels, height // scale + 2, width // scale + 2, generator=generator)
    noise = interpolate(coarse, size=(height, width), mode="bicubic")[0]
    return noise / noise.std()
