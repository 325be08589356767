"""Checks of what a CRF is given: each failure is one sentence that says what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Real

import torch
from torch import Tensor

from crfgrad.ops.registry import refuse_onnx

_values: ContextVar[bool | None] = ContextVar("check_values", default=None)


@contextmanager
def check_values(on: bool) -> Iterator[None]:
    """Whether values are checked within this context, not only shapes and types: NaN, colours, distributions.

    By default they are on a CPU, and not elsewhere, where the program would wait for the device. Nothing that is
    compiled or exported checks values.

    Example:
        >>> from crfgrad import CRF
        >>> with check_values(False):
        ...     q = CRF(num_classes=2)(torch.full((1, 2, 4, 4), torch.nan), torch.zeros(1, 3, 4, 4))
        >>> bool(q.isnan().all())
        True
    """
    token = _values.set(on)
    try:
        yield
    finally:
        _values.reset(token)


def values_are_checked(tensor: Tensor) -> bool:
    """Whether to check the values of a tensor."""
    if torch.compiler.is_compiling():
        return False
    on = _values.get()
    return tensor.device.type == "cpu" if on is None else on


AXES = ("depth", "height", "width")
KINDS = {3: "sequences", 4: "images", 5: "volumes"}
"""By the dimensions of a batch with channels."""


def check_inputs(scores: Tensor, image: Tensor, name: str = "logits", dimensions: int | None = None) -> None:
    """Raises an error if shapes and types of scores (B, L, *S) and image (B, C, *S) do not fit.

    Args:
        scores: What there is for each label, called ``name`` in messages.
        image: The image.
        name: How to call the scores.
        dimensions: Of the images: 1 for sequences, 2, or 3 for volumes. None where they can only be 2.
    """
    axes = axes_of(dimensions or 2)
    listed = ", ".join(("batch", "channels", *axes))
    check_scores(name, scores, listed, others=dimensions is not None)
    check_tensor("image", image, listed, others=dimensions is not None)
    if scores.shape[0] != image.shape[0]:
        raise ValueError(
            f"{name} are a batch of {scores.shape[0]}, the image is a batch of {image.shape[0]}: give an image for each"
        )
    if scores.shape[2:] != image.shape[2:]:
        raise ValueError(
            f"{name} are {_size(scores)} but the image is {_size(image)} ({' x '.join(axes)}): resize one to the "
            "other, and put channels first"
        )
    if scores.device != image.device:
        raise ValueError(f"{name} are on {scores.device} but the image is on {image.device}: move one to the other")


def axes_of(dimensions: int) -> tuple[str, ...]:
    """Names of the axes of images of so many dimensions."""
    return AXES[-dimensions:] if dimensions > 1 else ("length",)


def check_scores(name: str, scores: Tensor, dimensions: str, others: bool = False) -> None:
    """Raises an error if scores are not floating-point or do not have the dimensions listed."""
    check_tensor(name, scores, dimensions, others)
    if not scores.is_floating_point():
        raise TypeError(f"{name} must be floating-point, got {scores.dtype}")


def check_tensor(name: str, tensor: Tensor, dimensions: str, others: bool = False) -> None:
    """Raises an error if a tensor is empty or does not have the dimensions listed; ``others`` may be asked for."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(tensor).__name__}")
    count = dimensions.count(",") + 1
    if tensor.dim() != count:
        kind = KINDS.get(tensor.dim()) if others else None
        remedy = f"; for {kind} give dimensions={tensor.dim() - 2}" if kind else ""
        raise ValueError(f"{name} must have {count} dimensions ({dimensions}), got {tuple(tensor.shape)}{remedy}")
    if 0 in tensor.shape:
        raise ValueError(f"nothing in {name}: its shape is {tuple(tensor.shape)}")


def check_valid(valid: Tensor | None, scores: Tensor) -> None:
    """Raises an error if a mask of pixels (B, H, W) does not fit scores (B, L, H, W)."""
    if valid is None:
        return
    if not isinstance(valid, Tensor) or valid.dtype != torch.bool:
        got = valid.dtype if isinstance(valid, Tensor) else type(valid).__name__
        raise TypeError(f"valid must be a torch tensor of type bool, got {got}")
    expected = (scores.shape[0], *scores.shape[2:])
    if tuple(valid.shape) != expected:
        raise ValueError(f"valid has shape {tuple(valid.shape)}, but for these logits it must be {expected}")
    if valid.device != scores.device:
        raise ValueError(f"valid is on {valid.device} but the logits are on {scores.device}: move one to the other")


def check_transforms() -> None:
    """Raises a NotImplementedError within a transform of torch.func that does not reach into a CRF."""
    if torch.compiler.is_compiling():
        return
    refuse_onnx()
    kinds = {interpreter.key() for interpreter in torch._C._functorch.get_interpreter_stack() or ()}
    if torch._C._functorch.TransformType.Vmap in kinds:
        raise NotImplementedError(
            "torch.func.vmap does not reach into a CRF: give all images in one call, along the batch dimension"
        )
    if torch._C._functorch.TransformType.Jvp in kinds:
        raise NotImplementedError("a CRF has no forward-mode derivatives: use torch.func.vjp or torch.func.grad")


def check_finite(name: str, tensor: Tensor) -> None:
    """Raises a ValueError if values are checked and the tensor holds NaN or infinity."""
    if not tensor.is_floating_point() or not values_are_checked(tensor) or _sums_up(tensor):
        return
    finite = torch.isfinite(tensor)
    if not finite.all():
        raise ValueError(f"NaN or infinity in {name} ({int((~finite).sum())} of {tensor.numel()} values)")


def excluded_labels(
    scores: Tensor, valid: Tensor | None = None, name: str = "logits", excluding: float = -torch.inf
) -> Tensor | None:
    """Where scores (B, L, *) are minus infinity, (B, L, *) bool, or None if it is known that they are nowhere.

    Raises a ValueError if values are checked and there is NaN, plus infinity or a pixel with no label left. Pixels
    that are not valid exclude nothing.

    Args:
        scores: What there is for each label, called ``name`` in messages.
        valid: The pixels that count, (B, *) bool.
        name: How to call the scores.
        excluding: The infinity that excludes a label: plus infinity for costs.
    """
    if not values_are_checked(scores):
        excluded = scores == excluding
        return excluded if valid is None else excluded & valid[:, None]
    if valid is not None:
        scores = scores.masked_fill(~valid[:, None], 0)
    if _sums_up(scores):
        return None
    excluded = scores == excluding
    check_finite(name, scores.masked_fill(excluded, 0))
    empty = excluded.all(dim=1)
    if empty.any():
        sign = "plus" if excluding > 0 else "minus"
        raise ValueError(f"all {name} of {int(empty.sum())} pixels are {sign} infinity, which leaves them no label")
    return excluded if excluded.any() else None


def _sums_up(tensor: Tensor) -> bool:
    """A quick check: a sum of finite values may overflow, but a NaN or infinity cannot hide in it."""
    return bool(torch.isfinite(tensor.detach().sum()))


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
    if not isinstance(value, Real) or value % 1 != 0 or value < least:
        raise ValueError(f"{name} must be a whole number, {least} or more, got {value}")
    return int(value)


def check_colours(images: Tensor) -> None:
    """Raises a ValueError if values are checked and a batch (B, C, *) cannot be colours 0..255."""
    if images.is_floating_point() and values_are_checked(images):
        for index, image in enumerate(images):
            _check_colour(index, image)


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
    return " x ".join(map(str, tensor.shape[2:]))
