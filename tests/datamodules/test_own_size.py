"""Masks to measure with are those of the data set; transforms that do not keep the picture are refused."""

from pathlib import Path
from typing import Any

import albumentations as A
import numpy as np
import pytest
import torch
from PIL import Image

from datamodules import FolderDataModule

SIZES = [(40, 60), (50, 50), (36, 80), (40, 60), (36, 80)]


def build(root: Path, **options: Any) -> FolderDataModule:
    for folder in ("images", "masks"):
        (root / folder).mkdir(exist_ok=True)
    for number, size in enumerate(SIZES):
        labels = np.random.default_rng(number).integers(0, 2, size).astype(np.uint8)
        Image.fromarray(255 * labels).save(root / "images" / f"{number}.png")
        Image.fromarray(labels).save(root / "masks" / f"{number}.png")
    for split, names in {"train": "1", "val": "0\n2", "test": "3\n4"}.items():
        (root / f"{split}.txt").write_text(names)
    given: dict[str, Any] = {"split_files": tuple(str(root / f"{split}.txt") for split in ("train", "val", "test"))}
    given |= {"eval_transforms": [A.Resize(32, 48)], "eval_batch_size": 2, "predict_images": str(root / "images")}
    return FolderDataModule(str(root / "images"), str(root / "masks"), classes=["a", "b"], **given | options)


def test_masks_are_those_of_the_files(tmp_path: Path) -> None:
    data = build(tmp_path)
    for loader, numbers in ((data.val_dataloader(), (0, 2)), (data.test_dataloader(), (3, 4))):
        (batch,) = loader
        assert batch["image"].shape == (2, 3, 32, 48)
        assert [tuple(mask.shape) for mask in batch["mask"]] == [SIZES[0], SIZES[2]]
        for mask, number in zip(batch["mask"], numbers, strict=True):
            assert np.array_equal(mask.numpy(), np.array(Image.open(tmp_path / "masks" / f"{number}.png")))
    (one,) = build(tmp_path, measure_at_own_size=False).test_dataloader()
    assert one["mask"].shape == (2, 32, 48)
    dataset = data.dataset("train", [A.Resize(32, 48)])
    assert dataset[0]["mask"].shape == (32, 48)  # in training both go through the transforms


@pytest.mark.parametrize(
    "transform",
    [A.PadIfNeeded(64, 96), A.CenterCrop(16, 16), A.OneOf([A.Resize(8, 8), A.Rotate()]), A.HorizontalFlip()],
)
def test_transforms_that_do_not_keep_the_picture(transform: Any, tmp_path: Path) -> None:
    data = build(tmp_path, eval_transforms=[A.Resize(32, 48), A.ToGray(), transform], eval_batch_size=1)
    with pytest.raises(ValueError, match=r"eval_transforms holds .* set measure_at_own_size to false"):
        data.test_dataloader()
    with pytest.raises(ValueError, match=r"eval_transforms holds .*: leave it out"):
        data.predict_dataloader()
    data.measure_at_own_size = False
    for batch in data.test_dataloader():
        assert batch["mask"].shape[1:] == batch["image"].shape[2:]


class Mine(A.Resize):
    """Somebody's own transform, which is trusted."""


def test_transforms_that_keep_it(tmp_path: Path) -> None:
    kept = [
        A.LongestMaxSize(40),
        A.RandomScale((-0.5, 0.5), p=1.0),
        A.Sequential([Mine(20, 30)], p=1.0),
        A.ColorJitter(),
    ]
    for batch, size in zip(
        build(tmp_path, eval_transforms=kept, eval_batch_size=1).test_dataloader(), SIZES[3:], strict=True
    ):
        assert torch.is_tensor(batch["mask"])
        assert batch["mask"].shape[1:] == size
        assert batch["image"].shape[2:] == (20, 30)
