"""Scribbles, and what networks have learned from them, as a picture.

python -m experiments.scribbles.picture draws the kinds of weak labels, without training anything.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

from datamodules import Boxes, Clicks, Scribbles, SegmentationDataModule, SyntheticStreets
from datamodules.colours import Colour
from lightning_modules.pictures import paint

KINDS = {
    "Scribbles()": Scribbles(),
    "Scribbles(0.05, width=3)": Scribbles(0.05, width=3),
    "Clicks(radius=1)": Clicks(radius=1),
    "Boxes(background=None, core=0.6)": Boxes(background=None, core=0.6),
}


def drawn_on(image: np.ndarray, mask: np.ndarray, colours: Sequence[Colour], ignore_index: int = 255) -> np.ndarray:
    """The labels of a mask (H, W) over a pale image (H, W, 3) uint8."""
    painted = paint(torch.from_numpy(mask.astype(np.int64)), colours)
    pale = (110 + image // 2).clip(0, 255).astype(np.uint8)
    return np.where((mask == ignore_index)[..., None], pale, painted)


def draw(data: SegmentationDataModule, results: Mapping[str, Sequence[Tensor]], path: Path) -> None:
    """Training scenes with their weak labels above, test scenes with the results of each row of the table below."""
    assert data.weak_labels is not None
    train, test = data.dataset("train", []), data.dataset("test", [])
    scenes = len(next(iter(results.values())))
    columns = 2 + len(results)
    first = train.read(0)[0]
    size = (2.6 * columns, 2.6 * first.shape[0] / first.shape[1] * (scenes + 1) + 0.6)
    figure, axes = plt.subplots(scenes + 1, columns, figsize=size, squeeze=False, layout="constrained")
    for number, (left, right) in enumerate(zip(axes[0, ::2], axes[0, 1::2], strict=False)):
        image, mask, name = train.read(number)
        assert mask is not None
        left.imshow(image)
        right.imshow(drawn_on(image, data.weak_labels(mask, name, data.ignore_index), data.colours))
        left.set_title("trained on")
    for number, row in enumerate(axes[1:]):
        image, mask, _ = test.read(number)
        assert mask is not None
        pictures = {"tested on": image, "truth": paint(torch.from_numpy(mask), data.colours)}
        pictures |= {title: paint(labels[number], data.colours) for title, labels in results.items()}
        for axis, (title, picture) in zip(row, pictures.items(), strict=True):
            axis.imshow(picture)
            axis.set_title(title if number == 0 else "")
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=60)
    plt.close(figure)


def draw_kinds(path: Path, scenes: int = 3) -> None:
    """Some street scenes with each kind of weak labels."""
    data = SyntheticStreets()
    figure, axes = plt.subplots(scenes, 2 + len(KINDS), figsize=(18, 2.05 * scenes + 0.3), layout="constrained")
    for number, row in enumerate(axes):
        image, mask, name = data.dataset("train", []).read(number)
        assert mask is not None
        pictures = {"image": image, "mask": paint(torch.from_numpy(mask), data.colours)}
        pictures |= {title: drawn_on(image, weak(mask, name, 255), data.colours) for title, weak in KINDS.items()}
        for axis, (title, picture) in zip(row, pictures.items(), strict=True):
            axis.imshow(picture)
            axis.set(xticks=[], yticks=[])
            axis.set_title(title if number == 0 else "", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=60)
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("outputs/weak_labels.png"))
    draw_kinds(parser.parse_args().output)
