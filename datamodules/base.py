"""What all data modules share: classes, loaders, and images to predict."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from glob import glob
from pathlib import Path

import albumentations as A
import numpy as np
import pytorch_lightning as pl
from pytorch_lightning.overrides.distributed import UnrepeatedDistributedSampler
from torch.utils.data import DataLoader

from datamodules.colours import Colour
from datamodules.dataset import Sample, SegmentationDataset, collate, read_image
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
        weak_labels: WeakLabels | None = None,
    ) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.workers = workers
        self.train_transforms = train_transforms or []
        self.eval_transforms = eval_transforms or []
        self.predict_images = predict_images
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
        dataset = self.dataset("train", self.train_transforms)
        if self.weak_labels is not None:
            dataset.weaken = partial(self.weak_labels, ignore_index=self.ignore_index)
        size = min(self.batch_size, len(dataset) // self._world_size)
        if size == 0:
            raise ValueError(
                f"there are {len(dataset)} training images for {self._world_size} devices: use fewer devices"
            )
        return self._loader(dataset, size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader[Sample]:
        """In order, each sample once."""
        return self._eval_loader(self.dataset("val", self.eval_transforms))

    def test_dataloader(self) -> DataLoader[Sample]:
        """In order, each sample once."""
        return self._eval_loader(self.dataset("test", self.eval_transforms))

    def predict_dataloader(self) -> DataLoader[Sample]:
        """The images of ``predict_images``, one by one."""
        if self.predict_images is None:
            raise ValueError("which images? give a folder or a glob: --data.init_args.predict_images=...")
        images = ImageList(find_images(self.predict_images), self.eval_transforms)
        return self._eval_loader(images, batch_size=1)

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

    def _loader(self, dataset: SegmentationDataset, batch_size: int, **options: object) -> DataLoader[Sample]:
        return DataLoader(
            dataset,
            batch_size=batch_size,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            collate_fn=collate,
            **options,  # type: ignore[arg-type]
        )


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
