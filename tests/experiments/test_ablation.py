"""A whole ablation on tiny street scenes: it resumes, refuses other settings, and its metrics are right."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import yaml

import main as entry
from crfgrad import FrankWolfe, MeanField, ProjectedGradient, Solver
from experiments.ablation import runs, settings, widths
from experiments.ablation.__main__ import main, read_grid
from experiments.ablation.plan import Plan
from experiments.ablation.rows import HEADS, Row, find_rows
from experiments.files import try_lock
from experiments.solvers import switched
from lightning_modules.callbacks import FilterPictures
from tests.command_line import ROOT, STREETS, TINY, read_table, run, start

STRENGTHS = "bilateral.strength=0,5"
ROWS = ["network", "full_gaussian", "full"]
GRID = ["spatial.sigma=2", "spatial.strength=1", "bilateral.sigma_xy=4,40", "bilateral.sigma_value=9", STRENGTHS]
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


def test_a_result_is_that_of_the_best_checkpoint_with_either_solver(finished: Path, tmp_path: Path) -> None:
    folder = finished / "seed_1" / "full" / "version_0"
    given = [f"--config={folder / 'config.yaml'}", f"--ckpt_path={folder / 'checkpoints' / 'best.ckpt'}"]
    own = run("test", *given, f"--output={tmp_path}").trainer.callback_metrics
    other = ["--model.init_args.eval_solver=MeanField", f"--output={tmp_path}"]
    energy = run("test", *given, *other).trainer.callback_metrics["test/energy"].item()
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
    assert np.mean(solvers["switched"]) == pytest.approx(energy, rel=1e-5)
    assert metrics["energy"] != pytest.approx(energy, rel=1e-5)


@pytest.mark.parametrize(
    ("solver", "other"),
    [(ProjectedGradient(7), MeanField), (MeanField(7), ProjectedGradient), (FrankWolfe(7), ProjectedGradient)],
)
def test_the_solver_to_switch_to(solver: Solver, other: type[Solver]) -> None:
    found = switched(solver, step_size=0.2)
    assert (type(found), found.iterations, found.training) == (other, 7, False)
    if isinstance(found, ProjectedGradient):
        assert float(found.step_size) == pytest.approx(0.2)


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
    assert len({tuple(point.values()) for point in points}) == 3
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


def test_widths_go_on_where_they_were_killed(
    finished: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finished / "seed_1" / "full_gaussian"
    lines = (folder / "widths.csv").read_text().splitlines(keepends=True)
    assert len(lines) == 1 + 3  # two widths with strength 5, and one without
    (folder / "widths.csv").write_text("".join(lines[:1] + lines[2:3]))
    (folder / "result.json").unlink()
    scored: list[int] = []
    monkeypatch.setattr(widths, "scores", lambda run, some, of=widths.scores: scored.append(len(some)) or of(run, some))
    monkeypatch.setattr(widths, "TOGETHER", 1)
    main(asked(finished))
    assert scored == [1, 1]
    assert sorted((folder / "widths.csv").read_text().splitlines(keepends=True)) == sorted(lines)
    assert "widths: 2 of 3 points; about" in capsys.readouterr().out
    assert result(finished, "full_gaussian", 1)["resumed"]


def test_a_run_of_another_process_is_waited_for(
    finished: Path, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = finished / "seed_1" / "full" / "result.json"
    content = kept.read_text()
    kept.unlink()
    lock = try_lock(kept.parent / "lock")
    assert lock is not None
    assert try_lock(kept.parent / "lock") is None
    waiting = threading.Thread(target=main, args=[asked(finished)])
    waiting.start()
    printed = ""
    while "waiting" not in printed:
        assert waiting.is_alive()
        time.sleep(0.05)
        printed += capsys.readouterr().out
    kept.write_text(content)
    lock.close()
    waiting.join()
    assert f"another process is at work in {kept.parent}: waiting for it" in printed
    assert "run 6 of 6: seed 1, + full: mIoU" in capsys.readouterr().out
    assert calls == []


def test_other_settings_are_refused(finished: Path, calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("trainer: {max_epochs: 2}")
    grid = [text.replace(STRENGTHS, "bilateral.strength=1") for text in asked(finished)]
    epochs = r"other settings \(trainer\.max_epochs is 1 there and 2 here\): give another --output"
    for given, message in (
        (asked(finished, "--trainer.max_epochs=2"), f"seed_0/network is a run with {epochs}"),
        (["--head_config", str(tmp_path / "a.yaml"), *asked(finished)], f"seed_0/full_gaussian is a run with {epochs}"),
        (grid, r"seed_0/full_gaussian is .*grid: bilateral\.strength is \[0\.0, 5\.0\] there"),
        (asked(finished, "--trainer.max_epochs=2", seeds="7"), f"seed_0/network is a run with {epochs}"),
        (["--free_widths", *asked(finished)], "seed_0/full is .*widths of is not given there and full_gaussian here"),
    ):
        with pytest.raises(SystemExit, match=message):
            main(given)
    assert calls == []
    report = ["--output", str(finished), "--report_only"]
    with pytest.raises(SystemExit, match="there are no results of row unary, seed 7 in "):
        main([*report, "--rows", "full", "unary", "--seeds", "0", "7"])


def test_missing_data_are_told_in_a_sentence(tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_ROOT", str(tmp_path / "nowhere"))
    given = ["--config", str(ROOT / "experiments" / "weizmann_horse" / "network.yaml"), "--rows", "network"]
    with pytest.raises(SystemExit, match="nowhere/weizmann_horse_db/rgb is missing: download"):
        main([*given, "--output", str(tmp_path)])
    process = start("fit", *given[:2], f"--output={tmp_path}")
    printed = process.communicate(timeout=120)[0]
    assert process.returncode == 1
    assert "Traceback" not in printed
    assert "nowhere/weizmann_horse_db/rgb is missing: download" in printed.splitlines()[-1]


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
    point = {"spatial.sigma": 1.5, "bilateral.sigma_xy": 7.0, "bilateral.sigma_value": 8.0, "bilateral.strength": 9.0}
    taken = widths.write_head(rows["full_mean_field"], point, tmp_path / "head.yaml")
    assert taken == {name: value for name, value in point.items() if name.startswith("bilateral")}
    head = yaml.safe_load((tmp_path / "head.yaml").read_text())["model"]["init_args"]["head"]["init_args"]
    bilateral = {"sigma_xy": 7.0, "sigma_value": 8.0, "strength": 9.0}
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


def test_settings_are_what_counts(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: x\nmodel:\n  init_args: {learning_rate: 1.0e-3, loss: DiceLoss}")
    given = settings.effective([f"--config={tmp_path / 'a.yaml'}", "--trainer.max_epochs", "3", "--output=elsewhere"])
    assert given == {"model.init_args.learning_rate": 1e-3, "model.init_args.loss": "DiceLoss", "trainer.max_epochs": 3}
    rates = [f"--model.init_args.learning_rate={rate}" for rate in ("5", "1e-3")]
    again = settings.effective(["-c", str(tmp_path / "a.yaml"), *rates, "--trainer.max_epochs=3"])
    assert settings.differences(given, again) == []
    changed = settings.differences(given, settings.effective(["--trainer.max_epochs", "-1"]))
    assert "trainer.max_epochs is 3 there and -1 here" in changed
    block = ["--a.class_path=X", "--a.init_args.b=1"]
    assert settings.effective([*block, "--a=null"]) == {"a": None}
    assert settings.effective(["--a=null", *block]) == settings.effective(block)
    assert settings.differences({}, {"a": None}) == ["a is not given there and None here"]


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
