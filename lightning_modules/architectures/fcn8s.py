"""FCN-8s: scores at three strides, summed from coarse to fine (Long et al. 2015)."""

from typing import ClassVar

from torch import Tensor, nn

from lightning_modules.architectures.base import PyramidModel, small_
from lightning_modules.architectures.upsampling import bilinear_upsampling


class FCN8s(PyramidModel):
    """Scores of the features at stride 32, refined by those at strides 16 and 8.

    Every upsampling is a learned transposed convolution that starts as bilinear interpolation, and the scores
    at strides 16 and 8 start at zero: the network starts as the coarse one (FCN-32s).

    The features are those of the encoder at each stride. For VGG16 these are the last ones at strides 8 and 16,
    before the pooling (the paper takes those after it), and at stride 32 the pooled ones, without the two fully
    connected layers, which no encoder of smp has.
    Arguments: see ``PyramidModel``.

    Shape:
        - image: (B, C, H, W), H and W divisible by 32
        - scores: (B, L, H, W)
    """

    strides: ClassVar[tuple[int, ...]] = (32, 16, 8)

    def build_decoder(self, channels: list[int], classes: int) -> tuple[nn.Module, nn.Module]:
        """Scores at stride 8, and upsampling by 8."""
        return FCN8sDecoder(channels, classes), bilinear_upsampling(classes, 8)


class FCN8sDecoder(nn.Module):
    """Features of an encoder -> scores at stride 8.

    Args:
        channels: Channels of the features at strides 32, 16 and 8.
        classes: Number of labels.
    """

    def __init__(self, channels: list[int], classes: int) -> None:
        super().__init__()
        coarse, *skips = [nn.Conv2d(number, classes, kernel_size=1) for number in channels]
        for skip in skips:
            for parameter in skip.parameters():
                nn.init.zeros_(parameter)
        self.coarse = small_(coarse)
        self.skips = nn.ModuleList(skips)
        self.upsampling = nn.ModuleList(bilinear_upsampling(classes, 2) for _ in skips)

    def forward(self, features: list[Tensor]) -> Tensor:
        """Features, finest first -> scores."""
        coarsest, *finer = features[:2:-1]
        scores: Tensor = self.coarse(coarsest)  # (B, L, H/32, W/32)
        for skip, upsample, feature in zip(self.skips, self.upsampling, finer, strict=True):
            scores = upsample(scores) + skip(feature)  # (B, L, H/16, W/16), then (B, L, H/8, W/8)
        return scores
