"""Runs of the version before parameters had the unit of the message: they predict the same; old names are refused."""

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import yaml
from torch import Tensor

from lightning_modules import SegmentationModule
from lightning_modules.cli import LINKED
from lightning_modules.old_names import with_new_names
from tests.command_line import QUIET, run
from tests.recorded.make_old_run import DATA, FOLDER, NETWORK
from tests.tiny_data import tiny_data

NAMES = ["full", "full_gaussian"]


def difference(module: SegmentationModule, name: str) -> float:
    """How far a prediction is from the one of the old version."""
    recorded = torch.load(FOLDER / f"old_{name}.pt", weights_only=True)
    with torch.no_grad():
        probabilities: Tensor = module.eval()(recorded["image"])[1]
    return float((probabilities - recorded["probabilities"]).abs().max())


def settings(name: str) -> dict[str, Any]:
    """The model's part of the config.yaml that an old run has left, in old names."""
    stored = torch.load(FOLDER / f"old_{name}.ckpt", weights_only=True)["hyper_parameters"]
    own = {key: value for key, value in stored.items() if key[0] != "_" and key not in LINKED.values()}
    return {"model": {"class_path": "SegmentationModule", "init_args": own}}


def arguments(name: str, content: dict[str, Any], folder: Path) -> list[str]:
    """Arguments of main.py for a model of these settings, and the checkpoint of an old run."""
    (folder / "config.yaml").write_text(yaml.safe_dump(content))
    given = [f"--config={NETWORK}", f"--config={folder / 'config.yaml'}", *QUIET, *tiny_data(NETWORK, folder), *DATA]
    return [*given, f"--output={folder}", f"--ckpt_path={FOLDER / f'old_{name}.ckpt'}"]


@pytest.mark.parametrize("name", NAMES)
def test_the_checkpoint_of_an_old_run_predicts_the_same(name: str, tmp_path: Path) -> None:
    path = FOLDER / f"old_{name}.ckpt"
    assert difference(SegmentationModule.load_from_checkpoint(path, weights_only=True), name) < 1e-5
    with path.open("rb") as file:
        assert difference(SegmentationModule.load_from_checkpoint(file), name) < 1e-5
    tested = run("test", *arguments(name, with_new_names(settings(name)), tmp_path))
    assert torch.isfinite(tested.trainer.callback_metrics["test/energy"])
    assert difference(tested.model, name) < 1e-5


def test_a_second_stage_starts_from_the_network_of_an_old_run() -> None:
    path = FOLDER / "old_full.ckpt"
    stored = torch.load(path, weights_only=True)["state_dict"]
    module = SegmentationModule.load_from_checkpoint(path, unary_checkpoint=str(path))
    assert torch.equal(module.network.last.bias, stored["network.last.bias"])


def test_the_training_of_an_old_run_does_not_go_on(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"this training cannot go on: .* other units"):
        run("fit", *arguments("full", with_new_names(settings("full")), tmp_path))
    module = SegmentationModule.load_from_checkpoint(FOLDER / "old_full.ckpt")
    trainer = pl.Trainer(accelerator="cpu", logger=False, default_root_dir=tmp_path)
    images = torch.utils.data.DataLoader([{"image": torch.zeros(3, 8, 8)}])
    with pytest.raises(ValueError, match=r"this training cannot go on: .* other units"):
        trainer.fit(module, images, ckpt_path=FOLDER / "old_full.ckpt", weights_only=True)


def test_old_names_are_refused_with_the_new_ones(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^scale of BilateralPotential is an old name: write strength$"):
        run("test", *arguments("full", settings("full"), tmp_path))
    given = arguments("full", with_new_names(settings("full")), tmp_path)
    with pytest.raises(SystemExit, match=r"^scale of BilateralPotential is an old name: write strength$"):
        run("test", *given, "--model.init_args.head.init_args.potentials.init_args.scale=3")
    with pytest.raises(SystemExit, match=r"^Potential of crfgrad is an old name: write PairwisePotential$"):
        run("test", *given, '--model.init_args.head.init_args.potentials=[{"class_path": "crfgrad.Potential"}]')


def test_own_potentials_that_import_an_old_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_potential.py").write_text("from crfgrad import Potential\n\n\nclass Own(Potential): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    given = arguments("full", with_new_names(settings("full")), tmp_path)
    with pytest.raises(SystemExit, match=r"^Potential of crfgrad is an old name: write PairwisePotential$"):
        run("test", *given, '--model.init_args.head.init_args.potentials=[{"class_path": "own_potential.Own"}]')
