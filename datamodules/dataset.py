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

Sample = dict[str, Any]
"""image (3, H, W) uint8 colours 0..255, mask (H, W) int64, name, and the size (H, W) of the file."""


class SegmentationDataset(Dataset[Sample], ABC):
    """Images with masks, transformed by albumentations.

    The image keeps its colours 0..255: the network normalises it for itself, and the CRF needs it as
    it is.

    Args:
        transforms: albumentations for image and mask, without normalisation.
    """

    def __init__(self, transforms: Sequence[A.BasicTransform] = ()) -> None:
        self.transform = A.Compose(list(transforms))
        self.weaken: Callable[[np.ndarray, str], np.ndarray] | None = None
        """What makes a weak mask of a mask and the name of its image, before the transforms."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: int) -> tuple[np.ndarray, np.ndarray | None, str]:
        """Image (H, W, 3) uint8, mask (H, W) if there is one, and name of a sample."""

    def __getitem__(self, index: int) -> Sample:
        image, mask, name = self.read(index)
        size = torch.tensor(image.shape[:2])
        # albumentations has a random state of its own, which seed_everything does not reach
        self.transform.set_random_seed(int(torch.randint(2**31, ())))
        if mask is None:
            return {"image": _channels_first(self.transform(image=image)["image"]), "name": name, "size": size}
        if self.weaken is not None:
            mask = self.weaken(mask, name)
        changed = self.transform(image=image, mask=mask)
        labels = torch.from_numpy(np.ascontiguousarray(changed["mask"])).long()
        return {"image": _channels_first(changed["image"]), "mask": labels, "name": name, "size": size}


def collate(samples: list[Sample]) -> Sample:
    """Stacks samples, which must have one size."""
    sizes = {tuple(sample["image"].shape[1:]) for sample in samples}
    if len(sizes) > 1:
        listed = ", ".join(f"{height} x {width}" for height, width in sorted(sizes))
        raise ValueError(
            f"a batch holds images of {len(sizes)} sizes ({listed}): add a Resize or a crop to the transforms, or use "
            "a batch size of 1"
        )
    return default_collate(samples)


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
