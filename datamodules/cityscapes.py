"""Cityscapes."""

import os
from collections.abc import Sequence
from glob import escape
from pathlib import Path
from typing import Any

import albumentations as A
import numpy as np
from torch.utils.data import DataLoader

from datamodules.base import SegmentationDataModule
from datamodules.colours import Colour
from datamodules.dataset import Sample, SegmentationDataset, read_image, read_mask
from datamodules.tables import read_table

LABELS = read_table("cityscapes")
CLASSES = sorted((row for row in LABELS if row[2] != "255"), key=lambda row: int(row[2]))
IMAGE_END = "_leftImg8bit.png"


class CityscapesDataset(SegmentationDataset):
    """Pairs of image and label files; see ``Cityscapes``."""

    def __init__(
        self,
        pairs: Sequence[tuple[Path, Path]],
        ignore_index: int = 255,
        transforms: Sequence[A.BasicTransform] = (),
        align_masks: bool = True,
    ) -> None:
        super().__init__(transforms, ignore_index, align_masks)
        self.pairs = pairs
        self.train_ids = np.full(256, ignore_index, dtype=np.uint8)
        self.known = np.zeros(256, dtype=bool)
        for label, _, train_id, _ in LABELS:
            self.known[int(label) % 256] = True  # -1 is 255 in 8 bits
            if train_id != "255":
                self.train_ids[int(label)] = int(train_id)

    def __len__(self) -> int:
        return len(self.pairs)

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray | None, str]:
        """See ``SegmentationDataset``."""
        image_path, mask_path = self.pairs[index]
        image, ids = read_image(image_path), read_mask(mask_path)
        if ids.shape != image.shape[:2] or ids.dtype != np.uint8:
            raise ValueError(
                f"{mask_path} has shape {ids.shape} but its image {image_path} has {image.shape[:2]}: replace it by "
                "the 8-bit file of the data set"
            )
        if not self.known[ids].all():
            wrong = ids[~self.known[ids]][0]
            raise ValueError(f"{mask_path} holds label id {wrong}, but there are 0 to 33: replace the file")
        return image, self.train_ids[ids], image_path.name.removesuffix(IMAGE_END)


class Cityscapes(SegmentationDataModule):
    """5000 street scenes of 50 cities, 1024 x 2048, finely labelled (Cordts et al., CVPR 2016).

    Register at https://www.cityscapes-dataset.com, get leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip (for
    the 19998 coarsely labelled images also leftImg8bit_trainextra.zip and gtCoarse.zip) and unpack them into
    ``cityscapes`` in the data root::

        cityscapes/leftImg8bit/{train,val,test}/CITY/CITY_000000_000019_leftImg8bit.png
        cityscapes/gtFine/{train,val}/CITY/CITY_000000_000019_gtFine_labelIds.png
        cityscapes/leftImg8bit/train_extra/CITY/...
        cityscapes/gtCoarse/{train,train_extra}/CITY/CITY_000000_000019_gtCoarse_labelIds.png

    Classes: the 19 of the benchmark; the other labels are ignored (``tables/cityscapes.txt``).

    Split: 2975 train, 500 val. The labels of the 1525 test images are not public, so ``test`` measures on the val
    images. ``predict`` takes the test images unless it is given others, and writes ``results/`` in the ids that
    the evaluation server wants. Images are evaluated whole; training crops belong in ``train_transforms``.

    Terms: not for commercial use, no redistribution; the full terms are on the page of the data set.

    Args:
        root: Folder that holds ``cityscapes``; the default is $DATA_ROOT, or ``data``.
        fine: Train on the finely labelled images.
        coarse: Train also on the coarsely labelled train_extra; without ``fine``, on the coarse labels of train and
            train_extra alone.
        kwargs: Batch sizes, transforms and the rest of ``SegmentationDataModule``.
    """

    classes: Sequence[str] = tuple(name for _, name, _, _ in CLASSES)
    colours: Sequence[Colour] = tuple((int(r), int(g), int(b)) for r, g, b in (row[3].split() for row in CLASSES))
    result_ids: Sequence[int] = tuple(int(row[0]) for row in CLASSES)
    """What each label is called in result files."""

    def __init__(self, root: str | None = None, fine: bool = True, coarse: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not fine and not coarse:
            raise ValueError("fine and coarse are both false, so there is nothing to train on: set one of them")
        self.root = Path(root or os.environ.get("DATA_ROOT", "data")) / "cityscapes"
        self.fine = fine
        self.coarse = coarse

    def dataset(self, split: str, transforms: Sequence[A.BasicTransform]) -> CityscapesDataset:
        """See ``SegmentationDataModule``."""
        if split != "train":
            parts = [("val", "gtFine")]
        else:
            parts = [("train", "gtFine" if self.fine else "gtCoarse")]
            parts += [("train_extra", "gtCoarse")] if self.coarse else []
        pairs = [pair for folder, labels in parts for pair in self.pairs(folder, labels)]
        return CityscapesDataset(pairs, self.ignore_index, transforms, self.align_masks)

    def predict_dataloader(self) -> DataLoader[Sample]:
        """The images of ``predict_images`` or else the test images, one by one."""
        if self.predict_images is None:
            self.images("test")
            self.predict_images = f"{escape(str(self.root))}/leftImg8bit/test/*/*{IMAGE_END}"
        return super().predict_dataloader()

    def images(self, folder: str) -> list[Path]:
        """The images of train, train_extra, val or test, sorted; an error if there are none."""
        images = sorted((self.root / "leftImg8bit" / folder).glob(f"*/*{IMAGE_END}"))
        if not images:
            archive = "trainextra" if folder == "train_extra" else "trainvaltest"
            raise FileNotFoundError(
                f"{self.root / 'leftImg8bit' / folder} holds no images: register at "
                f"https://www.cityscapes-dataset.com, download leftImg8bit_{archive}.zip and the labels (docs/data.md) "
                f"and unpack them in {self.root}, or set DATA_ROOT to the folder that holds cityscapes"
            )
        return images

    def pairs(self, folder: str, labels: str) -> list[tuple[Path, Path]]:
        """Images of a folder with their label files in gtFine or gtCoarse; an image without one is an error."""
        pairs = []
        for image in self.images(folder):
            name = image.name.removesuffix(IMAGE_END) + f"_{labels}_labelIds.png"
            mask = self.root / labels / folder / image.parent.name / name
            if not mask.is_file():
                archive = "gtCoarse.zip" if labels == "gtCoarse" else "gtFine_trainvaltest.zip"
                raise FileNotFoundError(
                    f"{mask} is missing: download {archive} from https://www.cityscapes-dataset.com and unpack it in "
                    f"{self.root}"
                )
            pairs.append((image, mask))
        return pairs
