"""How well labels fit the ground truth: counts of pixels for each image, kept on the disk, and their IoU."""

import hashlib
import json
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from crfgrad.cli import outputs
from crfgrad.cli.grid import Setting
from crfgrad.cli.inputs import Maps, Sample, check_labels, read_image, read_labels
from crfgrad.cli.trajectories import trajectories
from crfgrad.dense_crf import DenseCRF


class Counts(NamedTuple):
    """Pixels for each setting, number of iterations and label, unlabelled ones left out.

    Attributes:
        hit: That have the label and get it: (S, T + 1, L).
        given: That get it: (S, T + 1, L).
        true: That have it: (L,).
    """

    hit: np.ndarray
    given: np.ndarray
    true: np.ndarray

    def iou(self) -> np.ndarray:
        """Intersection over union, NaN for a label that is neither there nor given: (S, T + 1, L)."""
        union = self.true + self.given.astype(np.int64) - self.hit
        with np.errstate(invalid="ignore"):
            return np.where(union > 0, self.hit / np.maximum(union, 1), np.nan)

    def miou(self) -> np.ndarray:
        """Its mean over the labels that are there or given: (S, T + 1); NaN if there are none."""
        iou = self.iou()
        known = ~np.isnan(iou)
        return np.where(known, iou, 0).sum(-1) / np.where(known.any(-1), known.sum(-1), np.nan)


@dataclass(frozen=True)
class Trial:
    """Settings that are tried on each image."""

    maps: Maps
    ignore: int
    settings: tuple[Setting, ...]
    iterations: int
    kept: Path

    def score(self, sample: Sample) -> Counts:
        """The counts of an image, from the disk if they are there."""
        path = self._path(sample)
        try:
            with np.load(path) as saved:
                return Counts(saved["hit"], saved["given"], saved["true"])
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile):
            path.unlink()  # not of this program: counted again
        image, probabilities, truth = load(sample, self.maps, self.ignore)
        counts = count(probabilities, image, truth, self.ignore, self.settings, self.iterations)
        path.parent.mkdir(parents=True, exist_ok=True)
        outputs.write_npz(path, **counts._asdict())
        return counts

    def _path(self, sample: Sample) -> Path:
        """Named after all that the counts depend on, the state of the files too."""
        assert sample.truth is not None
        files = [(path.stat().st_size, path.stat().st_mtime_ns) for path in (sample.image, sample.map, sample.truth)]
        maps = {name: str(value) for name, value in asdict(self.maps).items()}
        given = [files, sample.name, maps, self.ignore, self.settings, self.iterations]
        digest = hashlib.sha256(json.dumps(given).encode()).hexdigest()[:16]
        return self.kept / f"{sample.name.replace('/', '_')[-80:]}.{digest}.npz"


def load(sample: Sample, maps: Maps, ignore: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Image, probabilities and truth, whatever is wrong with them in a sentence."""
    assert sample.truth is not None
    image = read_image(sample.image)
    probabilities = maps.read(sample.map, image.shape[:2])
    truth = read_labels(sample.truth)
    if truth.shape != image.shape[:2]:
        raise ValueError(
            f"{sample.truth} has {truth.shape[0]} x {truth.shape[1]} pixels and its image {image.shape[0]} x "
            f"{image.shape[1]}: make them equal"
        )
    known = truth != ignore
    check_labels(sample.truth, truth[known], len(probabilities), f"as in its map, and --ignore is {ignore}")
    return image, probabilities, truth


def check_sample(maps: Maps, ignore: int, sample: Sample) -> int:
    """The number of labels, after all checks that scoring an image makes."""
    image, probabilities, truth = load(sample, maps, ignore)
    if (truth == ignore).all():
        raise ValueError(f"{sample.truth} is {ignore} everywhere, which is --ignore")
    try:
        DenseCRF(gaussian_compat=0, bilateral_compat=0)(probabilities, image)
    except ValueError as error:
        raise ValueError(f"{sample.map}: {error}") from None
    return len(probabilities)


def count(
    probabilities: np.ndarray,
    image: np.ndarray,
    truth: np.ndarray,
    ignore: int,
    settings: Sequence[Setting],
    iterations: int,
) -> Counts:
    """Counts of one image, for all settings."""
    labels = len(probabilities)
    known = truth != ignore
    true = truth[known].astype(np.int64)
    hit = np.zeros((len(settings), iterations + 1, labels), dtype=np.uint32)
    given = np.zeros_like(hit)
    for place, states in trajectories(probabilities, image, settings, iterations):
        for t, state in enumerate(states[:, known]):
            given[place, t] = np.bincount(state, minlength=labels)
            hit[place, t] = np.bincount(true[state == true], minlength=labels)
    return Counts(hit, given, np.bincount(true, minlength=labels))


def folds_of(names: Sequence[str], folds: int, seed: int) -> np.ndarray:
    """The part of each image, as even as possible, by the digests of their names: the same on every machine."""
    order = sorted(names, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())
    parts = {name: place % folds for place, name in enumerate(order)}
    return np.array([parts[name] for name in names])
