"""Segmentation networks: any of segmentation-models-pytorch, on images 0..255 of any size."""

from collections.abc import Sequence
from typing import Any

import segmentation_models_pytorch as smp
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class SMPNetwork(nn.Module):
    """``smp.create_model`` with the normalisation and the padding that it needs.

    Args:
        num_classes: Number of labels.
        arch: Architecture: unet, fpn, deeplabv3plus, ...
        encoder_name: Encoder, of smp or (tu-...) of timm.
        encoder_weights: Name of pretrained weights to download, or null for none.
        mean: Mean of the colours in 0..1 that the encoder expects.
        std: Their standard deviation.
        stride: Height and width are padded to a multiple of this, and the logits cropped.
        options: Other arguments of ``smp.create_model``.

    Shape:
        - image: (B, C, H, W), colours 0..255, uint8 or floating-point
        - logits: (B, L, H, W)
    """

    def __init__(
        self,
        num_classes: int,
        arch: str = "fpn",
        encoder_name: str = "resnet18",
        encoder_weights: str | None = None,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        stride: int = 32,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.model = smp.create_model(
            arch, encoder_name, encoder_weights, in_channels=len(mean), classes=num_classes, **(options or {})
        )
        self.stride = stride
        self.register_buffer("mean", 255 * torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("std", 255 * torch.tensor(std)[:, None, None], persistent=False)

    mean: Tensor
    std: Tensor

    def forward(self, image: Tensor) -> Tensor:
        """Image -> logits."""
        height, width = image.shape[2:]
        normalised = (image.to(self.mean.dtype) - self.mean) / self.std
        padded = pad(normalised, (0, -width % self.stride, 0, -height % self.stride))
        logits: Tensor = self.model(padded)
        return logits[:, :, :height, :width]
