"""Folders of generated images, maps and ground truth."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crfgrad.cli import main


@pytest.fixture(autouse=True)
def backend() -> str:
    """These tests run on one backend: the command line adds no operation."""
    return "auto"


@dataclass
class Folder:
    """A folder of data, and commands on it."""

    root: Path

    def maps(self, name: str) -> np.ndarray:
        return np.load(self.root / "maps" / f"{name}.npy")

    def image(self, name: str) -> np.ndarray:
        return np.array(Image.open(self.root / "images" / f"{name}.png"))

    def truth(self, name: str) -> np.ndarray:
        return np.array(Image.open(self.root / "truth" / f"{name}.png"))

    def result(self, name: str, output: str = "out") -> np.ndarray:
        return np.array(Image.open(self.root / output / "labels" / f"{name}.png"))

    def refine(self, *given: str, maps: str = "maps", output: str = "out") -> int:
        where = ["--images", self.root / "images", "--output", self.root / output, "--jobs", "1"]
        if "--labels" not in given:
            where += ["--probabilities", self.root / maps]
        return main(["refine", *map(str, where), *given])

    def tune(self, *given: str, jobs: str = "1") -> int:
        where = ["--images", self.root / "images", "--probabilities", self.root / "maps", "--jobs", jobs]
        where += ["--truth", self.root / "truth", "--output", self.root / "settings.yaml", "--folds", "3"]
        return main(["tune", *map(str, where), *given])

    @property
    def names(self) -> list[str]:
        return sorted(path.stem for path in (self.root / "images").iterdir())


def write_data(root: Path, count: int = 6, height: int = 24, width: int = 32) -> Folder:
    """Boxes of two kinds on a ground, in colours of their own, with noisy probabilities of the three labels."""
    for name in ("images", "maps", "truth"):
        (root / name).mkdir(parents=True)
    for number in range(count):
        generator = np.random.default_rng(number)
        truth = np.zeros((height, width), dtype=np.uint8)
        for label in (1, 2):
            top, left = generator.integers(0, height // 2), generator.integers(0, width // 2)
            truth[top : top + height // 2, left : left + width // 2] = label
        colours = np.array([[60, 90, 60], [180, 60, 60], [70, 70, 190]])
        image = (colours[truth] + generator.normal(0, 6, (height, width, 3))).clip(0, 255).astype(np.uint8)
        scores = 1.5 * np.eye(3)[truth].transpose(2, 0, 1) + generator.normal(0, 1, (3, height, width))
        probabilities = np.exp(scores) / np.exp(scores).sum(0)
        truth[0] = 255  # unlabelled
        Image.fromarray(image).save(root / "images" / f"picture{number}.png")
        Image.fromarray(truth).save(root / "truth" / f"picture{number}.png")
        np.save(root / "maps" / f"picture{number}.npy", probabilities.astype(np.float32))
    return Folder(root)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return write_data(tmp_path)
