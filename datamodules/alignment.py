"""Masks that stay on their images where transforms resample them."""

from collections.abc import Sequence
from copy import copy, deepcopy
from typing import Any

import albumentations as A
import cv2
import numpy as np

from datamodules.frame import single_transforms

TIE = 1e-4
"""Shares of a pixel that differ by less are equal; transforms round theirs to about 1e-3."""


def align_masks(transforms: Sequence[A.BasicTransform], ignore_index: int) -> list[A.BasicTransform]:
    """The transforms, resampling masks as they do images: see ``AlignedMask``.

    albumentations looks up the nearest pixel of a mask, mostly rounded down, but mixes those of its image, so that
    the mask comes to lie beside the image, by up to half a pixel for each transform. A transform that was given a
    ``mask_interpolation`` of its own keeps it, and those that do not resample stay as they are.

    Args:
        transforms: albumentations, also within ``Compose``, ``OneOf`` and their like. They are copied.
        ignore_index: Label of pixels that do not count.
    """
    aligned = deepcopy(list(transforms))
    for transform in single_transforms(aligned):
        if getattr(transform, "mask_interpolation", None) == cv2.INTER_NEAREST:
            transform.apply_to_mask = AlignedMask(transform, ignore_index)
            transform.add_targets({"mask": "mask"})  # or it would go on with the function that it had
    return aligned


class AlignedMask:
    """Applies a transform to a mask of labels: each label's indicator is resampled just as the image is.

    The label with the largest share of a pixel gets it. A pixel is ignored if what is to be ignored has more than
    half of it; the others are divided among the labels that count. Equal shares go to either label in turn, as on a
    chessboard, so that neither a direction nor a label is preferred. What comes from outside of the mask is the
    ``fill_mask`` of the transform.

    Args:
        transform: A transform with ``interpolation`` and ``mask_interpolation``.
        ignore_index: Label of pixels that do not count.

    Shape:
        - mask: (H, W) of integers; the result has the size that the transform makes of it
    """

    def __init__(self, transform: A.DualTransform, ignore_index: int) -> None:
        self.transform: Any = copy(transform)
        self.transform.mask_interpolation = self.transform.interpolation
        if getattr(transform, "area_for_downscale", None) == "image":
            self.transform.area_for_downscale = "image_mask"
        self.fill = getattr(transform, "fill_mask", 0)
        self.transform.fill_mask = 0
        self.ignore_index = ignore_index

    def __call__(self, mask: np.ndarray, **params: Any) -> np.ndarray:
        """The transformed mask."""
        given = params.get("fill_mask")  # some draw one anew each time
        fill = int(np.ravel(self.fill if given is None else given)[0])
        if given is not None:
            params["fill_mask"] = 0
        labels = [label for label in np.unique(mask).tolist() if label != fill] or [fill]
        outside = ignored = None
        election: Election | None = None
        for label in labels:
            share = self.transform.apply_to_mask((mask == label).astype(np.float32), **params)
            if outside is None or election is None:
                outside, election = np.ones_like(share), Election(share.shape)
            if label != fill:
                outside -= share  # at last, the part of the label that fills
            if label == self.ignore_index:
                ignored = share
            elif label != fill:
                election.add(label, share)
        assert outside is not None
        assert election is not None
        if fill == self.ignore_index:
            ignored = outside
        else:
            election.add(fill, outside)
        result = election.winner
        if ignored is not None:
            lost = np.where(np.abs(ignored - 0.5) <= TIE, election.turn % 2 == 1, ignored > 0.5)
            result = np.where(lost, self.ignore_index, result)
        return result.astype(mask.dtype)


class Election:
    """The label with the largest share of each pixel; of two equal ones, each wins on every other diagonal.

    Args:
        shape: (H, W).
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.turn = np.add.outer(np.arange(shape[0]), np.arange(shape[1]))
        self.winner = np.zeros(shape, dtype=np.int64)
        self.most = np.zeros(shape, dtype=np.float32)
        self.equals = np.ones(shape, dtype=np.int64)

    def add(self, label: int, share: np.ndarray) -> None:
        """One more label, with its share of each pixel (H, W)."""
        here = np.nonzero(share > TIE)  # mostly few pixels
        mine, most, equals = share[here], self.most[here], self.equals[here]
        equal = np.abs(mine - most) <= TIE
        equals = np.where(equal, equals + 1, np.where(mine > most, 1, equals))
        won = np.where(equal, self.turn[here] % equals == 0, mine > most)
        self.winner[here] = np.where(won, label, self.winner[here])
        self.most[here] = np.maximum(mine, most)
        self.equals[here] = equals
