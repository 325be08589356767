"""Checks of what a CRF is given: each failure is one sentence that says what to do."""

import torch
from torch import Tensor


def check_inputs(logits: Tensor, image: Tensor, num_classes: int, colour: bool) -> None:
    """Raises a ValueError or TypeError if logits (B, L, H, W) and image (B, C, H, W) do not fit."""
    for name, tensor in (("logits", logits), ("image", image)):
        if tensor.dim() != 4:
            raise ValueError(f"{name} must have 4 dimensions (batch, channels, height, width), got {_shape(tensor)}")
        if 0 in tensor.shape:
            raise ValueError(f"{name} is empty: its shape is {_shape(tensor)}")
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating-point scores, got {logits.dtype}")
    if logits.shape[1] != num_classes:
        raise ValueError(f"logits have {logits.shape[1]} channels, but the CRF was built for {num_classes} classes")
    if logits.shape[0] != image.shape[0]:
        raise ValueError(f"logits are a batch of {logits.shape[0]}, the image is a batch of {image.shape[0]}")
    if logits.shape[2:] != image.shape[2:]:
        raise ValueError(
            f"logits are {_size(logits)} but the image is {_size(image)} (height x width): resize one to the other"
        )
    if logits.device != image.device:
        raise ValueError(f"logits are on {logits.device} but the image is on {image.device}: move one to the other")
    check_finite("logits", logits)
    check_finite("image", image)
    if colour and image.dtype != torch.uint8:
        low, high = torch.aminmax(image)
        if low < 0 or 0 < high <= 1:
            raise ValueError(
                f"the image runs from {float(low):.3g} to {float(high):.3g}, which looks normalised: the CRF needs "
                "colours 0..255 (for other channels, build it with check_colour=False)"
            )


def check_finite(name: str, tensor: Tensor) -> None:
    """Raises a ValueError if the tensor holds NaN or infinity."""
    if not torch.isfinite(tensor).all():
        bad = int((~torch.isfinite(tensor)).sum())
        raise ValueError(f"{name} holds NaN or infinity ({bad} of {tensor.numel()} values)")


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


def _size(tensor: Tensor) -> str:
    return f"{tensor.shape[2]} x {tensor.shape[3]}"
