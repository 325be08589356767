"""What the architectures share: an encoder with features at certain strides, and heads as those of smp."""

from typing import Any, ClassVar

from segmentation_models_pytorch.base import ClassificationHead, SegmentationModel
from segmentation_models_pytorch.base.modules import Activation
from segmentation_models_pytorch.encoders import get_encoder
from torch import nn


class PyramidModel(SegmentationModel):
    """A segmentation model on encoder features at the strides ``strides``, the coarsest first.

    Args:
        encoder_name: Encoder, of smp or (tu-...) of timm.
        encoder_depth: Number of stages of the encoder.
        encoder_weights: Name of pretrained weights that smp can download.
        in_channels: Channels of the image.
        classes: Number of labels.
        activation: Name of an activation behind the scores, or None.
        aux_params: Arguments of a classification head, whose output is then returned as well, or None.
        encoder_options: Other arguments of the encoder.
    """

    strides: ClassVar[tuple[int, ...]]

    def __init__(
        self,
        encoder_name: str = "vgg16_bn",
        encoder_depth: int = 5,
        encoder_weights: str | bool | None = None,
        in_channels: int = 3,
        classes: int = 1,
        activation: Any = None,
        aux_params: dict[str, Any] | None = None,
        **encoder_options: Any,
    ) -> None:
        super().__init__()
        self.name = f"{type(self).__name__.lower()}-{encoder_name}"
        try:
            self.encoder = get_encoder(
                encoder_name, in_channels=in_channels, depth=encoder_depth, weights=encoder_weights, **encoder_options
            )
        except (AssertionError, IndexError, RuntimeError, ValueError) as error:  # of timm, where a stage is missing
            raise ValueError(self._refusal(f"cannot be built so ({' '.join(str(error).split())})")) from None
        channels = dict(zip([2**stage for stage in range(6)], self.encoder.out_channels, strict=False))
        missing = [stride for stride in self.strides if stride > self.encoder.output_stride or not channels.get(stride)]
        if missing:
            raise ValueError(self._refusal(f"has none at {', '.join(map(str, sorted(missing)))}"))
        scores, upsampling = self.build_decoder([channels[stride] for stride in self.strides], classes)
        self.decoder = scores
        self.segmentation_head = nn.Sequential(upsampling, Activation(activation))
        self.classification_head = (
            None if aux_params is None else ClassificationHead(self.encoder.out_channels[-1], **aux_params)
        )

    def build_decoder(self, channels: list[int], classes: int) -> tuple[nn.Module, nn.Module]:
        """The decoder, which maps the encoder's features to scores, and what brings these to the image's size."""
        raise NotImplementedError

    def _refusal(self, reason: str) -> str:
        architecture, encoder = self.name.split("-", 1)
        needed = ", ".join(map(str, sorted(self.strides)))
        return (
            f"{architecture} needs features at strides {needed}, and the encoder {encoder} {reason}: "
            "choose another encoder, or leave its depth at 5 and its output stride at 32"
        )


def small_(convolution: nn.Conv2d) -> nn.Conv2d:
    """Weights of which features of size 1 make values of size 0.1: all labels start about equally likely."""
    nn.init.normal_(convolution.weight, std=0.1 / convolution.weight[0].numel() ** 0.5)
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)
    return convolution
