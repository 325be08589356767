"""The dense CRF's energy within a window as a loss (Obukhov et al. 2019)."""

from collections.abc import Mapping, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn

from crfgrad.checks import check_count, check_finite
from crfgrad.regularizers.established_gated_crf import Downsamplers, established_gated_crf
from crfgrad.regularizers.inputs import prepared
from crfgrad.regularizers.kernels import Kernel, check_colour_widths, check_kernels, scaled_features
from crfgrad.regularizers.window import WindowKernel, window_energy


class GatedCRFLoss(nn.Module):
    r"""The energy of the probabilities of a network within a window around each pixel.

    .. math:: \frac{w}{\sum_i t_i} \sum_i t_i \sum_{0 < |j - i|_\infty \le R} s_j\, g_{ij} (1 - \langle p_i, p_j
        \rangle), \quad g_{ij} = \sum_k w_k \exp(-|f^k_i - f^k_j|^2 / 2)

    with exact kernels on position, in pixels, and colour, in units of 0..1 whatever the images are: a width of 0.1
    is 25.5 grey levels. Regions are sources s and destinations t; where labels are given, only pixels without one are
    destinations, since a partial cross-entropy takes care of the others. Memory does not grow with the window.

    Called as the implementation of its authors, ``loss(y_hat_softmax, kernels_desc, kernels_radius, sample,
    height_input, width_input, mask_src=None, mask_dst=None, compatibility=None, custom_modality_downsamplers=None,
    out_kernels_vis=False)``, it returns their dictionary, with "loss" (without the weight) and, if asked for,
    "kernels_vis". Then colours in ``sample["rgb"]`` must be 0..1.

    Args:
        kernels: Weights and widths of the kernels, ``{"weight": 1, "xy": 6, "rgb": 0.1}``.
        radius: Reach R of the window in pixels.
        weight: Weight w.
        ignore_index: Label of pixels where none is known.
        check_colour: Refuse images that cannot be colours 0..255, and samples that cannot be 0..1.

    Shape:
        - images: (B, C, H, W), colours 0..255
        - probs: (B, L, H, W), 0..1
        - rois: (B, H, W), 1 inside of the regions that count and 0 outside; all counts if it is None
        - seg_label: (B, 1, H, W); no label is known anywhere if it is None
        - result: ()

    Example:
        >>> images, probs = torch.zeros(2, 3, 32, 48), torch.full((2, 4, 32, 48), 0.25)
        >>> GatedCRFLoss(weight=0.1)(images, probs)
        tensor(6.0062)
        >>> kernels = [{"weight": 1, "xy": 6, "rgb": 0.1}]
        >>> list(GatedCRFLoss()(probs, kernels, 5, {"rgb": images / 255}, 32, 48))
        ['loss']
    """

    def __init__(
        self,
        kernels: list[Kernel] | None = None,
        radius: int = 5,
        weight: float = 0.1,
        *,
        ignore_index: int = 255,
        check_colour: bool = True,
    ) -> None:
        super().__init__()
        self.kernels = [{"weight": 1.0, "xy": 6.0, "rgb": 0.1}] if kernels is None else list(kernels)
        check_kernels(self.kernels)
        if check_colour:
            check_colour_widths(self.kernels, 1)
        self.radius = check_count("radius", radius, least=1)
        self.weight = weight
        self.ignore_index = ignore_index
        self.check_colour = check_colour

    @overload
    def forward(
        self, images: Tensor, probs: Tensor, rois: Tensor | None = None, seg_label: Tensor | None = None
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        y_hat_softmax: Tensor,
        kernels_desc: Sequence[Kernel],
        kernels_radius: int,
        sample: Mapping[str, Tensor],
        height_input: int,
        width_input: int,
        mask_src: Tensor | None = None,
        mask_dst: Tensor | None = None,
        compatibility: Tensor | None = None,
        custom_modality_downsamplers: Downsamplers | None = None,
        out_kernels_vis: bool = False,
    ) -> dict[str, Tensor]: ...

    def forward(self, *arguments: Any, **named: Any) -> Tensor | dict[str, Tensor]:
        """The loss, or the dictionary of the established one if it is called in that way."""
        if "kernels_desc" in named or (len(arguments) > 1 and not isinstance(arguments[1], Tensor)):
            return established_gated_crf(*arguments, **named | {"check_colour": self.check_colour})
        return self._loss(*arguments, **named)

    def _loss(
        self, images: Tensor, probs: Tensor, rois: Tensor | None = None, seg_label: Tensor | None = None
    ) -> Tensor:
        inputs = prepared(images, probs, rois, seg_label, self.ignore_index, self.check_colour)
        with torch.autocast(probs.device.type, enabled=False):
            kernels = [
                WindowKernel(float(kernel["weight"]), scaled_features(kernel, inputs.images / 255, 1.0).movedim(-1, 1))  # type: ignore[arg-type]
                for kernel in self.kernels
            ]
            source = None if rois is None else inputs.rois
            destination = source if seg_label is None else inputs.rois * inputs.unknown
            energy = window_energy(inputs.probs, kernels, self.radius, source, destination)
            pixels = (inputs.rois * inputs.unknown).sum()
            loss = self.weight * energy / torch.where(pixels > 0, pixels, 1)
        check_finite("the result of the loss: check its weight and widths", loss)
        return loss

    def extra_repr(self) -> str:
        """Shown by print(loss)."""
        return f"kernels={self.kernels}, radius={self.radius}, weight={self.weight}"
