"""Transforms in two stages: what makes the same picture each time, then what only moves its pixels."""

from collections.abc import Sequence
from typing import Any

import albumentations as A

from datamodules.frame import single_transforms

FIXED = (A.Resize, A.LongestMaxSize, A.SmallestMaxSize, A.CenterCrop, A.Crop, A.NoOp)
MOVING = (A.HorizontalFlip, A.VerticalFlip, A.Transpose, A.D4, A.RandomRotate90, A.RandomCrop, A.CenterCrop, A.Crop)


def two_stages(transforms: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Splits transforms; logits that were computed after the first stage may go through the second one.

    The first are those that make the same of an image each time. The others may be random, and may only put pixels
    elsewhere or leave them out: flips, quarter turns, crops. Other transforms are refused.
    """
    fixed, moving = [], list(transforms)
    while moving and _is_fixed(moving[0]):
        fixed.append(moving.pop(0))
    for transform in single_transforms(moving):
        if not isinstance(transform, MOVING) or getattr(transform, "pad_if_needed", False):
            raise ValueError(
                f"{type(transform).__name__} makes another picture of an image each time, or comes after a transform "
                "that does, so that logits cannot be kept: have what always happens first (Resize), then only flips, "
                "quarter turns and crops"
            )
    return fixed, moving


def _is_fixed(transform: Any) -> bool:
    """Whether a transform always happens, and always alike."""
    drawn = isinstance(getattr(transform, "max_size", None), list | tuple)
    return isinstance(transform, FIXED) and transform.p >= 1 and not drawn
