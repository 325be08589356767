"""Shared fixtures."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

# Tensors of the tests are tiny: a second thread gains nothing, and waits long where other programs run.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def data_root() -> Path:
    """The folder of real data sets; tests that need one skip where it is absent."""
    root = Path(os.environ.get("DATA_ROOT", "data"))
    if not root.is_dir():
        pytest.skip(f"no data sets: DATA_ROOT ({root}) is not a folder")
    return root


@pytest.fixture
def photograph(data_root: Path) -> Tensor:
    """A small real photograph: (3, 60, 80) colours 0..255."""
    path = data_root / "weizmann_horse_db" / "rgb" / "horse001.jpg"
    if not path.is_file():
        pytest.skip(f"no Weizmann Horse data set: {path} is missing")
    image = Image.open(path).convert("RGB").resize((80, 60), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image)).movedim(-1, 0).float()
