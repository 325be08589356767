"""One's own images and masks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import albumentations as A
import numpy as np

from datamodules.base import SegmentationDataModule, find_images
from datamodules.colours import Colour, spread_hues
from datamodules.dataset import SegmentationDataset, read_image, read_mask

SPLITS = ("train", "val", "test")


class FolderDataset(SegmentationDataset):
    """Pairs of image and mask files.

    Args:
        pairs: Image and mask of each sample.
        classes: Names of the classes, by label.
        colours: Their colours, for masks that are coloured.
        ignore_index: Label of pixels that do not count.
        ignore_colour: Their colour in coloured masks.
        mask_values: Label of each value in index masks, where they are not the same.
        transforms: albumentations for image and mask.
        align_masks: See ``SegmentationDataset``.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[Path, Path]],
        classes: Sequence[str],
        colours: Sequence[Colour],
        ignore_index: int,
        ignore_colour: Colour | None = None,
        mask_values: dict[int, int] | None = None,
        transforms: Sequence[A.BasicTransform] = (),
        align_masks: bool = True,
    ) -> None:
        super().__init__(transforms, ignore_index, align_masks)
        self.pairs = pairs
        self.classes = classes
        self.colours = colours
        self.ignore_index = ignore_index
        self.ignore_colour = ignore_colour
        self.mask_values = mask_values

    def __len__(self) -> int:
        return len(self.pairs)

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray | None, str]:
        """See ``SegmentationDataset``."""
        image_path, mask_path = self.pairs[index]
        image, mask = read_image(image_path), self._labels(mask_path)
        if image.shape[:2] != mask.shape:
            raise ValueError(
                f"{image_path} is {image.shape[0]} x {image.shape[1]} but its mask {mask_path} is {mask.shape[0]} x "
                f"{mask.shape[1]}: resize one of the files"
            )
        return image, mask, image_path.stem

    def _labels(self, path: Path) -> np.ndarray:
        values = read_mask(path)
        labels = self._labels_of_values(values) if values.ndim == 2 else self._labels_of_colours(values, path)
        wrong = np.setdiff1d(labels, [*range(len(self.classes)), self.ignore_index])
        if len(wrong):
            raise ValueError(
                f"{path} holds label {wrong[0]}, but there are {len(self.classes)} classes (0 to "
                f"{len(self.classes) - 1}) and ignore_index {self.ignore_index}: correct the mask or the class list"
            )
        return labels.astype(np.int64)

    def _labels_of_values(self, values: np.ndarray) -> np.ndarray:
        if self.mask_values is None:
            return values
        labels = values.astype(np.int64)
        for value, label in self.mask_values.items():
            labels[values == value] = label
        return labels

    def _labels_of_colours(self, values: np.ndarray, path: Path) -> np.ndarray:
        codes = values.astype(np.int64) @ (65536, 256, 1)
        labels = np.full(codes.shape, -1, dtype=np.int64)
        meanings = list(enumerate(self.colours))
        if self.ignore_colour is not None:
            meanings.append((self.ignore_index, self.ignore_colour))
        for label, colour in meanings:
            labels[codes == np.array(colour) @ (65536, 256, 1)] = label
        if (labels < 0).any():
            colour = tuple(values[labels < 0][0].tolist())
            raise ValueError(
                f"{path} holds colour {colour}, which is no class: add it to colours, give it as ignore_colour, or "
                "correct the mask"
            )
        return labels


class FolderDataModule(SegmentationDataModule):
    """Your own data: image files, and mask files of the same names.

    A mask is an index or palette PNG whose values are labels, or an RGB PNG in the colours of the
    classes. Each split is a text file with a name (without suffix) on each line, or a fraction.

    Args:
        images: Folder or glob of the images.
        masks: Folder or glob of the masks.
        classes: Names of the classes, in the order of their labels.
        colours: A colour for each class; without it, evenly spread hues.
        ignore_index: Label of pixels that do not count.
        ignore_colour: Their colour in coloured masks.
        mask_values: Label of each value in index masks, where they are not the same: {0: 0, 255: 1} for black and
            white masks.
        mask_suffix: What the mask's name adds to the image's.
        split_files: Text files of train, val and test.
        fractions: Parts of the data for train, val and test, where there are no split files.
        split_seed: Seed of the random split by fractions.
        kwargs: Batch sizes, transforms and the rest of ``SegmentationDataModule``.
    """

    def __init__(
        self,
        images: str,
        masks: str,
        classes: list[str],
        colours: list[Colour] | None = None,
        ignore_index: int = 255,
        ignore_colour: Colour | None = None,
        mask_values: dict[int, int] | None = None,
        mask_suffix: str = "",
        split_files: tuple[str, str, str] | None = None,
        fractions: tuple[float, float, float] = (0.7, 0.15, 0.15),
        split_seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if colours is not None and len(colours) != len(classes):
            raise ValueError(f"there are {len(classes)} classes but {len(colours)} colours: give one for each class")
        if split_files is None and (min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6):
            raise ValueError(f"fractions {fractions} must not be negative and must sum to 1")
        self.images = images
        self.masks = masks
        self.classes = classes
        self.colours = colours or spread_hues(len(classes))
        self.ignore_index = ignore_index
        self.ignore_colour = ignore_colour
        self.mask_values = mask_values
        self.mask_suffix = mask_suffix
        self.split_files = split_files
        self.fractions = fractions
        self.split_seed = split_seed

    def dataset(self, split: str, transforms: Sequence[A.BasicTransform]) -> FolderDataset:
        """See ``SegmentationDataModule``."""
        pairs = self.pairs()
        chosen = [pairs[name] for name in self.names(split, list(pairs))]
        dataset = FolderDataset(
            chosen,
            self.classes,
            self.colours,
            self.ignore_index,
            self.ignore_colour,
            self.mask_values,
            transforms,
            self.align_masks,
        )
        if split == "train":
            self._refuse_one_class(dataset)
        return dataset

    def _refuse_one_class(self, dataset: FolderDataset, most: int = 20) -> None:
        """Black and white masks would pass for masks of one class and of pixels to ignore."""
        found: set[int] = set()
        for index in range(min(most, len(dataset))):
            found |= set(np.unique(dataset.read(index)[1]).tolist())  # type: ignore[arg-type]
        if len(found - {self.ignore_index}) < 2:
            values = ", ".join(map(str, sorted(found)))
            raise ValueError(
                f"the first {min(most, len(dataset))} training masks in {self.masks} hold only the labels {values} "
                f"({self.ignore_index} is ignored), so there is nothing to learn: give mask_values, such as "
                "{0: 0, 255: 1} for black and white masks"
            )

    def pairs(self) -> dict[str, tuple[Path, Path]]:
        """Image and mask of each name; an image without a mask is an error."""
        images = find_images(self.images)
        masks: dict[str, Path] = {}
        for path in find_images(self.masks):
            if path.suffix.lower() in (".jpg", ".jpeg"):
                raise ValueError(f"{path} is a JPEG, which blurs labels into others: save masks as PNG")
            if masks.setdefault(path.stem, path) != path:
                raise ValueError(f"{masks[path.stem]} and {path} are masks of one name: remove one of them")
        pairs: dict[str, tuple[Path, Path]] = {}
        for image in images:
            mask = masks.get(image.stem + self.mask_suffix)
            if mask is None:
                raise FileNotFoundError(
                    f"{image} has no mask {image.stem + self.mask_suffix}.* in {self.masks}: add it"
                )
            if image.stem in pairs:
                raise ValueError(f"{pairs[image.stem][0]} and {image} have one name: rename one of them")
            pairs[image.stem] = (image, mask)
        return pairs

    def names(self, split: str, available: list[str]) -> list[str]:
        """Names of the samples of a split."""
        which = SPLITS.index(split)
        if self.split_files is None:
            order = np.random.default_rng(self.split_seed).permutation(len(available))
            ends = [round(sum(self.fractions[:k]) * len(available)) for k in range(4)]
            chosen = [available[i] for i in sorted(order[ends[which] : ends[which + 1]])]
            source = f"fraction {self.fractions[which]} of {len(available)} images"
        else:
            source = self.split_files[which]
            chosen = self._listed(which)
            missing = sorted(set(chosen) - set(available))
            if missing:
                raise FileNotFoundError(f"{source} names {missing[0]}, which is not among the images in {self.images}")
            others = {name: file for i, file in enumerate(self.split_files) if i != which for name in self._listed(i)}
            twice = [name for i, name in enumerate(chosen) if name in others or name in chosen[:i]]
            if twice:
                where = others.get(twice[0], source)
                raise ValueError(f"{twice[0]} is in {source} and again in {where}: name each image once")
        if not chosen:
            raise ValueError(f"the {split} split is empty ({source}): give it at least one image")
        return chosen

    def _listed(self, which: int) -> list[str]:
        """Names in one of the split files."""
        path = Path((self.split_files or SPLITS)[which])
        if not path.is_file():
            raise FileNotFoundError(f"there is no split file {path}: check split_files")
        return [line.strip() for line in path.read_text().splitlines() if line.strip()]
