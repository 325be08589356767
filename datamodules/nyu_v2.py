"""The labelled frames of NYU Depth V2."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import albumentations as A
import h5py
import numpy as np
import scipy.io

from datamodules.base import SegmentationDataModule
from datamodules.colours import Colour, spread_hues
from datamodules.dataset import SegmentationDataset, read_image, read_mask
from datamodules.tables import read_table

SPLIT_FILE = Path(__file__).parent / "splits" / "nyu_v2.txt"
PAGE = "https://cs.nyu.edu/~fergus/datasets/nyu_depth_v2.html"
FORTY = read_table("nyu_v2_40")
CLASSES: dict[int, tuple[str, ...]] = {
    5: ("ground", "vertical", "ceiling", "furniture", "objects"),
    13: tuple(sorted({thirteen for _, _, thirteen, _ in FORTY})),
    40: tuple(name for _, name, _, _ in FORTY),
}
COLOURS: dict[int, list[Colour]] = {
    5: [(150, 100, 60), (120, 160, 200), (240, 230, 140), (200, 60, 70), (70, 160, 80)],
    13: spread_hues(13),
    40: spread_hues(40),
}
COLUMN = {40: 1, 13: 2, 5: 3}


def labels_of_forty(num_labels: int, ignore_index: int = 255) -> np.ndarray:
    """The label of each of the 40 classes in a smaller set; entry 0 is void."""
    classes = CLASSES[num_labels]
    labels = [ignore_index, *(classes.index(row[COLUMN[num_labels]]) for row in FORTY)]
    return np.array(labels, dtype=np.uint8)


class Frames(ABC):
    """A source of numbered frames."""

    @abstractmethod
    def numbers(self, part: str) -> list[int]:
        """Frames of the official split, "train" or "test", counted from 1."""

    @abstractmethod
    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Image (H, W, 3) uint8 and labels (H, W): 0 void, 1..40."""


class MatFrames(Frames):
    """The frames in nyu_depth_v2_labeled.mat, 480 x 640, split by the splits.mat beside it.

    A frame is read when it is asked for. The file is opened for each, so that loader processes share no
    handle.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as file:
            names = ["".join(map(chr, file[cell][()].ravel())) for cell in file["names"][()].ravel()]
        ids = read_table("nyu_v2_894")
        named = [(int(number), name) for number, name, label in ids if name == label]
        if len(names) != len(ids) or any(names[number - 1] != name for number, name in named):
            raise ValueError(
                f"{path} has other class names than the {len(ids)} of nyu_depth_v2_labeled.mat: download it from {PAGE}"
            )
        self.forty = np.array([0, *(CLASSES[40].index(label) + 1 for _, _, label in ids)], dtype=np.uint8)

    def numbers(self, part: str) -> list[int]:
        """See ``Frames``."""
        path = self.path.parent / "splits.mat"
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: download the official split from {PAGE} and put it there")
        return sorted(scipy.io.loadmat(path)[f"{part}Ndxs"].ravel().tolist())

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """See ``Frames``."""
        with self._open() as file:
            # MATLAB stores columns first, so that h5py sees all axes in reverse
            image = file["images"][number - 1].transpose(2, 1, 0)  # (3, W, H) -> (H, W, 3)
            ids = file["labels"][number - 1].transpose(1, 0)  # (W, H) -> (H, W)
        return np.ascontiguousarray(image), self.forty[ids]

    def _open(self) -> h5py.File:
        try:
            return h5py.File(self.path, "r", locking=False)  # not every file system can lock, and nobody writes
        except OSError as error:
            raise ValueError(f"cannot read {self.path} ({error}): download it again from {PAGE}") from error


class FolderFrames(Frames):
    """Frames exported to image files; see ``NYUv2``.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def numbers(self, part: str) -> list[int]:
        """See ``Frames``."""
        path = self.folder / f"{part}.txt"
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: write the numbers of the {part} frames into it, one on a line")
        return [int(line) for line in path.read_text().split()]

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """See ``Frames``."""
        return read_pair(self.folder / "images" / f"{number:04d}.jpg", self.folder / "labels40" / f"{number:04d}.png")


class NYUv2Dataset(SegmentationDataset):
    """Frames with masks; see ``NYUv2``.

    Args:
        frames: Where the frames come from.
        numbers: Which of them.
        labels: The label of each of the 40 classes; entry 0 is void.
        extra: Image and mask files after the frames.
        transforms: albumentations for image and mask.
        ignore_index: Label of void.
        align_masks: See ``SegmentationDataset``.
    """

    def __init__(
        self,
        frames: Frames,
        numbers: Sequence[int],
        labels: np.ndarray,
        extra: Sequence[tuple[Path, Path]] = (),
        transforms: Sequence[A.BasicTransform] = (),
        ignore_index: int = 255,
        align_masks: bool = True,
    ) -> None:
        super().__init__(transforms, ignore_index, align_masks)
        self.frames = frames
        self.numbers = numbers
        self.labels = labels
        self.extra = extra

    def __len__(self) -> int:
        return len(self.numbers) + len(self.extra)

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray | None, str]:
        """See ``SegmentationDataset``."""
        if index < len(self.numbers):
            name = f"{self.numbers[index]:04d}"
            image, forty = self.frames.read(self.numbers[index])
        else:
            image_path, mask_path = self.extra[index - len(self.numbers)]
            name = image_path.stem
            image, forty = read_pair(image_path, mask_path)
        return image, self.labels[forty], name


class NYUv2(SegmentationDataModule):
    """1449 frames of indoor scenes, taken by a Kinect (Silberman et al., ECCV 2012); colour only.

    Get the labelled data set (2.8 GB) and the split from https://cs.nyu.edu/~fergus/datasets/nyu_depth_v2.html
    and put both into the data root, or put the frames there as image files of any size::

        nyu_depth_v2_labeled.mat
        splits.mat

        nyu_v2/images/0001.jpg ... 1449.jpg
        nyu_v2/labels40/0001.png ... 1449.png      0 void, 1..40 the classes of tables/nyu_v2_40.txt
        nyu_v2/train.txt, nyu_v2/test.txt          frame numbers, one on a line

    The .mat file is taken where both are there. In exported files class 40 (otherprop) may be void in the training
    frames and not in the test frames: then otherprop is never learned, and of the 5 and 13 classes the objects lack
    these pixels.

    Classes: 40 (Gupta et al., CVPR 2013), 13 (Couprie et al., ICLR 2013) or 5 geometric ones (Wang et al., CVPR
    2014); ``tables/`` has them all. Void is ignored.

    Split: the official 795 frames for training and 654 for test. There is no official validation split: 100 of the
    training frames, in ``splits/nyu_v2.txt``, are held out. Neighbours in number show one scene from nearby places,
    so whole runs of consecutive training frames are held out; single frames would be validated on what was trained.

    Terms: the authors' page names no licence; cite their paper.

    Args:
        root: Folder with the data; the default is $DATA_ROOT, or ``data``.
        num_labels: Which classes: 5, 13 or 40.
        train_on_all: Train on all 795 frames, those for validation too, which then says nothing about new frames.
        extra_train: Text file with more training images, for instance of NYU V1: on each line the paths of an image
            and of its mask (0 void, 1..40), from the folder of the text file. The paper has 894 images with them.
        kwargs: Batch sizes, transforms and the rest of ``SegmentationDataModule``.
    """

    def __init__(
        self,
        root: str | None = None,
        num_labels: Literal[5, 13, 40] = 5,
        train_on_all: bool = False,
        extra_train: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if num_labels not in CLASSES:
            raise ValueError(f"num_labels is {num_labels}: NYU V2 has 5, 13 or 40 classes")
        self.root = Path(root or os.environ.get("DATA_ROOT", "data"))
        self.num_labels = num_labels
        self.classes = CLASSES[num_labels]
        self.colours = COLOURS[num_labels]
        self.train_on_all = train_on_all
        self.extra_train = extra_train

    def dataset(self, split: str, transforms: Sequence[A.BasicTransform]) -> NYUv2Dataset:
        """See ``SegmentationDataModule``."""
        frames = self.frames()
        numbers = frames.numbers("test" if split == "test" else "train")
        held_out = read_split()
        if split == "val":
            numbers = [number for number in numbers if number in held_out]
        elif split == "train" and not self.train_on_all:
            numbers = [number for number in numbers if number not in held_out]
        extra = read_list(Path(self.extra_train)) if split == "train" and self.extra_train else []
        labels = labels_of_forty(self.num_labels, self.ignore_index)
        return NYUv2Dataset(frames, numbers, labels, extra, transforms, self.ignore_index, self.align_masks)

    def frames(self) -> Frames:
        """The source that the data root has."""
        if (self.root / "nyu_depth_v2_labeled.mat").is_file():
            return MatFrames(self.root / "nyu_depth_v2_labeled.mat")
        if (self.root / "nyu_v2" / "images").is_dir():
            return FolderFrames(self.root / "nyu_v2")
        raise FileNotFoundError(
            f"{self.root} holds neither nyu_depth_v2_labeled.mat nor nyu_v2/images: download the labelled data set and "
            f"splits.mat from {PAGE} and put them there, or set DATA_ROOT to the folder that holds them"
        )


def read_pair(image_path: Path, mask_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Image and labels (0 void, 1..40) of two files."""
    image, mask = read_image(image_path), read_mask(mask_path)
    if image.shape[:2] != mask.shape:
        raise ValueError(
            f"{image_path} is {image.shape[0]} x {image.shape[1]} but its mask {mask_path} has shape {mask.shape}: "
            "give an index file of the same size"
        )
    if mask.max() > len(FORTY):
        raise ValueError(f"{mask_path} holds label {mask.max()}, but there are 0 (void) to 40: correct the mask")
    return image, mask


def read_list(path: Path) -> list[tuple[Path, Path]]:
    """Image and mask files from the lines of a text file."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}: check extra_train")
    pairs = []
    for line in path.read_text().splitlines():
        words = line.split()
        if len(words) not in (0, 2):
            raise ValueError(f"{path} has a line {line!r}: write the path of an image and that of its mask")
        if words:
            pairs.append((path.parent / words[0], path.parent / words[1]))
    return pairs


def read_split() -> set[int]:
    """The frames for validation in ``SPLIT_FILE``."""
    return {int(line) for line in SPLIT_FILE.read_text().splitlines() if not line.startswith("#")}


def make_split(train: Sequence[int], size: int = 100, longest: int = 15, seed: int = 0) -> list[int]:
    """The frames in ``SPLIT_FILE``: whole runs of consecutive training frames, drawn at random.

    Runs are no longer than ``longest``, or one kind of room would fill the split.
    """
    runs = np.split(np.sort(train), np.flatnonzero(np.diff(np.sort(train)) > 1) + 1)
    chosen: list[int] = []
    for which in np.random.default_rng(seed).permutation(len(runs)):
        if len(runs[which]) <= min(longest, size - len(chosen)):
            chosen += runs[which].tolist()
    return sorted(chosen)
