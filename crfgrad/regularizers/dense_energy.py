"""The energy of a dense CRF as a loss (Tang et al. 2018)."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from crfgrad.checks import check_finite, check_positive
from crfgrad.energy import labels_last
from crfgrad.features import Widths
from crfgrad.gaussian import Normalization, check_normalization, gaussian_kernel
from crfgrad.operators import Operator, Sum
from crfgrad.own_part_of_blur import WithoutSelf, own_part_of_blur
from crfgrad.regularizers.inputs import Inputs, prepared
from crfgrad.regularizers.kernels import Kernel, check_colour_widths, check_kernels, scaled_features

Reduction = Literal["batch", "pixel"]
Gate = Literal["established", "exact"]


class DenseEnergyLoss(nn.Module):
    r"""The energy of the probabilities of a network under a dense CRF, to be put beside a partial cross-entropy.

    .. math:: -\frac{w}{B} \sum_i \gamma_i \sum_j A_{ij} \langle S_i, S_j \rangle, \quad S = r\, p

    with the kernel A on position and colour, regions r, and a gate that lets pass what is not yet certain,
    :math:`\gamma_i = \max(r_i - \max_l p_{il}, 0)`, and everything where no label is known: there it is 1. Images,
    regions and labels are resized to the nearest pixel, probabilities bilinearly; ``sigma_xy`` is in pixels of what is
    given. The lattice serves all labels, and with the gate "established" it is gone through once, with no way back.

    The first four arguments and the call are those of the implementation that is widely copied, and so are value and
    gradient with the defaults: the raw kernel, a pixel's own part included, and a gradient that is
    :math:`-2 w\, r_i \gamma_i (A S)_i / B`, the derivative only where the gate is constant.

    Args:
        weight: Weight w. About 1e-7 with the defaults, 0.1 to 1 per pixel with a normalised kernel.
        sigma_rgb: Width in colour, 0..255, one number or one for each channel.
        sigma_xy: Width in position in pixels, one number or (x, y).
        scale_factor: Size at which the energy is computed, as a part of the images'.
        kernels: Kernels in place of these two widths: ``[{"weight": 1, "xy": 100, "rgb": 15}, {"weight": 0.1, "xy":
            3}]``.
        normalization: Of the kernels, see ``crfgrad.gaussian.gaussian_kernel``: "none" leaves them raw, "symmetric"
            makes the energy of a pixel at most 1, about.
        exclude_self: Leave out what a pixel brings to itself.
        reduction: "batch" divides by the number of images and gives (1,), "pixel" divides by the number of pixels in
            the regions and gives a scalar.
        gate: Gradient as above, or that of the value with the gate held.
        offset: Add what makes the loss 0 at the least: then it is
            :math:`\sum_{ij} \gamma_i A_{ij} (r_i r_j - \langle S_i, S_j \rangle)`. The gradient is the same.
        ignore_index: Label of pixels where none is known.
        check_colour: Refuse images that cannot be colours 0..255.

    Shape:
        - images: (B, C, H, W), colours 0..255
        - probs: (B, L, H, W), 0..1
        - rois: (B, H, W), 1 inside of the regions that count and 0 outside; all counts if it is None
        - seg_label: (B, 1, H, W); no label is known anywhere if it is None
        - result: (1,) or ()

    Example:
        >>> loss = DenseEnergyLoss(weight=1e-7, sigma_rgb=15, sigma_xy=100, scale_factor=0.5)
        >>> images, logits = torch.zeros(2, 3, 32, 48), torch.zeros(2, 4, 32, 48)
        >>> loss(images, logits.softmax(1), torch.ones(2, 32, 48), torch.full((2, 1, 32, 48), 255))
        tensor([-0.0026])
    """

    def __init__(
        self,
        weight: float = 1e-7,
        sigma_rgb: Widths = 15.0,
        sigma_xy: Widths = 100.0,
        scale_factor: float = 0.5,
        *,
        kernels: list[Kernel] | None = None,
        normalization: Normalization = "none",
        exclude_self: bool = False,
        reduction: Reduction = "batch",
        gate: Gate = "established",
        offset: bool = False,
        ignore_index: int = 255,
        check_colour: bool = True,
    ) -> None:
        super().__init__()
        _check_choice("reduction", reduction, get_args(Reduction))
        _check_choice("gate", gate, get_args(Gate))
        self.kernels = [{"weight": 1.0, "xy": sigma_xy, "rgb": sigma_rgb}] if kernels is None else list(kernels)
        check_kernels(self.kernels)
        if check_colour:
            check_colour_widths(self.kernels, 255)
        self.weight = weight
        self.scale_factor = check_positive("scale_factor", scale_factor)
        self.normalization = check_normalization(normalization)
        self.exclude_self = exclude_self
        self.reduction = reduction
        self.gate = gate
        self.offset = offset
        self.ignore_index = ignore_index
        self.check_colour = check_colour

    def forward(
        self, images: Tensor, probs: Tensor, rois: Tensor | None = None, seg_label: Tensor | None = None
    ) -> Tensor:
        """The loss."""
        inputs = prepared(images, probs, rois, seg_label, self.ignore_index, self.check_colour)
        with torch.autocast(probs.device.type, enabled=False):
            images, probs, rois, unknown = self._resized(inputs)
            fields = labels_last(torch.cat([probs * rois, rois], 1) if self.offset else probs * rois)  # (B, h, w, L)
            certainty = probs.detach().amax(1, keepdim=True)
            gate = torch.where(unknown > 0, 1, (rois - certainty).clamp_min(0)).movedim(1, -1)  # (B, h, w, 1)
            operator = self.operator(images)
            if self.gate == "exact":
                agreement = fields * gate * operator.matmul(fields)
            else:
                with torch.no_grad():
                    received = gate * operator.matmul(fields)
                agreement = fields * received
                agreement = 2 * agreement - agreement.detach()  # its gradient is twice what is received
            energy = -agreement.sum(-1) if not self.offset else agreement[..., -1] - agreement[..., :-1].sum(-1)
            if self.reduction == "batch":
                loss = self.weight * energy.sum()[None] / len(images)
            else:
                pixels = rois.sum()
                loss = self.weight * energy.sum() / torch.where(pixels > 0, pixels, 1)
        check_finite("the result of the loss: check its weight and widths", loss)
        return loss

    def operator(self, images: Tensor) -> Operator:
        """The kernel A of resized images (B, C, h, w)."""
        operators = []
        for kernel in self.kernels:
            features = scaled_features(kernel, images, self.scale_factor)
            blur = gaussian_kernel(features, self.normalization, float(kernel["weight"]))  # type: ignore[arg-type]
            own = own_part_of_blur(blur).view(*features.shape[:-1], 1) if self.exclude_self else None
            operators.append(blur if own is None else WithoutSelf(blur, own))
        return Sum(operators)

    def _resized(self, inputs: Inputs) -> Inputs:
        if self.scale_factor == 1:
            return inputs
        height, width = inputs.probs.shape[2:]
        if min(height, width) * self.scale_factor < 1:
            raise ValueError(f"scale_factor {self.scale_factor} leaves nothing of {height} x {width}: enlarge it")
        images, rois, unknown = (
            interpolate(each, scale_factor=self.scale_factor) for each in (inputs.images, inputs.rois, inputs.unknown)
        )
        probs = interpolate(inputs.probs, scale_factor=self.scale_factor, mode="bilinear", align_corners=False)
        return Inputs(images, probs, rois, unknown)

    def extra_repr(self) -> str:
        """Shown by print(loss)."""
        names = ("weight", "scale_factor", "kernels", "normalization", "exclude_self", "reduction", "gate", "offset")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f'there is no {name} "{value}": use {", ".join(choices)}')
