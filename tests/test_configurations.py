"""Every shipped configuration runs fit, then test, on tiny data."""

from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor, nn

from crfgrad import (
    CRF,
    BilateralPotential,
    GaussianBilateralPotential,
    GaussianSpatialPotential,
    SpatialPotential,
)
from experiments import demo
from lightning_modules import SegmentationModule
from tests.command_line import QUIET, ROOT, SMALL, STREETS, TINY, read_metrics, run, streets_on_two
from tests.tiny_data import tiny_data

DENSE = ROOT / "experiments" / "heads" / "dense_crf.yaml"
HEADS = sorted(set((ROOT / "experiments" / "heads").glob("*.yaml")) - {DENSE})
CLUSTER = ROOT / "experiments" / "cluster.yaml"
DEMO = ROOT / "experiments" / "synthetic_streets" / "demo.yaml"
SWEEPS = set((ROOT / "experiments" / "sweeps").glob("*.yaml"))  # test_sweep.py has them
SCRIBBLES = sorted((ROOT / "experiments" / "scribbles").glob("*.yaml"))
SCHEDULES = sorted((ROOT / "experiments").rglob("second_stage.yaml"))
ALONE = sorted((ROOT / "experiments").rglob("head_alone.yaml"))
OTHERS = {*HEADS, *SWEEPS, *SCHEDULES, *SCRIBBLES, *ALONE, DENSE, DEMO}
NETWORKS = sorted(set((ROOT / "experiments").glob("*/*.yaml")) - OTHERS)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The checkpoint of a network, trained on street scenes for an epoch."""
    output = tmp_path_factory.mktemp("network")
    run("fit", f"--config={STREETS}", *TINY, f"--output={output}", "--name=run")
    return str(output / "run" / "version_0" / "checkpoints" / "best.ckpt")


def fit_and_test(output: Path, *arguments: str) -> dict[str, torch.Tensor]:
    """Trains, then tests by what the run has left in its folder."""
    run("fit", *arguments, *QUIET, f"--output={output}", "--name=run")
    folder = output / "run" / "version_0"
    best = f"--ckpt_path={folder / 'checkpoints' / 'best.ckpt'}"
    tested = run("test", f"--config={folder / 'config.yaml'}", best, "--name=test")
    assert (output / "test" / "version_0" / "pictures" / "predictions_test.png").is_file()
    return tested.trainer.callback_metrics


@pytest.mark.parametrize("configuration", NETWORKS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_network(configuration: Path, tmp_path: Path) -> None:
    metrics = fit_and_test(tmp_path, f"--config={configuration}", *tiny_data(configuration, tmp_path / "data"))
    assert 0 <= metrics["test/miou"] <= 1
    assert "test/energy" not in metrics


@pytest.mark.parametrize("head", HEADS, ids=lambda path: path.stem)
def test_every_head_behind_the_network(head: Path, network: str, tmp_path: Path) -> None:
    given = [f"--config={STREETS}", f"--config={head}", f"--model.init_args.unary_checkpoint={network}"]
    metrics = fit_and_test(tmp_path, *given, *tiny_data(STREETS, tmp_path))
    for name in ("test/miou", "test/miou_network", "test/trimap_miou", "test/energy", "test/energy_network"):
        assert torch.isfinite(metrics[name])
    pictures = {path.name.split("_")[0] for path in (tmp_path / "run" / "version_0" / "pictures").iterdir()}
    assert pictures == ({"predictions"} if head.stem == "unary" else {"predictions", "filters"})


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda path: path.parent.name)
def test_every_schedule_of_a_head(schedule: Path, network: str, tmp_path: Path) -> None:
    head = ROOT / "experiments" / "heads" / "full.yaml"
    given = [f"--config={STREETS}", f"--config={head}", *TINY]
    given += ["--model.init_args.scheduler=torch.optim.lr_scheduler.ConstantLR"]  # such as a network may have
    given += [f"--config={schedule}"]  # it has the last word
    trained = run("fit", *given, f"--model.init_args.unary_checkpoint={network}", f"--output={tmp_path}")
    asked = yaml.safe_load(schedule.read_text())
    settings = asked.get("model", {"init_args": {}})["init_args"]
    assert {name: trained.model.hparams[name] for name in settings} == settings
    assert trained.trainer.max_epochs == asked["trainer"]["max_epochs"] > 1
    rates = [trained.model.hparams[name] for name in ("learning_rate", "head_learning_rate")]
    rates += settings.get("potential_learning_rates", {}).values()
    scheduled = "scheduler" not in settings
    assert len(trained.trainer.lr_scheduler_configs) == scheduled
    assert [group.get("initial_lr", group["lr"]) for group in trained.trainer.optimizers[0].param_groups] == rates


@pytest.mark.parametrize("schedule", ALONE, ids=lambda path: path.parent.name)
def test_every_head_alone(schedule: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    network, head = schedule.parent / "lite0.yaml", ROOT / "experiments" / "heads" / "spatial.yaml"
    given = [f"--config={path}" for path in (network, head, schedule)] + tiny_data(network, tmp_path / "data")
    with caplog.at_level("INFO"):
        trained = run("fit", *given, *QUIET, f"--output={tmp_path}")
    assert "The head trains on kept logits of" in caplog.text
    asked = yaml.safe_load(schedule.read_text())
    assert asked["model"]["init_args"]["freeze_network_epochs"] == asked["trainer"]["max_epochs"]
    assert not trained.trainer.lr_scheduler_configs


PAPER = {"weizmann_horse/fcn8s": (1e-3, 5e-3), "nyu_v2/fcn8s": (3.07e-6, 1.63e-8), "cityscapes/lrr4x": (1e-3, 5e-3)}
"""Rate and weight decay of the paper, where the loss is a mean."""


@pytest.mark.parametrize("slope", [0.0, 1.0])
@pytest.mark.parametrize("name", PAPER)
def test_a_crf_moves_as_at_the_rates_of_the_paper(name: str, slope: float) -> None:
    rate, decay = PAPER[name]
    settings = yaml.safe_load((ROOT / "experiments" / f"{name}.yaml").read_text())["model"]["init_args"]
    own = ("head_learning_rate", "head_weight_decay", "potential_learning_rates")
    kinds = [SpatialPotential, BilateralPotential, GaussianSpatialPotential, GaussianBilateralPotential]
    module = SegmentationModule(
        num_classes=2,
        network=lambda classes: nn.Conv2d(3, classes, 1),
        head=lambda classes: CRF(classes, kinds).double(),
        optimizer=partial(torch.optim.SGD, lr=1.0),
        **{key: settings[key] for key in own},
    )
    parts = {f"{name}.": part for name, part in module.head.named_modules() if hasattr(part, "unit")}  # type: ignore[union-attr]

    def acting() -> dict[str, Tensor]:
        """The parameters in units of what acts, as the paper has them."""
        return {
            name: parameter / next((part.unit for prefix, part in parts.items() if name.startswith(prefix)), 1.0)
            for name, parameter in module.head.named_parameters()  # type: ignore[union-attr]
        }

    before = acting()
    optimizer = module.configure_optimizers()
    (slope * torch.stack([each.sum() for each in before.values()]).sum()).backward()
    optimizer.step()
    assert len(parts) == 3
    for parameter, value in acting().items():
        expected = -rate * (slope + decay * before[parameter])
        assert torch.allclose(value - before[parameter], expected, rtol=5e-3, atol=0), parameter


@pytest.mark.parametrize("configuration", SCRIBBLES, ids=lambda path: path.stem)
def test_learning_from_scribbles(configuration: Path, tmp_path: Path) -> None:
    given = [STREETS, configuration, ROOT / "experiments" / "scribbles" / "partial.yaml"]
    data = [*tiny_data(STREETS, tmp_path), "--trainer.log_every_n_steps=1"]
    if configuration.stem != "partial":
        data += ["--model.init_args.regularizer.init_args.from_epoch=0"]
    metrics = fit_and_test(tmp_path, *(f"--config={path}" for path in given), *data)
    assert 0 <= metrics["test/miou"] <= 1
    rows = read_metrics(tmp_path / "run" / "version_0")
    assert any(row.get("train/regularizer") for row in rows) == (configuration.stem != "partial")


def test_the_dense_crf_behind_the_network(network: str, tmp_path: Path) -> None:
    given = [f"--config={STREETS}", f"--config={DENSE}", f"--model.init_args.unary_checkpoint={network}"]
    run_again = [*given, *TINY, f"--output={tmp_path}", "--untrained=true"]
    metrics = run("test", *run_again).trainer.callback_metrics
    assert metrics["test/miou"] != metrics["test/miou_network"]
    with pytest.raises(ValueError, match="DenseCRFHead has nothing to learn"):
        run("fit", *given, *TINY, f"--output={tmp_path}")
    alone = run("test", f"--config={STREETS}", *TINY, f"--output={tmp_path}", f"--ckpt_path={network}")
    assert metrics["test/miou_network"] == alone.trainer.callback_metrics["test/miou"]


def test_the_cluster_on_this_machine(tmp_path: Path) -> None:
    here = [
        "--trainer.num_nodes=1",
        "--trainer.devices=2",
        "--trainer.sync_batchnorm=false",
        "--data.init_args.workers=0",
    ]
    streets_on_two("fit", tmp_path, f"--config={CLUSTER}", *QUIET, *here)
    assert (tmp_path / "two" / "version_0" / "checkpoints" / "best.ckpt").is_file()


def test_a_head_on_other_data(tmp_path: Path) -> None:
    configuration = ROOT / "experiments" / "folder" / "network.yaml"
    head = ROOT / "experiments" / "heads" / "full.yaml"
    data = tiny_data(configuration, tmp_path / "data")
    crop = '--data.init_args.train_transforms=[{"class_path": "albumentations.RandomCrop", "init_args": '
    crop += '{"height": 32, "width": 40}}]'
    metrics = fit_and_test(tmp_path, f"--config={configuration}", f"--config={head}", *data, crop)
    assert torch.isfinite(metrics["test/energy"])


def test_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = demo.main(tmp_path, [*QUIET, *SMALL, "--data.init_args.batch_size=2"])
    assert len(rows) == 3
    printed = capsys.readouterr().out
    for name, metrics in rows.items():
        line = next(line for line in printed.splitlines() if line.startswith(f"{name}  "))
        assert f"{100 * metrics['test/miou']:.1f}" in line
    paths = [line.strip() for line in printed.splitlines() if line.startswith("  ")]
    assert len(paths) == 7  # three panels, and two kinds of filters of two heads
    assert all(Path(path).is_file() for path in paths)


def test_each_one_begins_with_its_command() -> None:
    configurations = set((ROOT / "experiments").rglob("*.yaml")) - SWEEPS
    tested_above = {*HEADS, *NETWORKS, *SCHEDULES, *SCRIBBLES, *ALONE, DEMO, DENSE, CLUSTER}
    assert configurations == tested_above
    for path in configurations:
        assert isinstance(yaml.safe_load(path.read_text()), dict)
        command = path.read_text().splitlines()[0]
        starts = ("# python main.py fit --config experiments/", "# python main.py test ", "# python -m experiments.")
        assert command.startswith(starts)
        assert path == DEMO or f"experiments/{path.relative_to(ROOT / 'experiments')}" in command
