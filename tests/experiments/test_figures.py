"""Figures of tiny runs show the numbers of the solvers and of a plain confusion matrix."""

import csv
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from crfgrad import MeanField, ProjectedGradient
from experiments.figures.__main__ import main
from experiments.figures.curves import measure
from experiments.figures.pictures import draw_strongest
from experiments.figures.runs import Run, initial_crf, load_run
from lightning_modules.callbacks import FilterPictures
from tests.command_line import ROOT, streets

HEADS = {"full": "projected gradient", "full_mean_field": "mean field"}
ITERATIONS = 7
PICTURES = ["filters_0_SpatialPotential", "filters_1_BilateralPotential", "filters_1_BilateralPotential_change"]
PICTURES += ["energy", "miou", "states", "states_of_one_class", "results"]
FILES = [f"{name}.{suffix}" for name in PICTURES for suffix in ("pdf", "png")]
FILES += ["curves.csv", "classes.csv", "classes.md"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of a run with projected gradient and of one with mean field, one epoch each."""
    folders = []
    quick = ["--name=run", "--trainer.num_sanity_val_steps=0"]
    with patch.object(FilterPictures, "on_fit_end"):  # these take longer than the training
        for head in HEADS:
            output = tmp_path_factory.mktemp(head)
            streets("fit", output, f"--config={ROOT / 'experiments' / 'heads' / head}.yaml", *quick)
            folders.append(output / "run" / "version_0")
    return folders


@pytest.fixture(autouse=True)
def _no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["figures"])  # or Lightning warns of pytest's own


def load(folder: Path) -> Run:
    return load_run(folder / "config.yaml", folder / "checkpoints" / "best.ckpt")


def plain_iou(pairs: list[tuple[Tensor, Tensor]], num_classes: int) -> np.ndarray:
    """IoU of each class from a confusion matrix, NaN for a class that is nowhere."""
    confusion = np.zeros((num_classes, num_classes))
    for labels, mask in pairs:
        np.add.at(confusion, (mask.numpy().ravel(), labels.numpy().ravel()), 1)
    union = confusion.sum(0) + confusion.sum(1) - confusion.diagonal()
    return np.where(union > 0, confusion.diagonal() / np.maximum(union, 1), np.nan)


def test_a_run_is_loaded_as_it_was_saved(folders: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    runs = sorted(folders[0].parent.iterdir())
    run = load(folders[0])
    saved = torch.load(folders[0] / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    loaded = run.module.state_dict()
    assert all(torch.equal(loaded[key], value) for key, value in saved.items())
    assert not run.module.training
    before = initial_crf(folders[0] / "config.yaml").potentials[0].kernel()
    assert before.abs().max() == 0 < run.crf.potentials[0].kernel().abs().max()
    assert len(list(run.samples(None))) == 3
    assert len(list(run.samples(2))) == 2
    assert sorted(folders[0].parent.iterdir()) == runs  # loading leaves no run behind
    assert capsys.readouterr().out == ""


@torch.no_grad()
def test_all_figures_with_the_right_numbers(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.figures.pictures.MOST_LABELS", 3)  # 64 small pictures take long to draw
    drawn = main(
        folders[0] / "config.yaml",
        folders[0] / "checkpoints" / "best.ckpt",
        tmp_path,
        beside=folders[1:],
        iterations=ITERATIONS,
        rows=2,
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    assert list(drawn) == [f"trained with {solver}" for solver in HEADS.values()]
    for folder, curves in zip(folders, drawn.values(), strict=True):
        run = load(folder)
        own, other = curves
        kinds = [ProjectedGradient, MeanField]
        assert [type(own.solver), type(other.solver)] == (kinds if folder is folders[0] else kinds[::-1])
        assert (own.trained, other.trained) == (5, None)
        for curve in curves:
            run.crf.solver = type(curve.solver)(ITERATIONS).eval()
            energies, labelled = [], []
            for image, mask in run.samples(None):
                logits = run.module.network(image)
                energy, start = run.crf.energy(logits, image), run.crf.initial(logits)
                energies.append(run.crf.solver.energies(energy, start)[:, 0] / (48 * 64))
                labelled.append([(q.argmax(1), mask) for q in run.crf.trajectory(logits, image)])
            assert torch.allclose(curve.energies, torch.stack(energies, dim=1), rtol=1e-5)
            for t, pairs in enumerate(zip(*labelled, strict=True)):
                iou = plain_iou(list(pairs), 8)
                assert np.allclose(curve.iou[t], iou, atol=1e-6, equal_nan=True)
                assert float(curve.miou[t]) == pytest.approx(np.nanmean(iou), abs=1e-6)

    with (tmp_path / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * (ITERATIONS + 1)
    own = drawn["trained with projected gradient"][0]
    assert [float(row["miou"]) for row in rows[: ITERATIONS + 1]] == pytest.approx(own.miou.tolist(), abs=1e-5)
    with (tmp_path / "classes.csv").open() as file:
        classes = list(csv.DictReader(file))
    assert [row["class"] for row in classes] == [*load(folders[0]).module.class_names, "mean"]
    for row, before, after in zip(classes, own.iou[0].tolist(), own.iou[5].tolist(), strict=False):
        found = [float(row[key]) for key in ("network", "network + CRF", "difference")]
        assert found == pytest.approx([100 * before, 100 * after, 100 * (after - before)], abs=1e-3, nan_ok=True)
    assert float(classes[-1]["network + CRF"]) == pytest.approx(100 * float(own.miou[5]), abs=1e-3)
    assert (tmp_path / "classes.md").read_text().count("\n") == 2 + 8 + 1


def test_the_curve_ends_in_the_metrics_of_main(folders: list[Path], tmp_path: Path) -> None:
    head = f"--config={ROOT / 'experiments' / 'heads' / 'full.yaml'}"
    checkpoint = folders[0] / "checkpoints" / "best.ckpt"
    tested = streets("test", tmp_path, head, f"--ckpt_path={checkpoint}").trainer.callback_metrics
    own, _ = measure(load(folders[0]), iterations=5)
    assert float(own.miou[5]) == pytest.approx(float(tested["test/miou"]), abs=1e-6)
    assert float(own.miou[0]) == pytest.approx(float(tested["test/miou_network"]), abs=1e-6)
    assert 48 * 64 * float(own.energies[5].mean()) == pytest.approx(float(tested["test/energy"]), rel=1e-5)


def test_what_is_refused(folders: list[Path], tmp_path: Path) -> None:
    config, checkpoint = folders[0] / "config.yaml", folders[0] / "checkpoints" / "best.ckpt"
    with pytest.raises(SystemExit, match=r"give the config\.yaml in the folder of a run"):
        main(tmp_path / "other.yaml", checkpoint, tmp_path)
    with pytest.raises(SystemExit, match="--label unicorn is none of the classes: give one of sky"):
        main(config, checkpoint, tmp_path, label="unicorn")
    with pytest.raises(SystemExit, match="works in tiles"):
        load_run(config, checkpoint, ["--model.init_args.head_tiling=lightning_modules.tiling.Tiling"])
    streets("fit", tmp_path)
    alone = tmp_path / "run" / "version_0"
    with pytest.raises(SystemExit, match="has no CRF as its head"):
        load(alone)


def test_of_many_labels_the_strongest_are_drawn() -> None:
    kernel = torch.zeros(20, 20, 5, 5)
    strong = [1, 4, 7, 19]
    for label in strong:
        kernel[label, label] = label
    figure = draw_strongest(kernel, [f"class {label}" for label in range(20)], "cost", "by position", most=4)
    assert [axis.get_ylabel() for axis in figure.axes[:16:4]] == [f"class {label}" for label in strong]


@pytest.mark.parametrize("numbers", [{"rows": 0}, {"iterations": 0}, {"images": 0}])
def test_nothing_to_draw_is_refused(numbers: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="give --rows, --iterations and --images of 1 or more"):
        main(tmp_path / "config.yaml", tmp_path / "best.ckpt", tmp_path, **numbers)
