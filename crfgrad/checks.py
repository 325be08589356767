"""Checks of what a CRF is given: each failure is one sentence that says what to do."""

import torch
from torch import Tensor


def check_inputs(scores: Tensor, image: Tensor, name: str = "logits", colour: bool = True) -> None:
    """Raises a ValueError or TypeError if scores (B, L, H, W) and image (B, C, H, W) do not fit.

    Args:
        scores: What there is for each label, called ``name`` in messages.
        image: The image.
        name: How to call the scores.
        colour: Whether the image must be colours 0..255.
    """
    for what, tensor in ((name, scores), ("image", image)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{what} must be a torch tensor, got {type(tensor).__name__}")
        if tensor.dim() != 4:
            raise ValueError(
                f"{what} must have 4 dimensions (batch, channels, height, width), got {tuple(tensor.shape)}"
            )
        if 0 in tensor.shape:
            raise ValueError(f"nothing in {what}: its shape is {tuple(tensor.shape)}")
    if not scores.is_floating_point():
        raise TypeError(f"{name} must be floating-point, got {scores.dtype}")
    if scores.shape[0] != image.shape[0]:
        raise ValueError(
            f"{name} are a batch of {scores.shape[0]}, the image is a batch of {image.shape[0]}: give an image for each"
        )
    if scores.shape[2:] != image.shape[2:]:
        raise ValueError(
            f"{name} are {_size(scores)} but the image is {_size(image)} (height x width): resize one to the other, "
            "and put channels first"
        )
    if scores.device != image.device:
        raise ValueError(f"{name} are on {scores.device} but the image is on {image.device}: move one to the other")
    check_finite(name, scores)
    check_finite("image", image)
    if colour and image.is_floating_point():
        for index, single in enumerate(image):
            _check_colour(index, single)


def check_finite(name: str, tensor: Tensor) -> None:
    """Raises a ValueError if the tensor holds NaN or infinity."""
    if not tensor.is_floating_point() or torch.isfinite(tensor.detach().sum()):
        return  # the quick check: a sum of finite values may overflow, but a NaN or infinity cannot hide in it
    finite = torch.isfinite(tensor)
    if not finite.all():
        raise ValueError(f"NaN or infinity in {name} ({int((~finite).sum())} of {tensor.numel()} values)")


def check_positive(name: str, value: float) -> float:
    """Returns the value, or raises a ValueError if it is not positive."""
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")
    return value


def check_fraction(name: str, value: float) -> float:
    """Returns the value, or raises a ValueError if it is not between 0 and 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be between 0 and 1, got {value}")
    return value


def check_count(name: str, value: int, least: int) -> int:
    """Returns the value, or raises a ValueError if it is no whole number or too small."""
    if not isinstance(value, int | float) or value != int(value) or value < least:
        raise ValueError(f"{name} must be a whole number, {least} or more, got {value}")
    return int(value)


def _check_colour(index: int, image: Tensor) -> None:
    low, high = (float(bound) for bound in torch.aminmax(image.detach()))
    below_one = 0 < high <= 1 and bool((image != image.round()).any())  # just 0 and 1 is a nearly black image
    # a tenth beyond the range is an overshoot of interpolation
    if below_one or low < -0.1 * max(high, 0) or high > 1.1 * 255:
        what = "is no 8-bit image" if high > 1.1 * 255 else "looks normalised"
        raise ValueError(
            f"image {index} of the batch runs from {low:.3g} to {high:.3g}, which {what}: the CRF needs colours 0..255 "
            "(for other kinds of channels, build it with check_colour=False)"
        )


def _size(tensor: Tensor) -> str:
    return f"{tensor.shape[2]} x {tensor.shape[3]}"
