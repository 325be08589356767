"""Tiny data of the kind that a configuration is for."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from datamodules.nyu_v2 import read_split
from tests.command_line import SMALL, STREETS

LIMITS = [f"--trainer.limit_{split}_batches=2" for split in ("train", "val", "test")]


def tiny_data(configuration: Path, folder: Path) -> list[str]:
    """Arguments that give a configuration tiny data; all but street scenes are written to the folder."""
    if configuration == STREETS:
        return [*SMALL, "--data.init_args.batch_size=2"]
    written = WRITERS[configuration.parent.name](folder)
    return [*LIMITS, "--data.init_args.batch_size=2", *written]


def _sample(number: int, value: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """An image of a bright box, and its mask."""
    labels = np.zeros((36, 50), dtype=np.uint8)
    labels[8:28, 10 + number % 20 : 30 + number % 20] = value
    return np.stack([(labels > 0).astype(np.uint8) * 120 + 60] * 3, axis=-1), labels


def _save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def _folder(root: Path) -> list[str]:
    for number in range(8):
        image, mask = _sample(number)
        _save(root / "images" / f"{number}.png", image)
        _save(root / "masks" / f"{number}.png", mask)
    return [f"--data.init_args.images={root / 'images'}", f"--data.init_args.masks={root / 'masks'}"]


def _horses(root: Path) -> list[str]:
    for number in range(1, 329):
        image, mask = _sample(number)
        _save(root / "weizmann_horse_db" / "rgb" / f"horse{number:03d}.jpg", image)
        _save(root / "weizmann_horse_db" / "figure_ground" / f"horse{number:03d}.jpg", 255 * mask)
    return [f"--data.init_args.root={root}"]


def _rooms(root: Path) -> list[str]:
    held_out = sorted(read_split())[:4]
    training = [number for number in range(1, 1450) if number not in read_split()][:4]
    parts = {"train": [*training, *held_out], "test": [1400, 1401]}
    for part, numbers in parts.items():
        (root / "nyu_v2").mkdir(parents=True, exist_ok=True)
        (root / "nyu_v2" / f"{part}.txt").write_text("\n".join(map(str, numbers)))
        for number in numbers:
            image, mask = _sample(number, value=4)
            _save(root / "nyu_v2" / "images" / f"{number:04d}.jpg", image)
            _save(root / "nyu_v2" / "labels40" / f"{number:04d}.png", mask + 1)
    return [f"--data.init_args.root={root}"]


def _streets(root: Path) -> list[str]:
    for split in ("train", "val"):
        for number in range(4):
            image, mask = _sample(number, value=6)
            name = f"city_{number:06d}_000019"
            _save(root / "cityscapes" / "leftImg8bit" / split / "city" / f"{name}_leftImg8bit.png", image)
            _save(root / "cityscapes" / "gtFine" / split / "city" / f"{name}_gtFine_labelIds.png", mask + 7)
    crop = '--data.init_args.train_transforms=[{"class_path": "albumentations.RandomCrop", "init_args": '
    return [f"--data.init_args.root={root}", crop + '{"height": 32, "width": 32}}]']


WRITERS: dict[str, Callable[[Path], list[str]]] = {
    "folder": _folder,
    "weizmann_horse": _horses,
    "nyu_v2": _rooms,
    "cityscapes": _streets,
}
