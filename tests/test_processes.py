"""Runs on several processes, and runs that are killed."""

import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from lightning_modules import SegmentationModule
from tests.command_line import ROOT, STREETS, TINY, read_metrics, run, start, streets, streets_on_two

FULL = f"--config={ROOT / 'experiments' / 'heads' / 'full.yaml'}"
METRICS = ("miou", "miou_network", "trimap_miou", "iou/road", "energy", "energy_network")


@pytest.fixture(scope="module")
def trained_on_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on two processes, with 7 scenes to validate and a network that is fixed at first."""
    output = tmp_path_factory.mktemp("two")
    given = [FULL, "--name=two", "--trainer.max_epochs=2", "--model.init_args.freeze_network_epochs=1"]
    streets_on_two("fit", output, *given, "--data.init_args.val_size=7", "--data.init_args.test_size=7")
    return output / "two" / "version_0"


def test_training_on_two_processes_measures_what_one_measures(trained_on_two: Path, tmp_path: Path) -> None:
    rows = [row for row in read_metrics(trained_on_two) if row["val/miou"]]
    last = f"--ckpt_path={trained_on_two / 'checkpoints' / 'last.ckpt'}"
    config = f"--config={trained_on_two / 'config.yaml'}"
    one = run("validate", config, last, f"--output={tmp_path}", "--trainer.devices=1", "--trainer.strategy=auto")
    assert len(rows) == 2
    for name in METRICS:
        assert one.trainer.callback_metrics[f"val/{name}"].item() == pytest.approx(float(rows[-1][f"val/{name}"]), 1e-5)


@pytest.mark.parametrize("command", ["validate", "test"])
def test_one_and_two_processes_measure_the_same(command: str, trained_on_two: Path, tmp_path: Path) -> None:
    """Seven scenes on two devices, in batches of 2: no scene may be repeated or left out."""
    given = [FULL, f"--ckpt_path={trained_on_two / 'checkpoints' / 'best.ckpt'}", "--data.init_args.eval_batch_size=2"]
    given += ["--data.init_args.val_size=7", "--data.init_args.test_size=7"]
    one = streets(command, tmp_path, *given).trainer.callback_metrics
    streets_on_two(command, tmp_path, *given, "--name=two")
    two = read_metrics(tmp_path / "two" / "version_0")[-1]
    stage = "val" if command == "validate" else "test"
    for name in METRICS:
        assert float(two[f"{stage}/{name}"]) == pytest.approx(one[f"{stage}/{name}"].item(), 1e-5)


BY_ALL = ["--data.init_args.train_size=4", "--data.init_args.train_transforms=[]", "--trainer.limit_val_batches=1"]
PLAIN = ["--model.init_args.optimizer=torch.optim.SGD", "--model.init_args.network.init_args.encoder_name=vgg11"]
PLAIN += ['--model.init_args.network.init_args.options={"decoder_dropout": 0.0}', "--model.init_args.learning_rate=0.1"]


@pytest.fixture(scope="module")
def whole_batch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Parameters after one step on all four scenes, without batch normalisation, which sees only its own process."""
    cli = streets("fit", tmp_path_factory.mktemp("one"), FULL, *BY_ALL, *PLAIN, "--data.init_args.batch_size=4")
    assert cli.trainer.global_step == 1
    return cli.model.state_dict()


@pytest.mark.parametrize("batch_size", [2, 1])
def test_two_processes_step_as_one_with_the_whole_batch(
    batch_size: int, whole_batch: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """Two scenes on each process, at once or one after the other by accumulation."""
    given = [f"--data.init_args.batch_size={batch_size}", f"--trainer.accumulate_grad_batches={2 // batch_size}"]
    streets_on_two("fit", tmp_path, FULL, "--name=two", *BY_ALL, *PLAIN, *given)
    saved = torch.load(tmp_path / "two" / "version_0" / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["global_step"] == 1
    start = streets("test", tmp_path, FULL, *PLAIN, "--untrained=true", "--trainer.limit_test_batches=1")
    changed = 0
    for name, before in start.model.state_dict().items():
        step, expected = saved["state_dict"][name] - before, whole_batch[name] - before
        assert (step - expected).abs().max() <= 1e-3 * expected.abs().max() + 1e-7, name
        changed += bool(expected.abs().max() > 0)
    assert changed > 20


def test_training_images_that_do_not_divide(tmp_path: Path) -> None:
    given = ["--data.init_args.train_size=5", "--data.init_args.batch_size=2", "--trainer.max_epochs=2"]
    streets_on_two("fit", tmp_path, *given)
    saved = torch.load(tmp_path / "two" / "version_0" / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["global_step"] == 2  # two scenes of three on each process, in each epoch


def test_the_last_checkpoint_is_the_last(tmp_path: Path) -> None:
    """Also where an epoch is worse than the one before, as with a rate that spoils the network."""
    given = ["--trainer.max_epochs=4", "--model.init_args.learning_rate=1.0"]
    folder = streets("fit", tmp_path, *given).trainer.loggers[0].log_dir
    scores = [float(row["val/miou"]) for row in read_metrics(Path(folder)) if row["val/miou"]]
    saved = {
        name: torch.load(Path(folder) / "checkpoints" / f"{name}.ckpt", weights_only=True) for name in ("best", "last")
    }
    assert saved["last"]["epoch"] == 3
    assert saved["best"]["epoch"] == scores.index(max(scores)) < 3


def test_too_few_images_for_the_processes(tmp_path: Path) -> None:
    streets_on_two("fit", tmp_path, "--data.init_args.train_size=6", "--data.init_args.batch_size=4")
    assert (tmp_path / "two" / "version_0" / "checkpoints" / "best.ckpt").is_file()


def test_a_resumed_run_knows_its_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the output is: here relative to the working folder."""
    monkeypatch.chdir(tmp_path)
    first = streets("fit", Path("outputs")).trainer
    last = Path("outputs") / "run" / "version_0" / "checkpoints" / "last.ckpt"
    spoil = ["--trainer.max_epochs=2", f"--ckpt_path={last}"]
    monkeypatch.setattr(SegmentationModule, "training_step", lambda self, *_: 1e9 * next(self.parameters()).sum())
    second = streets("fit", Path("outputs"), *spoil).trainer
    assert second.checkpoint_callback.best_model_score == first.checkpoint_callback.best_model_score
    assert torch.load(last.parent / "best.ckpt", weights_only=True)["epoch"] == 0
    assert torch.load(last, weights_only=True)["epoch"] == 1


def test_a_killed_run_resumes(tmp_path: Path) -> None:
    given = [f"--config={STREETS}", *TINY, "--trainer.max_epochs=3", "--data.init_args.train_size=12"]
    given += [f"--output={tmp_path}", "--trainer.log_every_n_steps=1"]
    process = start("fit", *given, "--name=run")
    folder = tmp_path / "run" / "version_0"
    last = folder / "checkpoints" / "last.ckpt"
    while not (last.is_file() and read_metrics(folder)[-1]["step"] > "5"):  # 6 steps are an epoch
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert [row for row in read_metrics(folder) if row["val/miou"]], "metrics of finished epochs are on the disk"
    shutil.copy(last, tmp_path / "killed.ckpt")
    unchanged = run("fit", *given, "--trainer.max_epochs=1", f"--ckpt_path={tmp_path / 'killed.ckpt'}")
    saved = torch.load(last, weights_only=True)["state_dict"]
    assert all(torch.equal(value, saved[key]) for key, value in unchanged.model.state_dict().items())
    resumed = run("fit", *given, "--name=run", f"--ckpt_path={last}")
    assert resumed.trainer.checkpoint_callback.best_model_path == str(folder / "checkpoints" / "best.ckpt")
    scores = [
        float(row["val/miou"])
        for row in read_metrics(folder) + read_metrics(folder.parent / "version_1")
        if row.get("val/miou")
    ]
    assert resumed.trainer.checkpoint_callback.best_model_score == pytest.approx(max(scores))
    whole = run("fit", *given, "--name=whole")
    assert resumed.trainer.current_epoch == whole.trainer.current_epoch == 3
    assert resumed.trainer.global_step == whole.trainer.global_step == 18
    for name in ("val/miou", "val/loss"):
        values = [run.trainer.callback_metrics[name] for run in (resumed, whole)]
        assert torch.isfinite(values[0])
        assert values[0] == pytest.approx(values[1].item(), abs=0.5 * max(values).item())


def test_a_head_alone_on_two_processes(tmp_path: Path) -> None:
    """They share the work of the network, and train and measure as one process does."""
    frozen = [FULL, "--name=two", "--model.init_args.freeze_network_epochs=3", "--trainer.max_epochs=2"]
    frozen += [f"--kept_logits.folder={tmp_path / 'logits'}", "--data.init_args.val_size=7"]
    streets_on_two("fit", tmp_path, *frozen)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "logits").glob("*.npz")}
    assert len(files) == 4
    folder = tmp_path / "two" / "version_0"
    rows = [row for row in read_metrics(folder) if row["val/miou"]]
    last, config = f"--ckpt_path={folder / 'checkpoints' / 'last.ckpt'}", f"--config={folder / 'config.yaml'}"
    alone = ["--trainer.devices=1", "--trainer.strategy=auto", f"--output={tmp_path}"]
    one = run("validate", config, last, *alone).trainer.callback_metrics
    for name in (*METRICS, "loss"):
        assert one[f"val/{name}"].item() == pytest.approx(float(rows[-1][f"val/{name}"]), rel=1e-4)
    resumed = run("fit", config, last, *alone, "--trainer.max_epochs=3")
    assert resumed.trainer.current_epoch == 3
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "logits").glob("*.npz")} == files
