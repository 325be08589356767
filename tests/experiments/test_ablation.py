"""A whole ablation on tiny street scenes: it resumes, refuses other settings, and its numbers are right."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import yaml
from scipy import stats

import main as entry
from crfgrad import FrankWolfe, MeanField, ProjectedGradient
from experiments.ablation import loop, report, runs, settings, widths
from experiments.ablation.__main__ import main, read_grid
from experiments.ablation.plan import Plan
from experiments.ablation.rows import HEADS, NETWORK, Row, find_rows
from experiments.files import duration
from lightning_modules.callbacks import FilterPictures
from tests.command_line import ROOT, STREETS, TINY, run

STRENGTHS = "bilateral.strength=0,5"
ROWS = ["network", "full_gaussian", "full"]
GRID = ["spatial.sigma=2", "spatial.strength=1", "bilateral.sigma_xy=4,40", "bilateral.sigma_rgb=9", STRENGTHS]
Calls = list[list[str]]


def asked(output: Path, *further: str, rows: list[str] = ROWS, seeds: str = "01") -> list[str]:
    """The arguments of an ablation on tiny scenes."""
    varied = [part for text in GRID for part in ("--vary", text)]
    given = ["--config", str(STREETS), "--output", str(output), "--seeds", *seeds, "--rows", *rows]
    return [*given, *varied, "--", *TINY, "--panels.images=0", *further]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of an ablation of three rows and two seeds."""
    output = tmp_path_factory.mktemp("ablation")
    with patch.object(FilterPictures, "on_fit_end"):  # other tests look at them; they would take half of the time
        main(asked(output))
        yield output


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The calls of main.py from here on."""
    made: Calls = []
    for module in (runs, widths):
        monkeypatch.setattr(module, "run_main", lambda given: made.append(given) or entry.main(given))
    return made


def result(output: Path, row: str, seed: int) -> dict[str, Any]:
    return json.loads((output / f"seed_{seed}" / row / "result.json").read_text())


def configuration(output: Path, row: str, seed: int) -> dict[str, Any]:
    return yaml.safe_load((output / f"seed_{seed}" / row / "version_0" / "config.yaml").read_text())


def read_table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_result_is_that_of_the_best_checkpoint_with_either_solver(finished: Path, tmp_path: Path) -> None:
    folder = finished / "seed_1" / "full" / "version_0"
    given = [f"--config={folder / 'config.yaml'}", f"--ckpt_path={folder / 'checkpoints' / 'best.ckpt'}"]
    own = run("test", *given, f"--output={tmp_path}").trainer.callback_metrics
    other = ["--model.init_args.eval_solver=MeanField", f"--output={tmp_path}"]
    switched = run("test", *given, *other).trainer.callback_metrics["test/energy"].item()
    best = str(finished / "seed_1" / "network" / "version_0" / "checkpoints" / "best.ckpt")
    config = configuration(finished, "full", 1)
    assert (config["model"]["init_args"]["unary_checkpoint"], config["seed_everything"]) == (best, 1)
    assert len({result(finished, row, seed)["metrics"]["loss"] for row in ROWS for seed in (0, 1)}) == 6
    metrics, solvers = (result(finished, "full", 1)[key] for key in ("metrics", "solvers"))
    for name in ("miou", "trimap_miou", "energy", "energy_network", "iou/road"):
        assert metrics[name] == pytest.approx(own[f"test/{name}"].item(), rel=1e-5)
    assert (solvers["solver"], solvers["switched_solver"]) == ("ProjectedGradient", "MeanField")
    assert [len(solvers[key]) for key in ("own", "switched")] == [3, 3]
    assert np.mean(solvers["own"]) == pytest.approx(metrics["energy"], rel=1e-5)
    assert np.mean(solvers["switched"]) == pytest.approx(switched, rel=1e-5)
    assert metrics["energy"] != pytest.approx(switched, rel=1e-5)
    back, none = loop.switched(MeanField(7)), loop.switched(FrankWolfe())
    assert (type(back), back.iterations if back else 0, none) == (ProjectedGradient, 7, None)


def test_widths_are_the_best_of_the_grid(finished: Path, tmp_path: Path) -> None:
    lines = read_table(finished / "seed_0" / "full_gaussian" / "widths.csv")
    scores = [float(line.pop("val/miou")) for line in lines]
    points = [{name: float(value) for name, value in line.items()} for line in lines]
    best = f"--model.init_args.unary_checkpoint={finished / 'seed_0/network/version_0/checkpoints/best.ckpt'}"
    by_main = []
    for point in points:
        widths.write_head(Row("full_gaussian", HEADS / "full_gaussian.yaml"), point, tmp_path / "head.yaml")
        given = [f"--config={STREETS}", f"--config={tmp_path / 'head.yaml'}", *TINY, best, f"--output={tmp_path}"]
        by_main.append(run("validate", *given, "--untrained=true").trainer.callback_metrics["val/miou"].item())
    assert scores == pytest.approx(by_main, abs=1e-6)
    assert len({tuple(point.values()) for point in points}) == 4
    assert by_main[0] == max(by_main) > min(by_main)
    assert result(finished, "full_gaussian", 0)["widths"] == points[0]
    potentials = configuration(finished, "full_gaussian", 0)["model"]["init_args"]["head"]["init_args"]["potentials"]
    trained = {"spatial": potentials[0]["init_args"], "bilateral": potentials[1]["init_args"]}
    assert {name: trained[name.split(".")[0]][name.split(".")[1]] for name in points[0]} == points[0]


def test_only_what_is_missing_runs_again(finished: Path, calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    before = main(asked(finished))
    assert main(["--output", str(finished), "--report_only"]) == before
    assert calls == []
    shutil.rmtree(finished / "seed_1" / "full")
    (finished / "seed_0" / "full" / "result.json").unlink()
    shutil.rmtree(finished / "seed_0" / "full" / "version_0" / "checkpoints")  # as if killed in its first epoch
    metrics = result(finished, "full_gaussian", 1)["metrics"]
    (finished / "seed_1" / "full_gaussian" / "result.json").unlink()  # as if killed while it was tested
    last = finished / "seed_1" / "full_gaussian" / "version_0" / "checkpoints" / "last.ckpt"
    saved = last.read_bytes()
    assert main(["--output", str(finished), "--report_only"]) != before
    capsys.readouterr()
    main(asked(finished))
    assert [(call[0], "--name=full" in call) for call in calls] == [("fit", True), ("fit", False), ("fit", True)]
    assert [call[-1] == f"--ckpt_path={last}" for call in calls] == [False, True, False]
    assert result(finished, "full_gaussian", 1)["metrics"] == pytest.approx(metrics, rel=1e-5)
    assert last.read_bytes() == saved
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("run ")]
    assert re.fullmatch(r"run 3 of 6: seed 0, \+ full: started; about \d+ s left", lines[2])
    assert re.fullmatch(r"run 3 of 6: seed 0, \+ full: mIoU [\d.]+, took \d+ s; about \d+ s left", lines[3])
    ended = [line for line in lines if ": started" not in line]
    assert [line.endswith("done before") for line in ended] == [True, True, False, True, False, False]


def test_widths_behind_another_network_are_chosen_again(finished: Path, calls: Calls) -> None:
    (finished / "seed_0" / "full_gaussian" / "result.json").unlink()
    (finished / "seed_0" / "network" / "version_0" / "checkpoints" / "best.ckpt").touch()  # as if trained again
    main(asked(finished))
    assert [call[0] for call in calls] == ["validate", "fit"]


def test_other_settings_are_refused(finished: Path, calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("trainer: {max_epochs: 2}")
    grid = [text.replace(STRENGTHS, "bilateral.strength=1") for text in asked(finished)]
    epochs = r"other settings \(trainer\.max_epochs is 1 there and 2 here\): give another --output"
    for given, message in (
        (asked(finished, "--trainer.max_epochs=2"), f"seed_0/network is a run with {epochs}"),
        (["--head_config", str(tmp_path / "a.yaml"), *asked(finished)], f"seed_0/full_gaussian is a run with {epochs}"),
        (grid, r"seed_0/full_gaussian is .*grid: bilateral\.strength is \[0\.0, 5\.0\] there"),
        (["--free_widths", *asked(finished)], "seed_0/full is .*widths of is None there and full_gaussian here"),
    ):
        with pytest.raises(SystemExit, match=message):
            main(given)
    assert calls == []


def test_a_head_that_learns_nothing_is_only_tested(finished: Path, calls: Calls) -> None:
    text = main(asked(finished, rows=[str(HEADS / "dense_crf.yaml")], seeds="0"))
    assert [call[0] for call in calls] == ["test"]
    assert "| + dense_crf | 1 |" in text
    found = result(finished, "dense_crf", 0)
    assert found["metrics"]["miou_network"] == pytest.approx(result(finished, "network", 0)["metrics"]["miou"])
    assert found["solvers"] is None


def test_free_rows_start_at_the_widths_of_their_gaussian_row(tmp_path: Path) -> None:
    plan = Plan(tmp_path, free_widths=True)
    rows = {row.name: row for row in find_rows(["spatial", "full", "full_mean_field", "spatial_gaussian"])}
    sources = {name: plan.uses_widths(row) for name, row in rows.items()}
    full = dict.fromkeys(("full", "full_mean_field"), "full_gaussian")
    assert sources == {"network": None, "spatial": None, "spatial_gaussian": "spatial_gaussian"} | full
    assert Plan(tmp_path).uses_widths(rows["full"]) is None
    point = {"spatial.sigma": 1.5, "bilateral.sigma_xy": 7.0, "bilateral.sigma_rgb": 8.0, "bilateral.strength": 9.0}
    taken = widths.write_head(rows["full_mean_field"], point, tmp_path / "head.yaml")
    assert taken == {name: value for name, value in point.items() if name.startswith("bilateral")}
    head = yaml.safe_load((tmp_path / "head.yaml").read_text())["model"]["init_args"]["head"]["init_args"]
    bilateral = {"sigma_xy": 7.0, "sigma_rgb": 8.0, "scale": 9.0}
    assert [potential["init_args"] for potential in head["potentials"]] == [{"radius": 4}, bilateral]


def test_a_killed_ablation_goes_on(tmp_path: Path, calls: Calls) -> None:
    schedule = {"class_path": "SegmentationModule", "init_args": {"learning_rate": 0.002}}
    (tmp_path / "schedule.yaml").write_text(yaml.safe_dump({"trainer": {"max_epochs": 5}, "model": schedule}))
    given = ["--head_config", str(tmp_path / "schedule.yaml")]
    given += asked(tmp_path, "--data.init_args.train_size=8", rows=["spatial"], seeds="3")
    last = tmp_path / "seed_3" / "spatial" / "version_0" / "checkpoints" / "last.ckpt"
    command = [sys.executable, "-m", "experiments.ablation", *given]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"})
    while not last.is_file():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "seed_3" / "spatial" / "result.json").exists()
    assert torch.load(last, weights_only=True)["epoch"] < 4
    with pytest.raises(SystemExit, match="seed_3/spatial is a run with other settings"):
        main(given[2:])  # without the schedule
    main(given)
    assert [(call[0], call[-1]) for call in calls] == [("fit", f"--ckpt_path={last}")]
    assert torch.load(last, weights_only=True)["epoch"] == 4
    assert result(tmp_path, "spatial", 3)["resumed"]
    first, second = (configuration(tmp_path, row, 3) for row in ("network", "spatial"))
    assert [config["trainer"]["max_epochs"] for config in (first, second)] == [1, 5]  # each stage has its own
    assert [config["model"]["init_args"]["learning_rate"] for config in (first, second)] == [0.001, 0.002]
    assert first["model"]["init_args"]["network"] == second["model"]["init_args"]["network"]


def made_up(row: str, seed: int, miou: float, **further: Any) -> dict[str, Any]:
    """A result as a run would write it."""
    metrics = {"miou": miou, "trimap_miou": miou - 0.1, "iou/background": miou + 0.05, "iou/horse": miou - 0.05}
    shared = {"data": "WeizmannHorse", "classes": ["background", "horse"], "seconds": 3600.0, "resumed": False}
    shared |= {"command": "python -m experiments.ablation --seeds 0", "versions": {"torch": "2.0"}, "threads": 1}
    if row == "full":
        metrics |= {"energy_network": 50.0 + seed, "energy": 2.0, "miou_network": miou - 0.02}
        energies = {"own": [1.0, 2.0, 3.0], "switched": [2.0, 2.0, 1.0]}
        further = {"solvers": {"solver": "ProjectedGradient", "switched_solver": "MeanField", **energies}} | further
    return {"row": row, "seed": seed, "metrics": metrics, "solvers": None, "widths": None} | shared | further


IOU = {"full": [0.85, 0.85, 0.89, 0.99], "full_gaussian": [0.84, 0.83, 0.86], "network": [0.80, 0.82, 0.81]}
MADE_UP = [made_up(row, seed, miou) for row, values in IOU.items() for seed, miou in enumerate(values)]


def test_the_report_against_numpy(tmp_path: Path) -> None:
    text = report.write_report(MADE_UP, tmp_path)
    rows = {line["row"]: line for line in read_table(tmp_path / "results.csv")}
    assert list(rows) == ["network", "full_gaussian", "full"]
    free = np.array(IOU["full"])
    expected = {"miou mean": 100 * free.mean(), "miou std": 100 * free.std(ddof=1)}
    expected |= {"iou/horse mean": 100 * free.mean() - 5, "energy_network mean": 51.5, "energy_switched mean": 5 / 3}
    expected |= {"images lower": 4, "images higher": 4, "images": 12}
    for column, other in (("miou over the network", "network"), ("miou over its (G) row", "full_gaussian")):
        own, its = IOU["full"][:3], IOU[other]  # not the last seed, which only one of them has
        paired = stats.ttest_rel(own, its).confidence_interval(0.95)
        expected |= {f"{column} low": 100 * paired.low, f"{column} high": 100 * paired.high}
        expected[f"{column} mean"] = 100 * (np.mean(own) - np.mean(its))
    assert {name: float(rows["full"][name]) for name in expected} == pytest.approx(expected)
    by_hand = 2 + 4.30265 / 3**0.5  # differences 1, 2, 3, and t of a printed table for two degrees of freedom
    assert float(rows["full"]["miou over its (G) row high"]) == pytest.approx(by_hand, abs=1e-4)
    gain = "+5.3 [-0.9, +11.6]"
    assert f"| + full | 4 | 89.5 ± 6.6 | 84.0 | 87.5 ± 6.6 | 79.5 ± 6.6 | {gain} | +2.0 [-0.5, +4.5] |" in text
    assert f"| + full | {gain} | {gain} |" in text  # each class over the network
    assert "```\npython -m experiments.ablation --seeds 0\n```" in text
    assert "10 runs, seeds 0, 1, 2, 3, 10.0 h in all, CPU threads: 1; torch 2.0." in text
    assert "| + full | ProjectedGradient | 52 ± 1 | 2 ± 0 | 2 ± 0 | 4 of 12 |" in text
    assert (tmp_path / "results.md").read_text() == text
    assert r"+ full & 4 & 89.5 $\pm$ 6.6 & 84.0 &" in (tmp_path / "results.tex").read_text()
    assert len(read_table(tmp_path / "runs.csv")) == 10
    assert all((tmp_path / f"miou.{kind}").stat().st_size > 5000 for kind in ("png", "pdf"))


def test_control_and_mean_field_have_their_columns(tmp_path: Path) -> None:
    miou = {"network": 0.7, "unary": 0.72, "full": 0.8, "full_mean_field": 0.79}
    text = report.write_report([made_up(row, 0, value) for row, value in miou.items()], tmp_path, "none")
    assert "| over the network | over the control | over (MF) |" in text
    assert "| network | 1 | 70.0 |  | 60.0 |  |  |  |" in text
    assert "| + unary (control) | 1 | 72.0 |  | 62.0 | +2.0 |  |  |" in text
    assert "| 70.0 | +10.0 | +8.0 | +1.0 |" in text
    assert [line["row"] for line in read_table(tmp_path / "results.csv")] == list(miou)


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    text = report.write_report([made_up("full", 0, 0.8), made_up("network", 0, 0.7)], tmp_path, "none")
    assert "| + full | 1 | 80.0 | 78.0 | 70.0 | +10.0 |\n" in text
    assert "One seed: no standard deviation and no confidence interval." in text
    assert not any(word in text for word in ("paper", "nan"))
    assert "nan" not in (tmp_path / "results.csv").read_text() + (tmp_path / "results.tex").read_text()


def test_the_papers_values_are_of_its_data_sets() -> None:
    data = (("WeizmannHorse", "ab"), ("NYUv2", "abcde"), ("NYUv2", "ab"), ("SyntheticStreets", "ab"))
    found = [report.paper_values([{"data": name, "classes": list(labels)}], None) for name, labels in data]
    assert [values.get("full") for values in found] == [84.0, 55.0, None, None]
    assert report.paper_values(MADE_UP, "Cityscapes") == {"network": 71.8, "full": 71.9}


def test_the_time_that_is_left() -> None:
    times = (("network", 10.0, False), ("full", 30.0, False), ("full", 50.0, False), ("full", 1.0, True))
    done = [made_up(row, 0, 0.8, seconds=seconds, resumed=resumed) for row, seconds, resumed in times]
    _, full, spatial = find_rows(["full", "spatial"])
    assert runs.remaining(done, [(NETWORK, 1), (full, 3)]) == "; about 50 s left"
    assert runs.remaining(done, [(spatial, 0)]) == "; about 40 s left"  # that of the other heads
    assert runs.remaining(done[:1], [(spatial, 0)]) == "; 1 left, of a kind that has not been timed yet"
    assert [duration(seconds) for seconds in (600, 7200)] == ["10 min", "2.0 h"]


def test_settings_are_what_counts(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: x\nmodel:\n  init_args: {learning_rate: 1.0e-3, loss: DiceLoss}")
    given = settings.effective([f"--config={tmp_path / 'a.yaml'}", "--trainer.max_epochs", "3", "--output=elsewhere"])
    assert given == {"model.init_args.learning_rate": 1e-3, "model.init_args.loss": "DiceLoss", "trainer.max_epochs": 3}
    rates = [f"--model.init_args.learning_rate={rate}" for rate in ("5", "1e-3")]
    again = settings.effective(["-c", str(tmp_path / "a.yaml"), *rates, "--trainer.max_epochs=3"])
    assert settings.differences(given, again) == []
    changed = settings.differences(given, settings.effective(["--trainer.max_epochs", "-1"]))
    assert "trainer.max_epochs is 3 there and -1 here" in changed


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda _: find_rows(["fulll"]), "--rows fulll is neither a file nor a row"),
        (lambda _: find_rows([str(STREETS)]), "has the name of another row, network"),
        (
            lambda folder: find_rows([str(shutil.copy(HEADS / "full.yaml", folder))]),
            "has the name of a row of the paper, full",
        ),
        (lambda folder: find_rows([str(shutil.copy(STREETS, folder / "a.yaml"))]), "a.yaml configures no head"),
        (lambda _: read_grid(["sigma=3"]), "--vary sigma=3 names nothing that can be varied: take one of spatial"),
        (lambda _: read_grid(["spatial.sigma="]), "--vary spatial.sigma= has no list of numbers"),
        (lambda _: read_grid(["spatial.sigma=0,1"]), "has one that cannot be: give positive numbers"),
        (lambda folder: main(["--output", str(folder), "--report_only"]), "there are no results in"),
        (lambda folder: main(["--output", str(folder), "--config", "no.yaml"]), "there is no file no.yaml"),
        (lambda folder: main(asked(folder, "loose")), "loose is no argument of main.py fit"),
    ],
)
def test_what_is_refused(attempt: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=re.escape(message)):
        attempt(tmp_path)
