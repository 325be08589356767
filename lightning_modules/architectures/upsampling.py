"""Upsampling by a transposed convolution, whose kernels are learned."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad


class LearnedUpsampling(nn.ConvTranspose2d):
    """Upsamples by an even factor f with kernels of 2f x 2f, each overlapping half of its neighbours.

    The border is repeated, so that scores do not fade towards it.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        factor: f.
        groups: Groups of channels that do not mix.

    Shape:
        - x: (B, C, H, W)
        - output: (B, C', f * H, f * W)
    """

    def __init__(self, in_channels: int, out_channels: int, factor: int, groups: int = 1) -> None:
        crop = factor + factor // 2  # what the repeated border adds, and half of the overlap
        super().__init__(in_channels, out_channels, 2 * factor, stride=factor, padding=crop, groups=groups, bias=False)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Upsamples."""
        return super().forward(pad(x, (1, 1, 1, 1), mode="replicate"), output_size)


def bilinear_upsampling(channels: int, factor: int) -> LearnedUpsampling:
    """Upsampling that mixes all channels, and starts as bilinear interpolation of each."""
    upsampling = LearnedUpsampling(channels, channels, factor)
    kernel = bilinear_kernel(factor)
    with torch.no_grad():
        upsampling.weight.copy_(torch.eye(channels)[:, :, None, None] * kernel)  # (L, L, 2f, 2f)
    return upsampling


def bilinear_kernel(factor: int) -> Tensor:
    """The (2f, 2f) kernel of bilinear interpolation by an even factor f."""
    distance = (torch.arange(2 * factor) + 0.5 - factor).abs() / factor
    tent = 1 - distance
    return tent[:, None] * tent
