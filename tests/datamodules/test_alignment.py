"""Masks stay on their images: pictures that are their own masks, through every transform that resamples."""

from pathlib import Path
from typing import Any

import albumentations as A
import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from datamodules import Cityscapes, FolderDataModule, NYUv2, SyntheticStreets, WeizmannHorse
from datamodules.alignment import AlignedMask, align_masks
from tests.tiny_data import WRITERS

FOLDERS: dict[Any, str] = {Cityscapes: "cityscapes", NYUv2: "nyu_v2", WeizmannHorse: "weizmann_horse"}
COUNT, HEIGHT, WIDTH = 210, 90, 120
TRANSFORMS: dict[str, list[Any]] = {
    "one half": [A.Resize(45, 60)],
    "one third": [A.Resize(30, 40)],
    "0.7": [A.Resize(63, 84)],
    "1.3": [A.Resize(117, 156)],
    "2": [A.Resize(180, 240)],
    "larger and narrower": [A.Resize(117, 60)],
    "area": [A.Resize(45, 60, area_for_downscale="image")],
    "cubic": [A.Resize(63, 84, interpolation=cv2.INTER_CUBIC)],
    "longest side": [A.LongestMaxSize(70)],
    "crops": [A.RandomResizedCrop((45, 60), scale=(0.6, 1.0))],
    "scale and resize": [A.RandomScale(0.5, p=1.0), A.Resize(45, 60)],
    "affine, one half": [A.Affine(scale=0.5, p=1.0)],
    "affine": [A.Affine(scale=(0.5, 1.5), rotate=(-40, 40), shear=(-10, 10), p=1.0)],
    "rotation": [A.Rotate(40, p=1.0)],
    "quarter turns and flips": [A.RandomRotate90(p=1.0), A.HorizontalFlip(), A.VerticalFlip()],
    "padding": [A.PadIfNeeded(140, 140), A.CropAndPad(percent=(-0.1, 0.1), p=1.0)],
    "perspective": [A.Perspective(p=1.0)],
    "distortion": [A.GridDistortion(p=1.0)],
    "one of": [A.OneOf([A.Resize(45, 60), A.Sequential([A.RandomScale(0.4, p=1.0)])], p=1.0)],
}


def disc(y: float, x: float, radius: float, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    rows, columns = np.mgrid[:height, :width]
    return ((rows - y) ** 2 + (columns - x) ** 2 <= radius**2).astype(np.uint8)


def centre(weights: np.ndarray) -> np.ndarray:
    rows, columns = np.mgrid[: weights.shape[0], : weights.shape[1]]
    return np.array([(weights * columns).sum(), (weights * rows).sum()]) / weights.sum()


@pytest.fixture(scope="module")
def discs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of discs, at random places between pixels, that are their own masks."""
    root, rng = tmp_path_factory.mktemp("discs"), np.random.default_rng(0)
    for folder in ("images", "masks"):
        (root / folder).mkdir()
    for number in range(COUNT):
        labels = disc(rng.uniform(32, 58), rng.uniform(40, 80), rng.uniform(7, 16))
        Image.fromarray(255 * labels).save(root / "images" / f"{number}.png")
        Image.fromarray(labels).save(root / "masks" / f"{number}.png")
    return root


def offset(discs: Path, transforms: list[Any], **options: Any) -> np.ndarray:
    """How far masks lie from their images, in the mean: (right, down), and how much larger they are, as a share."""
    given: Any = {"fractions": (1.0, 0.0, 0.0), "train_transforms": transforms, "batch_size": 1} | options
    data = FolderDataModule(str(discs / "images"), str(discs / "masks"), classes=["ground", "disc"], **given)
    found = []
    for batch in data.train_dataloader():
        image, mask = batch["image"][0, 0].numpy() / 255, batch["mask"][0].numpy()
        assert set(np.unique(mask)) <= {0, 1}
        found.append([*(centre(mask) - centre(image)), mask.sum() / image.sum() - 1])
    assert len(found) == COUNT
    return np.mean(found, axis=0)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_picture_that_is_its_own_mask(name: str, discs: Path) -> None:
    assert (np.abs(offset(discs, TRANSFORMS[name])) < [0.05, 0.05, 0.01]).all()


def test_what_albumentations_does_and_what_one_asks_for(discs: Path) -> None:
    half = TRANSFORMS["one half"]
    assert offset(discs, half, align_masks=False)[:2] == pytest.approx([0.25, 0.25], abs=0.05)
    own = [A.Resize(45, 60, mask_interpolation=cv2.INTER_NEAREST_EXACT)]
    assert offset(discs, own)[:2] == pytest.approx([-0.25, -0.25], abs=0.05)  # kept as it is
    composed = A.Compose([A.Resize(45, 60)], mask_interpolation=cv2.INTER_NEAREST_EXACT)
    assert offset(discs, [composed])[:2] == pytest.approx([-0.25, -0.25], abs=0.05)
    assert (np.abs(offset(discs, half)) < 0.05).all()  # the transforms themselves have not changed


def transformed(mask: np.ndarray, *transforms: Any) -> np.ndarray:
    image = np.zeros((*mask.shape, 3), dtype=np.uint8)
    changed: np.ndarray = A.Compose(align_masks(transforms, 255), seed=0)(image=image, mask=mask)["mask"]
    return changed


def test_the_label_with_the_largest_part_of_a_pixel_wins() -> None:
    mask = np.array([[7, 7, 3, 9, 255, 255, 1, 255], [5, 7, 4, 9, 255, 2, 2, 1]])
    assert transformed(mask, A.Resize(1, 4)).tolist() == [[7, 9, 255, 1]]
    # of the last four, the ignored one has a quarter: 1 has more than 2


def test_ties_go_to_either_label_in_turn() -> None:
    halves = np.tile(np.array([[4, 6], [4, 6]]), (60, 60))
    result = transformed(halves, A.Resize(60, 60))
    assert (result[1:] != result[:-1]).all()
    assert (result[:, 1:] != result[:, :-1]).all()
    quarters = np.tile(np.array([[0, 1], [2, 3]]), (60, 60))
    counts = np.unique(transformed(quarters, A.Resize(60, 60)), return_counts=True)[1]
    assert len(counts) == 4
    assert counts.min() >= 3600 / 6


def test_ignored_pixels_do_not_spread() -> None:
    """Their share stays what it was, and so do the pixels on either side of a line of them."""
    mask = np.zeros((120, 160), dtype=np.int64)
    mask[:, 80:] = 1
    mask[:, 79:82] = 255
    for scale in (0.5, 0.7, 1.3, 2.0):
        result = transformed(mask, A.Resize(round(120 * scale), round(160 * scale)))
        assert (result == 255).mean() == pytest.approx(3 / 160, abs=0.35 / result.shape[1])
        assert (result[:, : round(79 * scale) - 1] == 0).all()
        assert (result[:, round(82 * scale) + 1 :] == 1).all()
    assert (transformed(np.full((40, 50), 255), A.Resize(21, 27)) == 255).all()
    thirds = np.tile(np.array([[255, 3, 4]]), (30, 30))  # of a pixel that is ignored by a third
    counts = dict(
        zip(
            *np.unique(transformed(thirds, A.Resize(30, 30, interpolation=cv2.INTER_AREA)), return_counts=True),
            strict=True,
        )
    )
    assert counts == {3: 450, 4: 450}


def test_what_comes_from_outside_is_what_the_transform_says() -> None:
    mask = np.ones((40, 60), dtype=np.uint8)
    for given, expected in (({}, 0), ({"fill_mask": 255}, 255), ({"fill_mask": 3}, 3)):
        for transform in (
            A.Affine(scale=0.5, p=1.0, **given),
            A.Rotate((45, 45), border_mode=cv2.BORDER_CONSTANT, p=1.0, **given),
            A.CropAndPad(px=10, p=1.0, **given),
            A.PadIfNeeded(60, 80, border_mode=cv2.BORDER_CONSTANT, **given),
        ):
            result = transformed(mask, transform)
            assert set(np.unique(result)) == {1, expected}
            assert result[0, 0] == expected
            plain = A.Compose([transform], seed=0)(image=np.zeros((40, 60, 3), np.uint8), mask=mask)["mask"]
            assert (result != plain).mean() < 0.05


def test_many_labels_are_those_that_were_there() -> None:
    rng = np.random.default_rng(0)
    mask = rng.integers(0, 40, (12, 16)).repeat(10, 0).repeat(10, 1)
    result = transformed(mask, A.RandomResizedCrop((70, 90), scale=(0.9, 1.0)))
    assert set(np.unique(result)) <= set(np.unique(mask))
    plain = cv2.resize(mask.astype(np.uint8), (90, 70), interpolation=cv2.INTER_NEAREST_EXACT)
    whole = transformed(mask, A.Resize(70, 90))
    assert (whole == plain).mean() > 0.9


def test_horses_whose_images_are_larger_than_their_masks(tmp_path: Path) -> None:
    rng, root = np.random.default_rng(0), tmp_path / "weizmann_horse_db"
    for folder in ("rgb", "figure_ground"):
        (root / folder).mkdir(parents=True)
    for number in range(1, 329):
        y, x, radius = rng.uniform(30, 50), rng.uniform(40, 60), rng.uniform(10, 20)
        # the centre of pixel i is at i + 1/2: the same place in the larger picture
        large = disc(1.5 * y + 0.25, 1.5 * x + 0.25, 1.5 * radius, 120, 150)
        Image.fromarray(255 * large).convert("RGB").save(root / "rgb" / f"horse{number:03d}.jpg", quality=95)
        Image.fromarray(255 * disc(y, x, radius, 80, 100)).save(root / "figure_ground" / f"horse{number:03d}.jpg")
    data = WeizmannHorse(root=str(tmp_path), train_transforms=[A.Resize(57, 71)])
    for dataset in (data.dataset("train", []), data.dataset("train", data.train_transforms)):
        pairs = [(sample["image"][0].numpy() / 255, sample["mask"].numpy()) for sample in dataset]
        assert (np.abs(np.mean([centre(mask) - centre(image) for image, mask in pairs], axis=0)) < 0.05).all()


def test_frames_of_nyu_v2(tmp_path: Path) -> None:
    folder, rng = tmp_path / "nyu_v2", np.random.default_rng(0)
    for name in ("images", "labels40"):
        (folder / name).mkdir(parents=True)
    (folder / "train.txt").write_text("\n".join(map(str, range(2000, 2200))))
    for number in range(2000, 2200):
        labels = disc(rng.uniform(30, 50), rng.uniform(40, 60), rng.uniform(10, 20), 80, 100)
        Image.fromarray(255 * labels).convert("RGB").save(folder / "images" / f"{number}.jpg", quality=95)
        Image.fromarray(labels + 1).save(folder / "labels40" / f"{number}.png")  # 1 is a wall, 2 a floor
    data = NYUv2(root=str(tmp_path), num_labels=40)
    samples = list(data.dataset("train", [A.Resize(40, 50)]))
    pairs = [(sample["image"][0].numpy() / 255, (sample["mask"] == 1).numpy()) for sample in samples]
    assert len(pairs) == 200
    assert (np.abs(np.mean([centre(mask) - centre(image) for image, mask in pairs], axis=0)) < 0.05).all()
    assert torch.stack([sample["mask"] for sample in samples]).unique().tolist() == [0, 1]


@pytest.mark.parametrize("kind", [Cityscapes, NYUv2, SyntheticStreets, WeizmannHorse])
@pytest.mark.parametrize("aligned", [True, False])
def test_every_data_module_can_do_both(kind: Any, aligned: bool, tmp_path: Path) -> None:
    given = {} if kind is SyntheticStreets else {"root": str(tmp_path)}
    if given:
        WRITERS[FOLDERS[kind]](tmp_path)
    dataset = kind(**given, align_masks=aligned).dataset("val", [A.Resize(20, 30)])
    (transform,) = dataset.transform.transforms
    assert isinstance(transform.apply_to_mask, AlignedMask) == aligned
    if aligned:
        assert transform.apply_to_mask.ignore_index == 255
    assert dataset[0]["mask"].shape == (20, 30)
