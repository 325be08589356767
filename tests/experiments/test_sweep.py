"""Sweeps: shipped ones reach the model; runs are proposed, stopped early, resumed, and their failures survived."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import yaml
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

import crfgrad
from experiments.sweep.__main__ import main, parse
from experiments.sweep.configuration import Sweep
from experiments.sweep.plot import Axis, apart
from experiments.sweep.results import Results, brief, short_names
from experiments.sweep.run import Run, read_history
from lightning_modules import SegmentationModule
from lightning_modules.cli import CLI
from tests.command_line import ROOT, TINY, read_table, run

SWEEPS = sorted((ROOT / "experiments" / "sweeps").glob("*.yaml"))
HEAD = "model.init_args.head.init_args."
IN_MODEL: dict[str, Callable[[Any], Any]] = {
    f"{HEAD}solver.init_args.step_size": lambda model: model.head.solver.step_size,
    f"{HEAD}solver.init_args.iterations": lambda model: model.head.solver.iterations,
    f"{HEAD}solver.init_args.leak": lambda model: model.head.solver.leak,
    f"{HEAD}potentials.init_args.radius": lambda model: (model.head.potentials[0].kernel().shape[-1] - 1) // 2,
    f"{HEAD}potentials.init_args.sigma_xy": lambda model: model.head.potentials[1].widths()[0].item(),
    f"{HEAD}potentials.init_args.sigma_value": lambda model: model.head.potentials[1].widths()[4].item(),
    f"{HEAD}potentials.init_args.strength": lambda model: model.head.potentials[1].kernel().max().item(),
    f"{HEAD}solver": lambda model: repr(model.head.solver),
    "model.init_args.learning_rate": lambda model: model.configure_optimizers().param_groups[0]["lr"],
    "model.init_args.head_learning_rate": lambda model: model.configure_optimizers().param_groups[1]["lr"],
}
FAKE = """
import os, sys, time
from pathlib import Path
given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
home = Path(given["output"]) / given["name"]
folder = home / f"version_{len(list(home.glob('version_*')))}"
folder.mkdir(parents=True)
(folder / "pid").write_text(str(os.getpid()))
(folder / "environment").write_text(os.environ["OMP_NUM_THREADS"] + os.environ["WANDB_MODE"])
print("a line before")
if given.get("kind") == "bad":
    sys.exit("kind must not be bad")
with (folder / "metrics.csv").open("w") as file:
    print("epoch,val/miou,other", file=file, flush=True)
    for epoch in range(int(given.get("epochs", 1)) * (given.get("kind") != "silent")):
        print(f"{epoch},{1 - (float(given['x']) - 0.3) ** 2},", file=file, flush=True)
        print(f"{epoch},,1", file=file, flush=True)
        time.sleep(float(given.get("pause", 0)))
"""


def write(folder: Path, method: str, parameters: dict[str, Any], **settings: Any) -> Path:
    """Writes a sweep over a program that only writes metrics."""
    (folder / "fake.py").write_text(FAKE)
    settings = {"metric": {"name": "val/miou", "goal": "maximize"}, **settings}
    settings |= {"program": str(folder / "fake.py"), "method": method, "parameters": parameters}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(settings))
    return folder / "sweep.yaml"


def build(arguments: list[str]) -> SegmentationModule:
    """The model that main.py would train."""
    with patch.object(CLI, "_run_subcommand"):
        model = run(*arguments, *TINY).model
    assert isinstance(model, SegmentationModule)
    return model


def built(value: Any) -> Any:
    """A value, or what its class alone makes of a block: nothing may stay of the block that it replaces."""
    if not isinstance(value, str):
        return value
    block = json.loads(value)
    return repr(getattr(crfgrad, block["class_path"])(**block["init_args"]))


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_shipped_sweeps_reach_the_model(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    first, second, *_ = path.read_text().splitlines()
    name = path.relative_to(ROOT)
    assert first.startswith(f"# wandb sweep {name} ")
    assert first.endswith("wandb agent ID")
    assert second.startswith(f"# python -m experiments.sweep {name} ")
    sweep = Sweep.read(name)
    assert (sweep.metric, sweep.maximise) == ("val/miou", True)
    assert sweep.size or sweep.run_cap
    proposals: list[dict[str, Any]] = []
    while len(proposals) < (sweep.size or 3):
        before = [Run(1, parameters, "finished", [0.5]).for_engine(sweep.metric) for parameters in proposals]
        proposals.append(sweep.propose(before) or {})
    seen = []
    for parameters in proposals if path.stem == "solver" else (proposals[0], proposals[-1]):
        command = sweep.command(parameters, Path())
        assert command[:4] == ["/usr/bin/env", sys.executable, "main.py", "fit"]
        model = build(command[3:])
        seen.append({name: IN_MODEL[name](model) for name in parameters})
        assert seen[-1] == pytest.approx({name: built(value) for name, value in parameters.items()})
    assert all(seen[0][name] != seen[-1][name] for name in sweep.settings["parameters"])


def test_commands_are_those_of_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMEWHERE", "here")
    parameters = {"a.b": 1.5, "c": True, "d": False, "e": '{"f": "g h"}', "i": None}
    theirs = create_sweep_command_args({"args": {name: {"value": value} for name, value in parameters.items()}})
    words = ["${program}", "x=${envvar:SOMEWHERE}/${envvar:NOWHERE}", 3]
    for macro in ("args", "args_no_hyphens", "args_no_boolean_flags", "args_json", "args_no_equals"):
        path = write(tmp_path, "grid", {"x": {"values": [1]}}, command=[*words, f"${{{macro}}}"])
        sweep = Sweep.read(path)
        plain = [str(word) for word in create_sweep_command(list(words))[1:]]
        assert sweep.command(parameters, Path()) == [sweep.settings["program"], *plain, *theirs[macro]]
    path = write(tmp_path, "grid", {"x": {"values": [1]}}, command=["${interpreter}", "${args_json_file}"])
    assert Sweep.read(path).command(parameters, Path("p.json")) == [sys.executable, "p.json"]


def test_a_real_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    own = ["experiments/sweeps/leak.yaml", f"--output={tmp_path}", "--runs=2", "--workers=2"]
    runs = main(**vars(parse([*own, "--", *TINY])))
    assert [run.state for run in runs] == ["finished", "finished"], [run.error for run in runs]
    table = read_table(tmp_path / "results.csv")
    for row, leak in zip(table, (0.0, 0.01), strict=True):
        folder = Path(row["folder"])
        config = yaml.safe_load((folder / "config.yaml").read_text())
        assert config["model"]["init_args"]["head"]["init_args"]["solver"]["init_args"]["leak"] == leak
        assert (float(row[f"{HEAD}solver.init_args.leak"]), row["state"]) == (leak, "finished")
        assert [float(row["val/miou"])] == read_history(folder / "metrics.csv", "val/miou")
    printed = capsys.readouterr().out
    best = max(table, key=lambda row: float(row["val/miou"]))
    assert f"best: run {int(best['run'])}, val/miou {float(best['val/miou']):.4f}, in {best['folder']}" in printed
    assert f"--{HEAD}solver.init_args.leak={best[f'{HEAD}solver.init_args.leak']}" in printed
    assert (tmp_path / "parallel_coordinates.png").stat().st_size > 10_000


def test_random_and_bayes(tmp_path: Path) -> None:
    rate = {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-1}
    parameters = {"x": {"min": 0.0, "max": 1.0}, "rate": rate, "kind": {"values": ["a", "b"]}, "fixed": {"value": 4}}
    path = write(tmp_path, "random", parameters, run_cap=6)
    runs = main(path, tmp_path / "random", workers=3)
    assert len({run.parameters["x"] for run in runs}) == 6
    assert all(1e-4 <= run.parameters["rate"] <= 1e-1 and run.parameters["fixed"] == 4 for run in runs)
    again = [run.parameters for run in main(path, tmp_path / "again", runs=3)]
    assert again == [run.parameters for run in runs[:3]]
    share = os.environ.get("OMP_NUM_THREADS", max(1, len(os.sched_getaffinity(0)) // 3))
    assert (Path(runs[0].folder) / "environment").read_text() == f"{share}{os.environ.get('WANDB_MODE', 'disabled')}"
    bayes = main(write(tmp_path, "bayes", {"x": {"min": 0.0, "max": 4.0}}), tmp_path / "bayes", runs=12)
    errors = [abs(run.parameters["x"] - 0.3) for run in bayes]
    assert min(errors[6:]) < 0.15  # chance finds it in 6 draws once in three times
    assert sum(errors[6:]) < sum(errors[:6])


def test_bad_runs_are_stopped_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parameters = {"x": {"values": [0.3, 0.9]}, "epochs": {"value": 15}, "pause": {"value": 0.12}}
    stop = {"type": "hyperband", "min_iter": 2, "eta": 3}
    good, bad = main(write(tmp_path, "grid", parameters, early_terminate=stop), tmp_path / "out")
    assert (good.state, len(good.history)) == ("finished", 15)
    assert (bad.state, len(bad.history) < 10) == ("stopped", True)
    printed = capsys.readouterr().out
    assert f"run 1 of 2: epochs 15, pause 0.12, x 0.3: val/miou 1.0000, {good.seconds:.0f} s; about " in printed
    assert f"x 0.9: val/miou 0.6400, stopped early after {len(bad.history)}" in printed


def test_the_target_ends_a_sweep(tmp_path: Path) -> None:
    metric = {"name": "val/miou", "goal": "maximize", "target": 0.99}
    runs = main(write(tmp_path, "grid", {"x": {"values": [0.9, 0.3, 0.5]}}, metric=metric), tmp_path / "out")
    assert [run.parameters["x"] for run in runs] == [0.9, 0.3]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_sweep_goes_on(how: signal.Signals, tmp_path: Path) -> None:
    output = tmp_path / "out"
    path = write(tmp_path, "grid", {"x": {"values": [1, 2, 3]}, "epochs": {"value": 2}, "pause": {"value": 0.4}})
    command = [sys.executable, "-m", "experiments.sweep", str(path), f"--output={output}"]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # also where these tests run in the background
    process = subprocess.Popen(
        command, cwd=ROOT, text=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, preexec_fn=heard
    )
    second = output / "runs" / "002" / "version_0" / "pid"
    while not (second.is_file() and second.read_text()) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(how)
    assert ("the same command goes on" in process.communicate()[1]) == (how == signal.SIGINT)
    time.sleep(0.2)
    status = Path("/proc") / second.read_text() / "status"
    assert not status.is_file() or "State:\tZ" in status.read_text()  # it has ended with its sweep
    assert [row["run"] for row in read_table(output / "results.csv")] == ["001"]
    assert [(run.state, len(run.history)) for run in main(path, output)] == [("finished", 2)] * 3
    folders = [
        Path(row["folder"]).relative_to(output / "runs").as_posix() for row in read_table(output / "results.csv")
    ]
    assert folders == ["001/version_0", "002/version_1", "003/version_0"]
    main(path, output)
    assert len(list((output / "runs").glob("*/version_*"))) == 4  # nothing was left to do


def test_failed_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "grid", {"kind": {"values": ["bad", "silent", "good"]}, "x": {"value": 0.3}})
    assert [run.state for run in main(path, tmp_path / "out")] == ["failed", "failed", "finished"]
    printed = capsys.readouterr().out
    assert f"kind bad, x 0.3: failed: kind must not be bad ({tmp_path / 'out/runs/001/output.txt'})" in printed
    assert "kind silent, x 0.3: failed: there is no val/miou in its metrics.csv" in printed
    assert "2 of 3 runs failed" in printed
    (tmp_path / "fake.py").write_text(FAKE.replace('"bad"', '"worse"'))
    runs = main(path, tmp_path / "out", repeat_failed=True)
    assert [run.state for run in runs] == ["finished", "failed", "finished"]
    with pytest.raises(SystemExit, match="no run has a val/miou"):
        main(write(tmp_path, "grid", {"kind": {"value": "silent"}, "x": {"value": 0.3}}), tmp_path / "other")


GRID = "program: main.py\nmethod: grid\nmetric: {name: m}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not YAML: "),
        ("just words", "is no sweep: it needs method, metric and parameters"),
        ("method: grid\nparameters: {a: {values: [1]}}", "has no metric: give for instance"),
        ("method: best\nmetric: {name: m}", "method in .* must be grid, random or bayes, got 'best'"),
        (GRID, "is no sweep that can be run: .*parameters"),
        (GRID + "parameters: {}", "is no sweep that can be run: "),
        (GRID + "parameters: {a: {min: 0.0, max: 1.0}}", "Parameter a is a disallowed type with grid search"),
        (GRID + "parameters: {a: {parameters: {b: {value: 1}}}}", r"a in .* is nested: write .* as a\.NAME"),
        (GRID + "parameters: {a: {vaules: [1]}}", "is no sweep that can be run: "),
        (GRID + "parameters: {a: {value: 1}}\nearly_terminate: {type: hyperband}", "is no sweep that can be run: "),
        (GRID + "parameters: {a: {value: 1}}\ncommand: ['${args}', '${arguments}']", r"has \${arguments}, which means"),
        (GRID + "parameters: {a: {value: 1}}\ncommand: ['${program}']", r"has no \${args}: no parameter would reach"),
        (GRID.replace("main.py", "no.py") + "parameters: {a: {value: 1}}", r"program in .* is no\.py, which is no"),
        (GRID.replace("grid", "random") + "parameters: {a: {min: 1, max: 3}}", "has no end, .* give --runs"),
        (GRID + "run_cap: many\nparameters: {a: {value: 1}}", "run_cap in .* must be a number of runs, got 'many'"),
    ],
)
def test_wrong_files(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "sweep.yaml").write_text(text)
    with pytest.raises(SystemExit, match=message) as refused:
        main(tmp_path / "sweep.yaml", tmp_path / "out")
    assert "\n" not in str(refused.value)


def test_wrong_folders(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"there is no file nowhere\.yaml"):
        main(Path("nowhere.yaml"))
    output = tmp_path / "out"
    main(write(tmp_path, "grid", {"x": {"values": [0.1]}}), output)
    with pytest.raises(SystemExit, match="holds a sweep with other arguments: give another --output"):
        main(tmp_path / "sweep.yaml", output, arguments=["--epochs=2"])
    with pytest.raises(SystemExit, match="holds a sweep with other parameters"):
        main(write(tmp_path, "grid", {"x": {"values": [0.2]}}), output)
    failed = tmp_path / "failed"
    with pytest.raises(SystemExit, match="no run has a val/miou"):
        main(tmp_path / "sweep.yaml", failed, arguments=["--kind=bad"])
    assert [run.state for run in main(tmp_path / "sweep.yaml", failed)] == ["finished"]  # nothing was lost
    (output / "sweep.json").write_text("[]")
    with pytest.raises(SystemExit, match=r"sweep\.json is not of a sweep: remove it"):
        main(tmp_path / "sweep.yaml", output)
    at_work = Results(tmp_path / "new", Sweep.read(tmp_path / "sweep.yaml"), [])
    with pytest.raises(SystemExit, match="another process is running a sweep in"):
        main(tmp_path / "sweep.yaml", at_work.folder)
    with pytest.raises(SystemExit):
        parse(["sweep.yaml", "--workers=0"])


def test_metrics_are_read_while_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    assert read_history(path, "m") == []
    path.write_text("epoch,m\n0,0.5\n0,\n1,nan\n2,0.75\n3,0.8")
    assert read_history(path, "m") == [0.5, 0.75]  # the last line may be cut
    assert read_history(path, "other") == []


def test_names_and_axes() -> None:
    assert list(short_names(["a.init_args.b", "a.init_args.c.init_args.d"]).values()) == ["b", "d"]
    assert list(short_names(["a.init_args.rate", "b.rate"]).values()) == ["a.rate", "b.rate"]
    solver = '{"class_path": "crfgrad.MeanField", "init_args": {"iterations": 5, "step_size": 0.123456}}'
    assert brief(solver) == "MeanField(iterations=5, step_size=0.1235)"
    assert brief("{not json") == "{not json"
    linear, logarithmic, named = Axis([1, 3, 2]), Axis([0.01, 1.0, 0.1]), Axis(["u", True, "v"])
    assert [linear.place(2), named.place(True), logarithmic.place(0.1)] == pytest.approx([0.5] * 3)
    assert [linear.place(3), named.place("v"), logarithmic.place(0.01)] == [1, 1, 0]
    assert Axis([2]).place(2) == 0.5
    labels = {
        "u True v": named,
        "1 2 3": linear,
        "0 2 4 6 8 10": Axis(range(11)),
        "0.02 0.05 0.1 0.2 0.5": Axis([0.013, *(number / 100 for number in range(2, 90))]),
        "MeanField FrankWolfe": Axis([solver, '{"class_path": "FrankWolfe"}']),
    }
    for label, axis in labels.items():
        assert " ".join(text for _, text in axis.ticks()) == label


def test_labels_keep_apart() -> None:
    assert apart([1.0, 0.5], 0.04) == [1.0, 0.5]
    for places in ([0, 0.02, 0.1, 0.2, 1], [0.9, 1, 0.97, 0.99], [0, 0.001, 0.002, 0.003], [0.5] * 5):
        moved = apart(places, 0.04)
        assert sorted(range(len(places)), key=moved.__getitem__) == sorted(range(len(places)), key=places.__getitem__)
        assert np.diff(sorted(moved)).min() >= 0.04 - 1e-9
        assert min(moved) >= 0
        assert max(moved) <= 1 + 1e-9
        assert max(abs(a - b) for a, b in zip(places, moved, strict=True)) <= 0.04 * (len(places) - 1)
