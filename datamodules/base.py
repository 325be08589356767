"""What all data modules share: classes, loaders, and images to predict."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from glob import glob
from pathlib import Path
from typing import Any

import albumentations as A
import numpy as np
import pytorch_lightning as pl
from pytorch_lightning.overrides.distributed import UnrepeatedDistributedSampler
from torch.utils.data import DataLoader, Dataset, Subset

from datamodules.colours import Colour
from datamodules.dataset import Logits, Sample, SegmentationDataset, collate, read_image
from datamodules.frame import check_whole_picture
from datamodules.stages import two_stages
from datamodules.weak_labels import WeakLabels

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".gif", ".jp2")


class SegmentationDataModule(pl.LightningDataModule, ABC):
    """Loaders for a data set with named, coloured classes.

    A subclass sets ``classes`` and ``colours`` and says what its splits are. Evaluation under DDP sees
    each sample once, so that a metric is the same on any number of devices.

    Args:
        batch_size: Images in a training batch, for each device.
        eval_batch_size: The same for validation, test and prediction; 1 allows images of any sizes.
        workers: Processes that load data.
        train_transforms: albumentations for training, for instance crops and flips.
        eval_transforms: albumentations for validation, test and prediction, for instance a resize.
        predict_images: Folder or glob of images for ``predict``, of any sizes.
        align_masks: Masks that are resampled stay on their images; false leaves them where albumentations puts them,
            up to half a pixel beside, unless a transform has a ``mask_interpolation`` of its own.
        measure_at_own_size: Validation and test compare with masks as they are in the data set, whatever size
            ``eval_transforms`` makes of the images; false transforms the masks, too, and compares at that size.
        fold: (k, n) leaves the k-th of n stretches of the training images out of training; k counts from 0.
        weak_labels: What is left of the masks for training: ``Scribbles``, ``Clicks`` or ``Boxes``. Where no label is
            known, masks have ``ignore_index``.
    """

    classes: Sequence[str]
    colours: Sequence[Colour]
    ignore_index: int = 255

    def __init__(
        self,
        batch_size: int = 8,
        eval_batch_size: int = 1,
        workers: int = 0,
        train_transforms: list[A.BasicTransform] | None = None,
        eval_transforms: list[A.BasicTransform] | None = None,
        predict_images: str | None = None,
        align_masks: bool = True,
        measure_at_own_size: bool = True,
        fold: tuple[int, int] | None = None,
        weak_labels: WeakLabels | None = None,
    ) -> None:
        super().__init__()
        if fold is not None and not 0 <= fold[0] < fold[1]:
            raise ValueError(f"fold {list(fold)} is none: give [k, n] with k from 0 to n - 1")
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.workers = workers
        self.train_transforms = train_transforms or []
        self.eval_transforms = eval_transforms or []
        self.predict_images = predict_images
        self.align_masks = align_masks
        self.measure_at_own_size = measure_at_own_size
        self.fold = fold
        self.logits: dict[str, Logits] = {}
        self.weak_labels = weak_labels

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @abstractmethod
    def dataset(self, split: str, transforms: Sequence[A.BasicTransform]) -> SegmentationDataset:
        """The data set of a split: "train", "val" or "test"."""

    def train_dataloader(self) -> DataLoader[Sample]:
        """Shuffled; the last batch is dropped if it is not full, for the sake of batch normalisation."""
        dataset: Any = self.dataset("train", self.train_transforms)
        if self.weak_labels is not None:
            if not isinstance(dataset, SegmentationDataset):
                raise ValueError(
                    "weak_labels are for a SegmentationDataset, but the training images are a "
                    f"{type(dataset).__name__}: make it one, or leave weak_labels out"
                )
            dataset.weaken = partial(self.weak_labels, ignore_index=self.ignore_index)
        if "train" in self.logits:
            dataset.use_logits(self.logits["train"])
        if self.fold is not None:
            left_out = fold_of(len(dataset), *self.fold)
            dataset = Subset(dataset, [index for index in range(len(dataset)) if index not in left_out])
        size = min(self.batch_size, len(dataset) // self._world_size)
        if size == 0:
            raise ValueError(
                f"there are {len(dataset)} training images for {self._world_size} devices: use fewer devices"
            )
        return self._loader(dataset, size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader[Sample]:
        """In order, each sample once."""
        return self._eval_loader(self._measured("val"))

    def test_dataloader(self) -> DataLoader[Sample]:
        """In order, each sample once."""
        return self._eval_loader(self._measured("test"))

    def predict_dataloader(self) -> DataLoader[Sample]:
        """The images of ``predict_images``, one by one."""
        if self.predict_images is None:
            raise ValueError("which images? give a folder or a glob: --data.init_args.predict_images=...")
        check_whole_picture(self.eval_transforms, "leave it out")
        images = ImageList(find_images(self.predict_images), self.eval_transforms)
        return self._eval_loader(images, batch_size=1)

    def _measured(self, split: str) -> SegmentationDataset:
        """The data set of a split to measure on."""
        dataset = self.dataset(split, self.eval_transforms)
        if self.measure_at_own_size:
            check_whole_picture(self.eval_transforms, "leave it out, or set measure_at_own_size to false")
            if isinstance(dataset, SegmentationDataset):  # another kind brings the masks that it wants
                dataset.masks_as_read = True
        if split in self.logits:
            dataset.use_logits(self.logits[split])
        return dataset

    def pictures(self, split: str) -> SegmentationDataset:
        """The pictures of a split whose logits can be kept: with the transforms that make the same of them each time.

        Set ``logits[split]`` before the loader is made, and its samples have logits. Refused where other transforms
        follow than those that only move pixels.
        """
        fixed, moving = two_stages(self.train_transforms if split == "train" else self.eval_transforms)
        if moving and split != "train":
            raise ValueError(f"{type(moving[0]).__name__} in eval_transforms may change: leave it out")
        dataset = self.dataset(split, fixed)
        if not isinstance(dataset, SegmentationDataset):
            raise ValueError("logits are kept for data sets that are a SegmentationDataset: make it one")
        return dataset

    @property
    def _world_size(self) -> int:
        return 1 if self.trainer is None else self.trainer.world_size

    def _eval_loader(self, dataset: SegmentationDataset, batch_size: int | None = None) -> DataLoader[Sample]:
        sampler = None
        if self.trainer is not None and self._world_size > 1:
            if len(dataset) < self._world_size:
                raise ValueError(f"there are {len(dataset)} images for {self._world_size} devices: use fewer devices")
            # Lightning's own sampler repeats samples to make the ranks even, which changes metrics
            sampler = UnrepeatedDistributedSampler(
                dataset, num_replicas=self._world_size, rank=self.trainer.global_rank, shuffle=False
            )
        return self._loader(dataset, batch_size or self.eval_batch_size, sampler=sampler)

    def _loader(self, dataset: Dataset[Sample], batch_size: int, **options: object) -> DataLoader[Sample]:
        return DataLoader(
            dataset,
            batch_size=batch_size,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            collate_fn=collate,
            **options,  # type: ignore[arg-type]
        )


def fold_of(count: int, fold: int, folds: int) -> range:
    """The images of a fold: one of ``folds`` stretches of ``count`` images, counted from 0."""
    return range(fold * count // folds, (fold + 1) * count // folds)


class ImageList(SegmentationDataset):
    """Images without masks, named by their paths below the folder that they share."""

    def __init__(self, paths: Sequence[Path], transforms: Sequence[A.BasicTransform] = ()) -> None:
        super().__init__(transforms)
        self.paths = paths
        root = os.path.commonpath([path.parent for path in paths])
        self.names = [str(path.relative_to(root).with_suffix("")) for path in paths]
        first: dict[str, Path] = {}
        for name, path in zip(self.names, paths, strict=True):
            if first.setdefault(name, path) != path:
                raise ValueError(f"{first[name]} and {path} would have one result, {name}: rename one of them")

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray | None, str]:
        """See ``SegmentationDataset``."""
        return read_image(self.paths[index]), None, self.names[index]


def find_images(where: str) -> list[Path]:
    """Image files of a folder or a glob, sorted; an error if there are none."""
    folder = Path(where)
    if folder.is_dir():
        paths = [path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES]
    else:
        paths = [Path(path) for path in glob(where, recursive=True)]
    if not paths:
        what = "holds no image files" if folder.is_dir() else "is neither a folder nor a glob that matches a file"
        raise FileNotFoundError(f"{where} {what} ({', '.join(IMAGE_SUFFIXES)}): check the path")
    return sorted(paths)
