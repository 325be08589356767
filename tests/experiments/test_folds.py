"""Out-of-fold logits: of networks that have not seen the image; a command that was stopped goes on."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from datamodules import SyntheticStreets
from datamodules.base import fold_of
from experiments import folds
from main import main as run_main
from tests.command_line import ROOT, STREETS, TINY, read_metrics, run

SMALL_DATA = ["--data.init_args.train_size=6", "--data.init_args.batch_size=2"]
HEAD = f"--config={ROOT / 'experiments' / 'heads' / 'spatial.yaml'}"


def test_folds_are_all_images_once() -> None:
    for count, number in ((10, 5), (11, 4), (7, 7), (150, 5)):
        parts = [list(fold_of(count, fold, number)) for fold in range(number)]
        assert [index for part in parts for index in part] == list(range(count))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    data = SyntheticStreets(height=16, width=16, train_size=7, batch_size=1, fold=(1, 3))
    seen = {name for batch in data.train_dataloader() for name in batch["name"]}
    assert seen == {f"street{index:07d}" for index in (0, 1, 4, 5, 6)}
    with pytest.raises(ValueError, match=r"fold \[3, 3\] is none: give \[k, n\]"):
        SyntheticStreets(fold=(3, 3))


def test_logits_are_of_networks_that_have_not_seen_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    head = tmp_path / "head.yaml"
    flip = [{"class_path": "albumentations.HorizontalFlip"}]
    data = {"class_path": "SyntheticStreets", "init_args": {"train_transforms": flip}}
    frozen = {"class_path": "SegmentationModule", "init_args": {"freeze_network_epochs": 1}}
    head.write_text(yaml.safe_dump({"model": frozen, "data": data}))
    given = [f"--config={STREETS}", *TINY, *SMALL_DATA]
    output = tmp_path / "folds"
    stopped = []

    def killed_once(arguments: list[str]) -> object:
        if arguments[0] == "fit" and "--name=fold_1" in arguments and not stopped:
            stopped.append(arguments)
            raise KeyboardInterrupt
        return run_main(arguments)

    monkeypatch.setattr(folds, "run_main", killed_once)
    with pytest.raises(KeyboardInterrupt):
        folds.main(3, output, head, given)
    first = {path: path.stat().st_mtime_ns for path in (output / "logits").glob("*.npz")}
    assert len(first) == 2
    logits = folds.main(3, output, head, given)
    assert {path: path.stat().st_mtime_ns for path in first} == first
    assert len(list(output.glob("fold_0/version_*"))) == 1  # not trained again
    assert len(list(logits.glob("*.npz"))) == 6
    for fold in range(3):
        checkpoint = output / f"fold_{fold}" / "version_0" / "checkpoints" / "best.ckpt"
        used = yaml.safe_load((checkpoint.parents[1] / "config.yaml").read_text())
        assert used["data"]["init_args"]["fold"] == [fold, 3]
        network = run("test", *given, f"--ckpt_path={checkpoint}", f"--output={tmp_path}").model.network.eval()
        for index in fold_of(6, fold, 3):
            sample = SyntheticStreets(height=48, width=64, train_size=6).dataset("train", [])[index]
            with torch.no_grad():
                expected = network(sample["image"][None])[0].numpy()
            with np.load(logits / f"{index:06d}.npz") as stored:
                assert stored["name"] == sample["name"]
                assert np.allclose(stored["logits"], expected, atol=1e-2)
    with pytest.raises(SystemExit, match="has logits for other arguments"):
        folds.main(2, output, head, given)

    train = [*given, HEAD, f"--config={head}", f"--kept_logits.folder={logits}", f"--output={tmp_path}"]
    whole = f"--model.init_args.unary_checkpoint={checkpoint}"
    with caplog.at_level("INFO"):
        trained = run("fit", *train, whole, "--name=head")
    assert "out-of-fold logits of 6 images" in caplog.text
    assert read_metrics(Path(trained.trainer.loggers[0].log_dir))
    (logits / "000004.npz").unlink()
    with pytest.raises(ValueError, match=r"lacks the out-of-fold logits of 1 images: run experiments\.folds"):
        run("fit", *train, whole, "--name=head")


def test_too_few_folds(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--folds is 1: give 2 or more"):
        folds.main(1, tmp_path, tmp_path / "head.yaml", [])
