"""The command line: every shipped configuration runs, runs resume, and contradictions are refused."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from datamodules import SyntheticStreets
from main import CLI, main

ROOT = Path(__file__).parents[1]
HEADS = sorted((ROOT / "experiments" / "heads").glob("*.yaml"))
STREETS = ROOT / "experiments" / "synthetic_streets" / "network.yaml"
TINY = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
TINY += [f"--data.init_args.{key}" for key in ("height=48", "width=64", "train_size=4", "val_size=3", "test_size=3")]
TINY += ["--data.init_args.batch_size=2", "--trainer.max_epochs=1", "--panels.images=1"]


def streets(command: str, output: Path, *arguments: str) -> CLI:
    return main([command, f"--config={STREETS}", *TINY, f"--output={output}", "--name=run", *arguments])


def read_metrics(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a network, trained for an epoch."""
    output = tmp_path_factory.mktemp("trained")
    streets("fit", output)
    return output / "run" / "version_0"


def test_a_run_has_its_folder(trained: Path) -> None:
    assert {"config.yaml", "metrics.csv", "checkpoints", "pictures"} <= {path.name for path in trained.iterdir()}
    assert {path.name for path in (trained / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    columns = set(read_metrics(trained)[0])
    assert {"val/miou", "val/trimap_miou", "val/iou/traffic light", "val/loss"} <= columns
    checkpoint = torch.load(trained / "checkpoints" / "best.ckpt", weights_only=True)
    assert checkpoint["hyper_parameters"]["num_classes"] == 8
    assert checkpoint["hyper_parameters"]["network"]["class_path"] == "lightning_modules.SMPNetwork"


@pytest.mark.parametrize("head", HEADS, ids=lambda path: path.stem)
def test_every_head_trains_and_tests_from_the_network(head: Path, trained: Path, tmp_path: Path) -> None:
    checkpoint = f"--model.init_args.unary_checkpoint={trained / 'checkpoints' / 'best.ckpt'}"
    cli = main(
        ["fit", f"--config={STREETS}", f"--config={head}", *TINY, f"--output={tmp_path}", "--name=run", checkpoint]
    )
    network = torch.load(trained / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    assert cli.model.head is not None
    assert set(network) == {key for key in cli.model.state_dict() if key.startswith("network.")}
    run = tmp_path / "run" / "version_0"
    best = f"--ckpt_path={run / 'checkpoints' / 'best.ckpt'}"
    tested = main(["test", f"--config={run / 'config.yaml'}", best, "--name=test"])
    metrics = tested.trainer.callback_metrics
    for name in ("test/miou", "test/miou_network", "test/trimap_miou", "test/energy", "test/energy_network"):
        assert torch.isfinite(metrics[name])
    assert (tmp_path / "test" / "version_0" / "pictures" / "predictions_test.png").is_file()
    header = head.read_text().splitlines()[0]
    assert header.startswith("# python main.py fit --config")


def test_the_solver_can_be_swapped_for_a_test(trained: Path, tmp_path: Path) -> None:
    streets("fit", tmp_path, f"--config={ROOT / 'experiments/heads/full.yaml'}", "--name=run")
    run = tmp_path / "run" / "version_0"
    given = ["test", f"--config={run / 'config.yaml'}", f"--ckpt_path={run / 'checkpoints/best.ckpt'}", "--name=test"]
    own = main(given).trainer.callback_metrics
    swap = ["--model.init_args.eval_solver=MeanField", "--model.init_args.eval_solver.init_args.iterations=9"]
    swapped = main([*given, *swap]).trainer.callback_metrics
    assert own["test/energy_network"] == swapped["test/energy_network"]
    assert own["test/energy"] < swapped["test/energy"]


def test_what_is_refused(trained: Path, tmp_path: Path) -> None:
    best = trained / "checkpoints" / "best.ckpt"
    with pytest.raises(SystemExit, match="test needs a trained model: give --ckpt_path"):
        streets("test", tmp_path)
    with pytest.raises(SystemExit, match=r"there is no checkpoint nowhere\.ckpt"):
        streets("test", tmp_path, "--ckpt_path=nowhere.ckpt")
    other = "--model.init_args.network.init_args.arch=unet"
    with pytest.raises(SystemExit, match=r"model\.network\.init_args\.arch is fpn there and unet here"):
        streets("test", tmp_path, f"--ckpt_path={best}", other)
    with pytest.raises(SystemExit, match=r"model\.learning_rate is 0\.001 there and 0.5 here"):
        streets("fit", tmp_path, f"--ckpt_path={best}", "--model.init_args.learning_rate=0.5")
    assert streets("test", tmp_path, "--untrained=true").trainer.callback_metrics["test/miou"] >= 0


def test_predict_writes_files_of_the_original_sizes(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    sizes = {"wide": (50, 90), "tall": (77, 41)}
    for name, (height, width) in sizes.items():
        pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{name}.jpg")
    given = [
        f"--ckpt_path={trained / 'checkpoints/best.ckpt'}",
        f"--data.init_args.predict_images={tmp_path / 'images'}",
    ]
    streets("predict", tmp_path, *given, "--writer.probabilities=true")
    folder = tmp_path / "run" / "version_0" / "predictions"
    for name, (height, width) in sizes.items():
        labels = Image.open(folder / "labels" / f"{name}.png")
        assert labels.size == Image.open(folder / "overlays" / f"{name}.png").size == (width, height)
        probabilities = np.load(folder / "probabilities" / f"{name}.npy")
        assert probabilities.shape == (8, height, width)
        assert np.array_equal(np.array(labels), probabilities.astype(np.float32).argmax(0)) or labels.mode == "P"
        assert np.array(labels).max() < 8


def test_a_killed_run_resumes(tmp_path: Path) -> None:
    slow = [*TINY, "--trainer.max_epochs=3", "--data.init_args.train_size=12", f"--output={tmp_path}", "--name=run"]
    command = [sys.executable, "main.py", "fit", f"--config={STREETS}", *slow]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    last = tmp_path / "run" / "version_0" / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + 120
    while not last.is_file() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)  # into the next epoch
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    resumed = main(["fit", f"--config={STREETS}", *slow, f"--ckpt_path={last}"])
    assert resumed.trainer.current_epoch == 3
    assert torch.isfinite(resumed.trainer.callback_metrics["val/miou"])
    whole = main(["fit", f"--config={STREETS}", *slow, "--name=whole"])
    for name in ("val/miou", "val/loss"):
        values = [run.trainer.callback_metrics[name].item() for run in (resumed, whole)]
        assert values[0] == pytest.approx(values[1], abs=0.5 * max(values))


def test_one_and_two_processes_measure_the_same(trained: Path, tmp_path: Path) -> None:
    """Seven test scenes on two devices: the sampler must not repeat one."""
    uneven = [f"--ckpt_path={trained / 'checkpoints/best.ckpt'}", "--data.init_args.test_size=7"]
    uneven += ["--data.init_args.eval_batch_size=2"]
    one = streets("test", tmp_path, *uneven).trainer.callback_metrics
    command = [sys.executable, "main.py", "test", f"--config={STREETS}", *TINY, f"--output={tmp_path}", "--name=two"]
    command += [*uneven, "--trainer.devices=2", "--trainer.strategy=ddp"]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, capture_output=True)
    two = read_metrics(tmp_path / "two" / "version_0")[-1]
    for name in ("test/miou", "test/trimap_miou", "test/iou/road"):
        assert float(two[name]) == pytest.approx(one[name].item(), abs=1e-6)


def test_scenes_of_the_splits_differ() -> None:
    data = SyntheticStreets(height=48, width=64)
    first = [data.dataset(split, [])[0]["image"] for split in ("train", "val", "test")]
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[1], first[2])
    assert torch.equal(first[0], SyntheticStreets(height=48, width=64).dataset("train", [])[0]["image"])


def test_configurations_are_plain_yaml() -> None:
    for path in (ROOT / "experiments").rglob("*.yaml"):
        assert isinstance(yaml.safe_load(path.read_text()), dict)
