"""Unary energies and features by the names of pydensecrf: see docs/dense_crf.md for what differs."""

import warnings
from collections.abc import Sequence

import numpy as np

from crfgrad.features import Widths
from crfgrad.pydensecrf.arrays import array, real, widths


def unary_from_labels(labels: np.ndarray, n_labels: int, gt_prob: float, zero_unsure: bool = True) -> np.ndarray:
    """Energies of labels that are right with a probability: -log p, and -log((1 - p) / (L - 1)) of each other label.

    Args:
        labels: Integers of any shape: 0 for unsure and 1 to L, or 0 to L - 1.
        n_labels: L, without the label that stands for unsure.
        gt_prob: p, above 0 and below 1.
        zero_unsure: Whether label 0 means that any label may be right.

    Returns:
        (L, points) float32.
    """
    labels = real("labels", labels).ravel()
    if labels.dtype.kind == "f":
        raise TypeError(f"labels must be integers, got {labels.dtype}: give labels.astype(int)")
    if not 0 < gt_prob < 1:
        raise ValueError(f"gt_prob must be above 0 and below 1, got {gt_prob}")
    if n_labels < 2:
        raise ValueError(f"n_labels must be 2 or more, got {n_labels}")
    labels = labels.astype(np.int64) - int(zero_unsure)
    low, high = (int(bound) + int(zero_unsure) for bound in (labels.min(initial=0), labels.max(initial=0)))
    if low < 0 or high - int(zero_unsure) >= n_labels:
        last = n_labels - 1 + int(zero_unsure)
        raise ValueError(f"labels run from {low} to {high}, but must run from 0 to {last}: replace those to be ignored")
    energies = np.full((n_labels, len(labels)), -np.log((1 - gt_prob) / (n_labels - 1)), np.float32)
    energies[labels, np.arange(len(labels))] = -np.log(gt_prob)
    energies[:, labels < 0] = -np.log(1 / n_labels)
    return energies


def compute_unary(labels: np.ndarray, M: int, GT_PROB: float = 0.5) -> np.ndarray:
    """Old name of ``unary_from_labels``."""
    warnings.warn("compute_unary is an old name of unary_from_labels", DeprecationWarning, stacklevel=2)
    return unary_from_labels(labels, M, GT_PROB)


def unary_from_softmax(sm: np.ndarray, scale: float | None = None, clip: float | None = 1e-5) -> np.ndarray:
    """Energies of probabilities: -log p.

    Args:
        sm: Probabilities (L, ...).
        scale: Mixes them with as much of the uniform distribution as is missing to 1, above 0 and up to 1.
        clip: Probabilities below this count as this. Without it, 0 gives infinity, which excludes the label.

    Returns:
        (L, points) float32.
    """
    sm = real("sm", sm)
    if sm.ndim < 2:
        raise ValueError(f"sm must have shape (labels, ...), got {sm.shape}")
    if scale is not None:
        if not 0 < scale <= 1:
            raise ValueError(f"scale must be above 0 and up to 1, got {scale}")
        sm = scale * sm + (1 - scale) * np.full(sm.shape, 1 / len(sm))
    if clip is not None:
        sm = np.clip(sm, clip, 1.0)
    with np.errstate(divide="ignore"):
        return np.ascontiguousarray(-np.log(sm).reshape(len(sm), -1), np.float32)


def softmax_to_unary(sm: np.ndarray, GT_PROB: float = 1) -> np.ndarray:
    """Old name of ``unary_from_softmax``."""
    warnings.warn("softmax_to_unary is an old name of unary_from_softmax", DeprecationWarning, stacklevel=2)
    return unary_from_softmax(sm, None if GT_PROB == 1 else GT_PROB, clip=None)


def create_pairwise_gaussian(sdims: Widths, shape: Sequence[int]) -> np.ndarray:
    """Positions as features: coordinate i of each point of a grid, divided by width i.

    Args:
        sdims: Widths, one for each dimension or one for all.
        shape: Of the grid, of any number of dimensions.

    Returns:
        (dimensions, points) float32, for ``addPairwiseEnergy``.
    """
    shape = [int(size) for size in shape]
    positions = np.indices(shape, np.float32).reshape(len(shape), -1)
    return positions / widths("sdims", sdims, len(shape), "axes")[:, None]


def create_pairwise_bilateral(sdims: Widths, schan: Widths, img: np.ndarray, chdim: int = -1) -> np.ndarray:
    """Positions and colours as features, each divided by its width.

    Args:
        sdims: Widths in position, one for each dimension or one for all.
        schan: Widths in colour, one for each channel or one for all.
        img: The image, of any number of dimensions and channels.
        chdim: Which of its dimensions are the channels; -1 if there is one channel and no dimension for it.

    Returns:
        (dimensions + channels, points) float32, for ``addPairwiseEnergy``.
    """
    img = real("img", img)
    if not -img.ndim <= chdim < img.ndim:
        raise ValueError(f"chdim is {chdim}, but img has {img.ndim} dimensions: give -1 if it has no channels")
    channels = img[None] if chdim == -1 else np.moveaxis(img, chdim, 0)
    near = create_pairwise_gaussian(sdims, channels.shape[1:])
    colours = array("img", channels.reshape(len(channels), -1), ("channels", "points"))
    return np.concatenate([near, colours / widths("schan", schan, len(colours), "channels")[:, None]])
