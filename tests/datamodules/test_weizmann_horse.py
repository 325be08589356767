"""The Weizmann Horse database: split, faults of the files, and the real data where it is at hand."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from datamodules import WeizmannHorse
from datamodules.weizmann_horse import SAME_PHOTOGRAPH, SPLIT_FILE, WeizmannHorseDataset, make_split


def test_the_split_file_is_the_seeded_split() -> None:
    lines = [line.split() for line in SPLIT_FILE.read_text().splitlines() if not line.startswith("#")]
    split = {int(number): part for number, part in lines}
    assert split == make_split()
    assert Counter(split.values()) == {"train": 150, "val": 50, "test": 128}
    assert all(split[copy] == split[first] for copy, first in SAME_PHOTOGRAPH.items())


def test_image_comes_to_the_size_of_its_grey_mask(tmp_path: Path) -> None:
    for folder in ("rgb", "figure_ground"):
        (tmp_path / folder).mkdir()
    Image.fromarray(np.full((40, 60, 3), 90, dtype=np.uint8)).save(tmp_path / "rgb" / "horse001.jpg")
    mask = np.zeros((20, 30), dtype=np.uint8)
    mask[5:15, 5:25] = 255
    Image.fromarray(mask).save(tmp_path / "figure_ground" / "horse001.jpg")
    sample = WeizmannHorseDataset(tmp_path, [1])[0]
    assert sample["image"].shape == (3, 20, 30)
    assert torch.equal(sample["mask"], torch.from_numpy(mask > 0).long())


def test_a_missing_folder_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="weizmann_horse_db/rgb is missing: download"):
        WeizmannHorse(root=str(tmp_path)).train_dataloader()


def test_real_data(data_root: Path) -> None:
    if not (data_root / "weizmann_horse_db").is_dir():
        pytest.skip("no Weizmann Horse data set")
    data = WeizmannHorse(root=str(data_root))
    share = []
    for split, size in (("train", 150), ("val", 50), ("test", 128)):
        dataset = data.dataset(split, [])
        assert len(dataset) == size
        for sample in dataset:
            assert sample["image"].shape[1:] == sample["mask"].shape
            assert sample["mask"].max() == 1
            share.append(float(sample["mask"].float().mean()))
    assert np.mean(share) == pytest.approx(0.25, abs=0.03)
