"""The Weizmann Horse database."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import albumentations as A
import numpy as np
from PIL import Image

from datamodules.base import SegmentationDataModule
from datamodules.colours import Colour
from datamodules.dataset import SegmentationDataset, read_image, read_mask

SPLIT_FILE = Path(__file__).parent / "splits" / "weizmann_horse.txt"
SAME_PHOTOGRAPH = {18: 6, 274: 240}


class WeizmannHorseDataset(SegmentationDataset):
    """Images of horses with figure-ground masks; see ``WeizmannHorse``."""

    def __init__(
        self,
        root: Path,
        numbers: Sequence[int],
        transforms: Sequence[A.BasicTransform] = (),
        ignore_index: int = 255,
        align_masks: bool = True,
    ) -> None:
        super().__init__(transforms, ignore_index, align_masks)
        self.root = root
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray | None, str]:
        """See ``SegmentationDataset``."""
        name = f"horse{self.numbers[index]:03d}"
        image = read_image(self.root / "rgb" / f"{name}.jpg")
        mask = read_mask(self.root / "figure_ground" / f"{name}.jpg")
        mask = (mask if mask.ndim == 2 else mask[..., 0]) >= 128  # JPEG has blurred the two values
        if image.shape[:2] != mask.shape:
            size = (mask.shape[1], mask.shape[0])
            image = np.array(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR))
        return image, mask.astype(np.int64), name


class WeizmannHorse(SegmentationDataModule):
    """328 photographs of horses with figure-ground masks (Borenstein and Ullman, ECCV 2002).

    Get ``weizmann_horse_db`` from the authors' page and put it into the data root::

        weizmann_horse_db/rgb/horse001.jpg ... horse328.jpg
        weizmann_horse_db/figure_ground/horse001.jpg ... horse328.jpg

    Classes: background, horse. Split: 150 train, 50 val, 128 test, in ``splits/weizmann_horse.txt``;
    two photographs occur twice and stay on one side. An image is brought to the size of its mask.
    For research.

    Args:
        root: Folder that holds ``weizmann_horse_db``; the default is $DATA_ROOT, or ``data``.
        kwargs: Batch sizes, transforms and the rest of ``SegmentationDataModule``.
    """

    classes: Sequence[str] = ("background", "horse")
    colours: Sequence[Colour] = ((60, 60, 60), (230, 130, 30))

    def __init__(
        self,
        root: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.root = Path(root or os.environ.get("DATA_ROOT", "data")) / "weizmann_horse_db"

    def dataset(self, split: str, transforms: Sequence[A.BasicTransform]) -> WeizmannHorseDataset:
        """See ``SegmentationDataModule``."""
        for folder in ("rgb", "figure_ground"):
            if not (self.root / folder).is_dir():
                raise FileNotFoundError(
                    f"{self.root / folder} is missing: download the Weizmann Horse database and put it there, or set "
                    "DATA_ROOT to the folder that holds weizmann_horse_db"
                )
        lines = (line.split() for line in SPLIT_FILE.read_text().splitlines() if not line.startswith("#"))
        numbers = [int(number) for number, part in lines if part == split]
        return WeizmannHorseDataset(self.root, numbers, transforms, self.ignore_index, self.align_masks)


def make_split(seed: int = 0) -> dict[int, str]:
    """The split in ``SPLIT_FILE``: 150 / 50 / 128 numbers, copies of a photograph on one side."""
    order = np.random.default_rng(seed).permutation(np.arange(1, 329)).tolist()
    groups = [[number, *(copy for copy, first in SAME_PHOTOGRAPH.items() if first == number)] for number in order]
    split: dict[int, str] = {}
    room = {"train": 150, "val": 50, "test": 128}
    for group in groups:
        if group[0] in SAME_PHOTOGRAPH:
            continue  # placed with its first copy
        part = next(part for part, left in room.items() if left >= len(group))
        room[part] -= len(group)
        split |= dict.fromkeys(group, part)
    return dict(sorted(split.items()))
