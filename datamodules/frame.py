"""Which transforms keep the whole picture, so that a result can be brought back to the size of a file."""

from collections.abc import Iterator, Sequence
from typing import Any

import albumentations as A

KEEPING = (A.ImageOnlyTransform, A.Resize, A.LongestMaxSize, A.SmallestMaxSize, A.RandomScale, A.NoOp)


def single_transforms(transforms: Sequence[Any]) -> Iterator[Any]:
    """The transforms themselves, without those that hold others, such as ``OneOf``."""
    for transform in transforms:
        if isinstance(transform, A.BaseCompose):
            yield from single_transforms(transform.transforms)
        else:
            yield transform


def check_whole_picture(transforms: Sequence[A.BasicTransform], remedy: str) -> None:
    """Refuses transforms of albumentations that crop, pad, turn or distort; those of others are trusted.

    Args:
        transforms: The transforms of an evaluation.
        remedy: What to do about it.
    """
    for transform in single_transforms(transforms):
        if type(transform).__module__.startswith("albumentations.") and not isinstance(transform, KEEPING):
            raise ValueError(
                f"eval_transforms holds {type(transform).__name__}, after which a result no longer covers its picture "
                f"from edge to edge and cannot be brought back to its size: {remedy}"
            )
