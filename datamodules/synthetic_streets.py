"""Generated street scenes: a data set without files."""

from collections.abc import Sequence
from typing import Any

import albumentations as A
import numpy as np

from datamodules.base import SegmentationDataModule
from datamodules.colours import Colour
from datamodules.dataset import SegmentationDataset
from datamodules.street_scene import CLASSES, COLOURS, street_scene


class SyntheticStreetsDataset(SegmentationDataset):
    """Street scenes made as they are asked for; see ``SyntheticStreets``."""

    def __init__(
        self,
        seeds: range,
        height: int,
        width: int,
        transforms: Sequence[A.BasicTransform] = (),
        ignore_index: int = 255,
        align_masks: bool = True,
    ) -> None:
        super().__init__(transforms, ignore_index, align_masks)
        self.seeds = seeds
        self.height = height
        self.width = width

    def __len__(self) -> int:
        return len(self.seeds)

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray | None, str]:
        """See ``SegmentationDataset``."""
        image, mask = street_scene(self.seeds[index], self.height, self.width)
        return image, mask.astype(np.int64), f"street{self.seeds[index]:07d}"


class SyntheticStreets(SegmentationDataModule):
    """Street scenes generated from a seed: sky, buildings, road, sidewalks, trees, poles, lights, cars.

    Splits never share a scene. Scenes have exact labels and no pixel to ignore.

    Args:
        height: Height of a scene.
        width: Width of a scene.
        train_size: Number of training scenes.
        val_size: Number of validation scenes.
        test_size: Number of test scenes.
        seed: Another seed gives other scenes.
        eval_batch_size: Scenes in a batch of validation and test.
        kwargs: Batch sizes, transforms and the rest of ``SegmentationDataModule``.
    """

    classes: Sequence[str] = CLASSES
    colours: Sequence[Colour] = COLOURS

    def __init__(
        self,
        height: int = 128,
        width: int = 192,
        train_size: int = 512,
        val_size: int = 64,
        test_size: int = 128,
        seed: int = 0,
        eval_batch_size: int = 8,
        **kwargs: Any,
    ) -> None:
        super().__init__(eval_batch_size=eval_batch_size, **kwargs)
        self.height = height
        self.width = width
        self.sizes = {"train": train_size, "val": val_size, "test": test_size}
        self.seed = seed

    def dataset(self, split: str, transforms: Sequence[A.BasicTransform]) -> SyntheticStreetsDataset:
        """See ``SegmentationDataModule``."""
        first = 1_000_000 * (3 * self.seed + list(self.sizes).index(split))  # a range of its own for each split
        seeds = range(first, first + self.sizes[split])
        size = self.height, self.width
        return SyntheticStreetsDataset(seeds, *size, transforms, self.ignore_index, self.align_masks)
