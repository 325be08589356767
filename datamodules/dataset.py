"""Reading images and masks, and handing them on as tensors."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import albumentations as A
import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from datamodules.alignment import align_masks as aligned
from datamodules.stages import two_stages

Sample = dict[str, Any]
"""image (3, H, W) uint8 colours 0..255, mask (H, W) int64, name, and the size (H, W) of the file.

In a batch masks are (B, H, W), or a list of (H, W) if they differ in size. Where logits are kept, also
logits (L, H, W).
"""

Logits = Callable[[int, str], np.ndarray]
"""Logits (L, H, W) of the picture of a sample, by its index and name."""


class SegmentationDataset(Dataset[Sample], ABC):
    """Images with masks, transformed by albumentations.

    The image keeps its colours 0..255: the network normalises it for itself, and the CRF needs it as
    it is.

    Args:
        transforms: albumentations for image and mask, without normalisation.
        ignore_index: Label of pixels that do not count.
        align_masks: Resample masks so that they stay on their images; false leaves it to albumentations.
    """

    masks_as_read = False
    """Transform the image alone, for a mask to compare with at its own size."""

    def __init__(
        self, transforms: Sequence[A.BasicTransform] = (), ignore_index: int = 255, align_masks: bool = True
    ) -> None:
        transforms = aligned(transforms, ignore_index) if align_masks else list(transforms)
        self.transform: A.Compose = A.Compose(transforms)
        self.moving: A.Compose | None = None
        self.logits: Logits | None = None
        self.weaken: Callable[[np.ndarray, str], np.ndarray] | None = None
        """What makes a weak mask of a mask and the name of its image, before the transforms."""

    def use_logits(self, logits: "Logits") -> None:
        """Gives samples the logits of their pictures, which move as their pixels do: see ``two_stages``."""
        fixed, moving = two_stages(self.transform.transforms)
        self.transform = A.Compose(fixed)
        self.moving = A.Compose(moving, additional_targets={"place": "mask"})
        self.logits = logits

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: int) -> tuple[np.ndarray, np.ndarray | None, str]:
        """Image (H, W, 3) uint8, mask (H, W) if there is one, and name of a sample."""

    def __getitem__(self, index: int) -> Sample:
        image, mask, name = self.read(index)
        size = torch.tensor(image.shape[:2])
        # albumentations has a random state of its own, which seed_everything does not reach
        seed = int(torch.randint(2**31, ()))
        self.transform.set_random_seed(seed)
        if mask is not None and self.weaken is not None:
            mask = self.weaken(mask, name)
        as_read = mask is None or self.masks_as_read
        changed = self.transform(image=image) if as_read else self.transform(image=image, mask=mask)
        sample: Sample = {"name": name, "size": size}
        if self.logits is not None and self.moving is not None:
            height, width = changed["image"].shape[:2]
            self.moving.set_random_seed(seed)
            changed = self.moving(**changed, place=np.arange(height * width, dtype=np.int32).reshape(height, width))
            logits = self.logits(index, name)  # (L, H, W)
            sample["logits"] = torch.from_numpy(logits.reshape(len(logits), -1)[:, changed["place"]])
        sample["image"] = _channels_first(changed["image"])
        if mask is not None:
            labels = mask if as_read else changed["mask"]
            sample["mask"] = torch.from_numpy(np.ascontiguousarray(labels)).long()
        return sample


def collate(samples: list[Sample]) -> Sample:
    """Stacks samples, whose images must have one size; masks of several sizes stay a list."""
    sizes = {tuple(sample["image"].shape[1:]) for sample in samples}
    if len(sizes) > 1:
        listed = ", ".join(f"{height} x {width}" for height, width in sorted(sizes))
        raise ValueError(
            f"a batch holds images of {len(sizes)} sizes ({listed}): add a Resize or a crop to the transforms, or use "
            "a batch size of 1"
        )
    masks = [sample["mask"] for sample in samples if "mask" in sample]
    if len({mask.shape for mask in masks}) < 2:
        return default_collate(samples)
    others = [{key: value for key, value in sample.items() if key != "mask"} for sample in samples]
    return default_collate(others) | {"mask": masks}


def read_image(path: Path) -> np.ndarray:
    """Colours of a file, turned as its camera was held: (H, W, 3) uint8."""
    with _open(path) as image:
        if image.mode.startswith(("I", "F")):
            raise ValueError(f"{path} has {image.mode} pixels, more than 8 bits for a colour: convert it to 8 bits")
        return np.array(ImageOps.exif_transpose(image).convert("RGB"))


def read_mask(path: Path) -> np.ndarray:
    """Values of a mask: (H, W) of an index or palette file, (H, W, 3) of a coloured one."""
    with _open(path) as image:
        if image.mode not in ("1", "L", "P", "I", "I;16", "RGB", "RGBA"):
            raise ValueError(f"{path} has {image.mode} pixels: save it as an index, palette or RGB file")
        return np.array(image.convert("RGB") if image.mode in ("RGB", "RGBA") else image)


def _open(path: Path) -> Image.Image:
    try:
        image = Image.open(path)
        image.load()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no file {path}: add it or take it out of the data set") from error
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"cannot read {path} ({error}): replace the file or take it out of the data set") from error
    return image


def _channels_first(image: np.ndarray) -> Tensor:
    if image.dtype != np.uint8:
        raise TypeError(
            f"the transforms returned a {image.dtype} image: leave out Normalize and ToTensorV2, the network normalises"
        )
    return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
