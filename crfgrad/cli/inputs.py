"""Images, maps and ground truth of a folder: which belong together, and how they are read."""

import argparse
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from crfgrad.cli.errors import CommandError

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm")
PROBABILITIES = (".npy", ".npz", ".png")
LABELS = (".png",)
GREY = ("L", "I;16", "I;16B", "I;16L", "I")


@dataclass(frozen=True)
class Sample:
    """The files of one image, and its name: the path below the folder, without suffix."""

    name: str
    image: Path
    map: Path
    truth: Path | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Maps:
    """How maps are read."""

    folder: Path
    are_labels: bool
    num_labels: int
    confidence: float
    unsure: int
    binary: bool
    key: str | None
    resize: bool

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> "Maps":
        """From options, or a sentence on those that do not go together."""
        are_labels = arguments.labels is not None
        num_labels = arguments.num_labels or 2 * arguments.binary
        if are_labels and num_labels < 2:
            raise CommandError("--labels needs the number of labels, 2 or more: --num-labels 21, or --binary for masks")
        if are_labels and arguments.binary and num_labels != 2:
            raise CommandError(f"--binary is for two labels, --num-labels is {num_labels}: leave one of them out")
        if not are_labels and (arguments.num_labels or arguments.binary):
            raise CommandError("--num-labels and --binary are for label maps: give their folder by --labels")
        if are_labels and not 1 / num_labels < arguments.confidence < 1:
            raise CommandError(
                f"--confidence {arguments.confidence} must be above 1/{num_labels}, what chance gives, and below 1"
            )
        folder = arguments.labels if are_labels else arguments.probabilities
        given = arguments.confidence, arguments.unsure, arguments.binary, arguments.key, arguments.resize
        return cls(folder, are_labels, num_labels, *given)

    def read(self, path: Path, size: tuple[int, int]) -> np.ndarray:
        """Probabilities (L, H, W), float32 or float64, for an image of a size (H, W)."""
        probabilities = self._from_labels(path) if self.are_labels else self._probabilities(path)
        if probabilities.shape[1:] == size:
            return probabilities
        labels, height, width = probabilities.shape
        if (labels, height) == size:
            raise ValueError(
                f"{path} is {_times(probabilities.shape)}, which looks like (height, width, labels): save it as "
                "(labels, height, width)"
            )
        if not self.resize:
            raise ValueError(
                f"{path} has {height} x {width} pixels and its image {size[0]} x {size[1]}: make them equal, or let "
                "--resize bring the map to the size of the image"
            )
        # maps larger than their image are averaged, so that sums stay 1 and no pixel is skipped
        resized = torch.nn.functional.interpolate(
            torch.from_numpy(probabilities)[None], size, mode="bilinear", antialias=True
        )
        return resized[0].numpy()

    def _probabilities(self, path: Path) -> np.ndarray:
        if path.suffix.lower() == ".png":
            values = _open_png(path, GREY, "a probability map must be grey, of 8 or 16 bits")
            foreground = values.astype(np.float32) / (255 if values.dtype == np.uint8 else 65535)
            return np.stack([1 - foreground, foreground])
        probabilities = _load(path, self.key)
        if not np.issubdtype(probabilities.dtype, np.floating):
            raise ValueError(
                f"{path} holds {probabilities.dtype}: probabilities must be float16, float32 or float64, 0 to 1 "
                "(for maps of labels there is --labels)"
            )
        if probabilities.dtype != np.float64:
            probabilities = probabilities.astype(np.float32)
        if probabilities.ndim == 3 and len(probabilities) == 1:
            probabilities = probabilities[0]
        if probabilities.ndim == 2:
            probabilities = np.stack([1 - probabilities, probabilities])
        if probabilities.ndim != 3:
            raise ValueError(f"{path} is {_times(probabilities.shape)}: a map must be (labels, height, width)")
        return np.ascontiguousarray(probabilities)

    def _from_labels(self, path: Path) -> np.ndarray:
        labels = _read_mask(path) if self.binary else read_labels(path)
        unsure = labels == self.unsure
        check_labels(path, labels[~unsure], self.num_labels, f"and --unsure is {self.unsure}")
        other = (1 - self.confidence) / (self.num_labels - 1)
        probabilities = np.full((self.num_labels, *labels.shape), other, dtype=np.float32)
        np.put_along_axis(probabilities, np.where(unsure, 0, labels)[None].astype(np.int64), self.confidence, axis=0)
        probabilities[:, unsure] = 1 / self.num_labels
        return probabilities


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Names the file in whatever the libraries say about it."""
    try:
        yield
    except (OSError, EOFError, SyntaxError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read ({error}): write it again") from None


def read_image(path: Path) -> np.ndarray:
    """An image in colours, turned as its camera was held: (H, W, 3) uint8.

    Grey ones have three equal channels, transparency is dropped.
    """
    with _reading(path), Image.open(path) as image:
        mode, colours = image.mode, np.array(ImageOps.exif_transpose(image).convert("RGB"))
    if mode.startswith(("I", "F")):
        raise ValueError(f"{path} has more than 8 bits per channel: bring it to 8 bits first")
    return colours


def read_labels(path: Path) -> np.ndarray:
    """The values of a PNG of labels: (H, W) uint8 or uint16."""
    labels = _open_png(path, ("P", "1", *GREY), "a map of labels must be grey or have a palette")
    return labels.astype(np.uint8) if labels.dtype == bool else labels


def _read_mask(path: Path) -> np.ndarray:
    """A PNG of two labels, of 1 bit or with values from 128 on for label 1: (H, W) uint8."""
    values = _open_png(path, ("P", "1", *GREY), "a mask must be grey or have a palette")
    if values.dtype == bool:
        return values.astype(np.uint8)
    if 0 < values.max() < 128:
        raise ValueError(
            f"{path} holds values up to {values.max()}, but with --binary those from 128 on are label 1: give "
            "--num-labels 2 in place of --binary for masks of 0 and 1"
        )
    return (values >= 128).astype(np.uint8)


def check_labels(path: Path, labels: np.ndarray, num_labels: int, others: str) -> None:
    """Raises a ValueError if there are labels above the last."""
    if labels.size and labels.max() >= num_labels:
        hint = "; for masks of 0 and 255 there is --binary" if labels.max() == 255 and num_labels == 2 else ""
        raise ValueError(f"{path} holds {labels.max()}, but labels are 0 to {num_labels - 1} {others}{hint}")


def find_samples(
    images: Path, maps: Maps, truth: Path | None, listed: Path | None
) -> tuple[list[Sample], dict[str, str]]:
    """The images with all their files, by name, and a sentence for each that lacks one."""
    folders = {"image": _find("--images", images, IMAGES)}
    what = "label map" if maps.are_labels else "probability map"
    option = "--labels" if maps.are_labels else "--probabilities"
    folders[what] = _find(option, maps.folder, LABELS if maps.are_labels else PROBABILITIES)
    if truth is not None:
        folders["ground truth"] = _find("--truth", truth, LABELS)
    names = sorted(set().union(*folders.values()) if listed is None else set(_read_names(listed)))
    if not names:
        raise CommandError(f"{listed} names no images" if listed else f"{images} and {maps.folder} hold nothing")
    samples, failures = [], {}
    for name in names:
        found = [folders[kind].get(name, []) for kind in folders]
        for kind, paths in zip(folders, found, strict=True):
            if len(paths) != 1 and name not in failures:
                several = f"{len(paths)} files for its {kind}: " + ", ".join(path.name for path in paths)
                failures[name] = several if paths else f"there is no {kind} of this name"
        if name not in failures:
            samples.append(Sample(name, *(paths[0] for paths in found)))
    return samples, failures


def _find(option: str, folder: Path, suffixes: tuple[str, ...]) -> dict[str, list[Path]]:
    if not folder.is_dir():
        raise CommandError(f"{option} {folder} is not a folder")
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in suffixes and not path.name.startswith(".") and path.is_file():
            found.setdefault(path.relative_to(folder).with_suffix("").as_posix(), []).append(path)
    if not found:
        raise CommandError(f"{option} {folder} holds no files that end with {', '.join(suffixes)}")
    return found


def read_lines(option: str, path: Path) -> list[str]:
    """The lines of a text file that are not empty."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{option} {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CommandError(f"{option} {path} cannot be read, it is no text in UTF-8: save it as UTF-8") from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def _read_names(path: Path) -> Iterable[str]:
    """Names of a text file, with or without the suffixes of images."""
    for name in read_lines("--list", path):
        yield name[: -len(Path(name).suffix)] if Path(name).suffix.lower() in (*IMAGES, *PROBABILITIES) else name


def _load(path: Path, key: str | None) -> np.ndarray:
    with _reading(path):
        loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        names = ", ".join(loaded.files) or "nothing"
        if key is None and len(loaded.files) != 1:
            raise ValueError(f"{path} holds {names}: choose an array by --key NAME")
        if key is not None and key not in loaded.files:
            raise ValueError(f"{path} holds {names}, and no {key}: see --key")
        with _reading(path):
            return np.asarray(loaded[key or loaded.files[0]])


def _open_png(path: Path, modes: tuple[str, ...], wanted: str) -> np.ndarray:
    """The values of a PNG: (H, W) uint8, uint16, or bool if it has 1 bit."""
    with _reading(path), Image.open(path) as image:
        mode, values = image.mode, np.array(image)
    if mode not in modes:
        raise ValueError(f"{path} is a PNG of kind {mode}: {wanted}")
    return values if mode == "1" else values.astype(np.uint16 if mode.startswith("I") else np.uint8)


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
