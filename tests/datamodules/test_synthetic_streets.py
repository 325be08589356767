"""Street scenes: repeatable, all classes, contextual, and not shared between splits."""

import numpy as np
import pytest
import torch

from datamodules import SyntheticStreets
from datamodules.street_scene import CLASSES, COLOURS, street_scene


def test_a_seed_makes_one_scene() -> None:
    for first, again in zip(street_scene(3, 64, 96), street_scene(3, 64, 96), strict=True):
        assert np.array_equal(first, again)
    assert not np.array_equal(street_scene(3, 64, 96)[0], street_scene(4, 64, 96)[0])


@pytest.mark.parametrize("size", [(48, 64), (128, 192), (97, 131)])
def test_scenes_hold_every_class_where_it_belongs(size: tuple[int, int]) -> None:
    masks = np.stack([street_scene(seed, *size)[1] for seed in range(40)])
    image = street_scene(0, *size)[0]
    assert image.shape == (*size, 3)
    assert image.dtype == np.uint8
    assert masks.shape[1:] == size
    share = np.bincount(masks.flatten(), minlength=len(CLASSES)) / masks.size
    assert len(share) == len(CLASSES) == len(COLOURS)
    assert share.min() > 5e-4
    height = np.arange(size[0])[:, None] / size[0]
    mean_height = {
        name: (height * (masks == label)).sum() / (masks == label).sum() for label, name in enumerate(CLASSES)
    }
    assert mean_height["sky"] < mean_height["building"] < mean_height["car"] < mean_height["road"]


def test_poles_are_thin() -> None:
    masks = np.stack([street_scene(seed, 128, 192)[1] for seed in range(20)]) == CLASSES.index("pole")
    blocks = np.lib.stride_tricks.sliding_window_view(masks, (6, 6), axis=(1, 2)).all((-2, -1))
    assert masks.sum() > 0
    assert blocks.sum() < 0.1 * masks.sum()  # they, and their arms, are narrower than 6 pixels


def test_splits_share_no_scene() -> None:
    data = SyntheticStreets(height=48, width=64)
    seeds = [set(data.dataset(split, []).seeds) for split in ("train", "val", "test")]
    assert not seeds[0] & seeds[1]
    assert not seeds[1] & seeds[2]
    assert not seeds[0] & set(SyntheticStreets(seed=1).dataset("train", []).seeds)
    first = data.dataset("train", [])[0]
    assert torch.equal(first["image"], SyntheticStreets(height=48, width=64).dataset("train", [])[0]["image"])
    assert first["mask"].shape == (48, 64)


def test_workers_make_the_same_scenes() -> None:
    options = {"height": 32, "width": 48, "val_size": 4}
    here = list(SyntheticStreets(**options).val_dataloader())  # type: ignore[arg-type]
    there = list(SyntheticStreets(**options, workers=2).val_dataloader())  # type: ignore[arg-type]
    for a, b in zip(here, there, strict=True):
        assert torch.equal(a["image"], b["image"])
