"""Pseudo labels from class activation maps: FOLDER OUTPUT. One image after the other, by joblib."""

import sys
from pathlib import Path

import joblib
import numpy as np
import pydensecrf.densecrf as dcrf
from pydensecrf.utils import unary_from_labels


def refine(image: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
    """Labels (H, W) that follow the image."""
    rows, columns = labels.shape
    crf = dcrf.DenseCRF2D(columns, rows, count)
    crf.setUnaryEnergy(unary_from_labels(labels, count, gt_prob=0.7, zero_unsure=False))
    crf.addPairwiseGaussian(sxy=3, compat=3)
    crf.addPairwiseBilateral(sxy=50, srgb=5, rgbim=np.copy(image), compat=10)
    return np.argmax(np.array(crf.inference(10)), axis=0).reshape(rows, columns)


def work(source: Path, target: Path) -> None:
    """From one file to another."""
    with np.load(source) as found:
        maps = np.stack([np.full(found["image"].shape[:2], 0.3), *found["maps"]])
        np.save(target, refine(found["image"], maps.argmax(axis=0), len(maps)))


if __name__ == "__main__":
    folder, output = map(Path, sys.argv[1:3])
    given = sorted(folder.glob("*.npz"))
    joblib.Parallel(n_jobs=2)(joblib.delayed(work)(source, output / f"{source.stem}.npy") for source in given)
