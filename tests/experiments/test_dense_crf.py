"""The dense CRF behind a network, with settings chosen on the validation split."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from experiments import dense_crf
from experiments.dense_crf import HEAD
from tests.command_line import ROOT, STREETS, TINY, run

GRID = ["--bilateral-sxy", "20", "--bilateral-srgb", "13", "--bilateral-compat", "0", "10", "--gaussian-compat", "3"]
GRID += ["--iterations", "2", "--rounds", "0", "--folds", "3", "--jobs", "1"]

KINDS = ("images", "probabilities", "truth")


def test_what_is_chosen_scores_as_promised_behind_the_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"--config={STREETS}", *TINY, "--untrained=true", "--seed_everything=1"]
    settings = dense_crf.main(tmp_path / "tuned", GRID, given)
    printed = capsys.readouterr().out
    for kind, suffix in (("images", "png"), ("probabilities", "npy"), ("truth", "png")):
        assert len(list((tmp_path / "tuned" / kind).glob(f"*.{suffix}"))) == 3
    maps, defaults, _ = map(float, next(x for x in printed.splitlines() if x.strip().startswith("all")).split()[2:5])
    head = f"--config={ROOT / 'experiments' / 'heads' / 'dense_crf.yaml'}"

    def behind(*values: str) -> dict[str, float]:
        validated = run("validate", *given, head, *values, f"--output={tmp_path}", "--name=run")
        return {name: value.item() for name, value in validated.trainer.callback_metrics.items()}

    found = behind(f"--{HEAD}iterations=5")
    assert maps == pytest.approx(100 * found["val/miou_network"], abs=0.02)
    assert defaults == pytest.approx(100 * found["val/miou"], abs=0.02)
    chosen = behind(*(f"--{HEAD}{name}={value}" for name, value in settings.items()))
    reached = re.search(r"where it has (\S+):", printed)
    assert reached
    assert 100 * chosen["val/miou"] == pytest.approx(float(reached[1]), abs=0.02)
    assert chosen["val/miou"] != found["val/miou"]
    assert f"--{HEAD}bilateral_compat={settings['bilateral_compat']}" in printed


def test_a_split_at_the_size_of_the_network(tmp_path: Path) -> None:
    """Masks are resized with their images, and what an earlier run has left is neither read nor written again."""
    resized = tmp_path / "resized.yaml"
    resize = "{class_path: albumentations.Resize, init_args: {height: 24, width: 32}}"
    resized.write_text(f"data: {{init_args: {{eval_transforms: [{resize}]}}}}\n")
    given = [f"--config={STREETS}", f"--config={resized}", *TINY, "--untrained=true", "--seed_everything=1"]
    given += ["--data.init_args.eval_batch_size=1"]  # or the last bits depend on which images are together
    dense_crf.main(tmp_path, GRID, [*given, "--data.init_args.val_size=4"])
    before = {path: path.stat().st_mtime_ns for kind in KINDS for path in (tmp_path / kind).iterdir()}
    assert len(before) == 12
    listed = dense_crf.write_split(tmp_path, given)
    assert listed.read_text().split() == sorted(path.name for path in (tmp_path / "truth").iterdir())[:3]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    sizes = {Image.open(path).size for path in before if path.suffix == ".png"}
    assert sizes == {(32, 24)}


def test_unlabelled_pixels_are_written_as_255(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = torch.tensor([[[0, 1, -100], [1, 0, -100]]])
    batch = {"image": torch.zeros(1, 3, 2, 3), "mask": mask, "name": ["a"]}
    data = SimpleNamespace(ignore_index=-100, num_classes=2, val_dataloader=lambda: [batch])
    model = torch.nn.Module()
    model.forward = lambda image: (None, torch.full((1, 2, *image.shape[2:]), 0.5))
    monkeypatch.setattr(dense_crf, "run_main", lambda _: SimpleNamespace(model=model, datamodule=data))
    dense_crf.write_split(tmp_path, [])
    np.testing.assert_array_equal(Image.open(tmp_path / "truth" / "a.png"), [[0, 1, 255], [1, 0, 255]])
