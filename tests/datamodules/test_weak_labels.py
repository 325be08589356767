"""Scribbles, clicks and boxes: within their regions, as many as asked for, the same every time, for training only."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import albumentations as A
import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from torch.utils.data import Subset

from datamodules import Boxes, Clicks, FolderDataModule, NYUv2, Scribbles, SyntheticStreets, WeakLabels
from datamodules.street_scene import street_scene

FULL = np.ones((3, 3))
KINDS: list[WeakLabels] = [Scribbles(0.03), Scribbles(0.1, width=5), Clicks(2, radius=2)]


def masks() -> list[np.ndarray]:
    """Street scenes, some of whose pixels are ignored, and stripes, dots and noise."""
    found = [street_scene(seed, 64, 96)[1].astype(np.int64) for seed in range(3)]
    found[0][10:20, 30:60] = 255
    y, x = np.indices((40, 50))
    found += [(x + y) // 3 % 3, ((x % 5 == 0) & (y % 5 == 0)).astype(np.int64)]
    found += [np.random.default_rng(0).integers(0, 2, (12, 15)), np.zeros((1, 1), dtype=np.int64)]
    return [*found, np.full((6, 7), 255)]


def components(mask: np.ndarray) -> list[np.ndarray]:
    """Each connected region of each label, by a plain count."""
    found = []
    for label in set(mask.flatten().tolist()) - {255}:
        numbers, count = ndimage.label(mask == label, FULL)
        found += [numbers == number for number in range(1, count + 1)]
    return found


@pytest.mark.parametrize("weak", KINDS)
@pytest.mark.parametrize("number", range(8))
def test_a_label_never_leaves_its_region(number: int, weak: WeakLabels) -> None:
    mask = masks()[number]
    before = mask.copy()
    kept = weak(mask, f"image{number}", 255)
    assert np.array_equal(mask, before)
    assert kept.dtype == mask.dtype
    known = kept != 255
    assert np.array_equal(kept[known], mask[known])
    for region in components(mask):
        assert (known & region).any()


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("share", [0.002, 0.03, 0.5, 1.0])
@pytest.mark.parametrize("number", range(8))
def test_a_scribble_has_its_share(number: int, share: float, width: int) -> None:
    mask = masks()[number]
    known = Scribbles(share, width)(mask, "image", 255) != 255
    for region in components(mask):
        assert (known & region).sum() == max(1, round(share * int(region.sum())))


def test_a_scribble_is_a_curve() -> None:
    """Long, thin, in one piece or few, and away from the border."""
    region = np.hypot(*(np.indices((101, 101)) - 50)) < 48
    depth = ndimage.distance_transform_edt(region)
    for seed in range(5):
        drawn = Scribbles(0.03, seed=seed)(np.where(region, 1, 255), "disc", 255) == 1
        rows, columns = np.nonzero(drawn)
        assert ndimage.label(drawn, FULL)[1] <= 3
        assert max(np.ptp(rows), np.ptp(columns)) > 25
        assert ndimage.binary_erosion(drawn, FULL).sum() == 0
        assert depth[drawn].mean() > 8


def test_names_and_seeds_make_scribbles() -> None:
    mask = street_scene(0, 64, 96)[1]
    first = Scribbles()(mask, "a", 255)
    assert np.array_equal(first, Scribbles()(mask, "a", 255))
    assert not np.array_equal(first, Scribbles()(mask, "b", 255))
    assert not np.array_equal(first, Scribbles(seed=1)(mask, "a", 255))


def test_clicks_are_few() -> None:
    mask = street_scene(1, 64, 96)[1]
    for clicks in (1, 3):
        known = Clicks(clicks)(mask, "image", 255) != 255
        for region in components(mask):
            assert (known & region).sum() == min(clicks, region.sum())


def test_boxes_are_bounding_boxes() -> None:
    mask = np.zeros((20, 30), dtype=np.int64)
    mask[np.hypot(*(np.indices((20, 30)) - [[[9]], [[10]]])) < 7] = 1  # a disc, and a bar in its box
    mask[4:6, 14:16] = 2
    mask[18:, 25:] = 255
    expected = np.zeros_like(mask)
    expected[3:16, 4:17] = 1
    expected[4:6, 14:16] = 2
    expected[18:, 25:] = 255
    assert np.array_equal(Boxes()(mask, "image", 255), expected)
    inner = Boxes(core=0.4)(mask, "image", 255)
    assert set(inner[3:16, 4:17].flatten()) == {1, 2, 255}
    assert (inner == 1).sum() == 5 * 5
    assert (inner[16:18] == 0).all()
    everything = Boxes(background=None, core=0.1)(mask, "image", 255)
    assert set(np.unique(everything)) == {1, 2, 255}  # the middle of label 0 is in the box of label 1


@pytest.mark.parametrize("workers", [0, 2])
def test_only_training_has_weak_labels(workers: int) -> None:
    options: dict[str, Any] = {"height": 32, "width": 48, "train_size": 4, "val_size": 2, "test_size": 2}
    full, weak = (
        SyntheticStreets(**options, batch_size=4, weak_labels=labels, workers=workers) for labels in (None, Scribbles())
    )
    for loader in ("val_dataloader", "test_dataloader"):
        for ours, theirs in zip(getattr(weak, loader)(), getattr(full, loader)(), strict=True):
            assert torch.equal(ours["mask"], theirs["mask"])
    (ours,), (again,), (theirs,) = (list(data.train_dataloader()) for data in (weak, weak, full))
    masks, others = (dict(zip(batch["name"], batch["mask"], strict=True)) for batch in (ours, again))
    truth = dict(zip(theirs["name"], theirs["mask"], strict=True))
    for name, mask in masks.items():
        assert torch.equal(mask, others[name])
        assert torch.equal(mask, torch.where(mask == 255, 255, truth[name]))
        assert 0.02 < (mask != 255).float().mean() < 0.1


def test_transforms_come_after(tmp_path: Path) -> None:
    """A flipped image has the flipped scribble, as if it had been drawn before."""
    flip = [A.HorizontalFlip(p=1)]
    options: dict[str, Any] = {"height": 32, "width": 48, "train_size": 1, "batch_size": 1, "weak_labels": Scribbles()}
    (plain,) = SyntheticStreets(**options).train_dataloader()
    (flipped,) = SyntheticStreets(**options, train_transforms=flip).train_dataloader()
    assert torch.equal(flipped["mask"], plain["mask"].flip(-1))


def test_masks_that_are_scribbles_already(tmp_path: Path) -> None:
    """Index files with 255 where nothing is known are read as they are."""
    for number in range(6):
        mask = street_scene(number, 32, 48)[1]
        scribble = Scribbles()(mask, str(number), 255).astype(np.uint8)
        for folder, pixels in (("images", street_scene(number, 32, 48)[0]), ("masks", scribble)):
            (tmp_path / folder).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / folder / f"{number}.png")
    data = FolderDataModule(str(tmp_path / "images"), str(tmp_path / "masks"), classes=list("abcdefgh"), batch_size=4)
    (batch,) = data.train_dataloader()
    for name, mask in zip(batch["name"], batch["mask"], strict=True):
        assert np.array_equal(mask.numpy(), Scribbles()(street_scene(int(name), 32, 48)[1], name, 255))


def test_real_masks(data_root: Path) -> None:
    data = NYUv2(str(data_root), num_labels=40, weak_labels=Scribbles(), batch_size=4)
    masks = next(iter(data.train_dataloader()))["mask"]
    assert 0.01 < (masks != 255).float().mean() < 0.06
    assert len(masks.unique()) > 5


class Selected(SyntheticStreets):
    """Training images that are another kind of data set."""

    def dataset(self, split: str, transforms: Sequence[A.BasicTransform]) -> Any:
        return Subset(super().dataset(split, transforms), [0, 1])


def test_settings_that_cannot_be() -> None:
    with pytest.raises(
        ValueError, match="weak_labels are for a SegmentationDataset, but the training images are a Sub"
    ):
        Selected(height=32, width=48, weak_labels=Scribbles()).train_dataloader()
    with pytest.raises(TypeError, match="unexpected keyword argument 'seed'"):
        Boxes(seed=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="share must be above 0 and at most 1, got 2"):
        Scribbles(2)
    with pytest.raises(ValueError, match="width must be 1 or more, got 0"):
        Scribbles(width=0)
    with pytest.raises(ValueError, match="clicks must be 1 or more and radius 0 or more, got 0 and 0"):
        Clicks(0)
    with pytest.raises(ValueError, match="core must be above 0 and at most 1, got 0"):
        Boxes(core=0)
