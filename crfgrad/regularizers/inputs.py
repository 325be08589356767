"""What regularisers are called with, checked, and brought to one type."""

from typing import NamedTuple

import torch
from torch import Tensor

from crfgrad.checks import check_colours, check_finite, check_inputs, check_transforms, values_are_checked


class Inputs(NamedTuple):
    """Images (B, C, H, W), probabilities (B, L, H, W), regions (B, 1, H, W), and where no label is known.

    All in one floating-point type; ``unknown`` is (B, 1, H, W) with 1 where it is so.
    """

    images: Tensor
    probs: Tensor
    rois: Tensor
    unknown: Tensor


def prepared(
    images: Tensor,
    probs: Tensor,
    rois: Tensor | None,
    seg_label: Tensor | None,
    ignore_index: int,
    check_colour: bool,
) -> Inputs:
    """The inputs of a regulariser; nothing that was given is changed.

    Without regions they are everywhere, and without labels none is known. Only probabilities keep their gradient.
    """
    check_transforms()
    check_inputs(probs, images, name="probs")
    size = (len(probs), *probs.shape[2:])
    _check_like("rois", rois, size, probs)
    _check_like("seg_label", seg_label, (size[0], 1, *size[1:]), probs)
    check_finite("probs", probs)
    check_finite("images", images)
    _check_probabilities(probs)
    if check_colour:
        check_colours(images)
    probs = probs.to(torch.promote_types(probs.dtype, torch.float32))
    everywhere = torch.ones_like(probs[:, :1])
    return Inputs(
        images.detach().to(probs.dtype),
        probs,
        everywhere if rois is None else rois.detach().to(probs.dtype)[:, None],
        everywhere if seg_label is None else (seg_label == ignore_index).to(probs.dtype),
    )


def _check_like(name: str, given: Tensor | None, shape: tuple[int, ...], probs: Tensor) -> None:
    if given is None:
        return
    if not isinstance(given, Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(given).__name__}")
    if tuple(given.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(given.shape)}, but for these probs it must be {shape}")
    if given.device != probs.device:
        raise ValueError(f"{name} is on {given.device} but the probs are on {probs.device}: move one to the other")


def _check_probabilities(probs: Tensor) -> None:
    """Refuses logits; what a CRF in training leaks below 0 may pass."""
    if values_are_checked(probs):
        low, high = (float(bound) for bound in torch.aminmax(probs.detach()))
        if low < -0.5 or high > 1.5:
            raise ValueError(f"probs run from {low:.3g} to {high:.3g}, not 0 to 1: give softmax(logits, dim=1)")
