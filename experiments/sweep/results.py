"""The folder of a sweep: what to go on from, the table of results, and how to write them out."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.files import try_lock, write_text
from experiments.sweep.configuration import Parameters, Sweep
from experiments.sweep.run import Run

IDENTITY = ("program", "command", "method", "metric", "parameters")


class Results:
    """All runs of a sweep, kept in ``folder``/sweep.json, and those that have ended in ``folder``/results.csv."""

    def __init__(self, folder: Path, sweep: Sweep, arguments: Sequence[str]) -> None:
        self.folder = folder
        self.sweep = sweep
        self.identity: dict[str, Any] = {key: sweep.settings.get(key) for key in IDENTITY}
        self.identity["arguments"] = list(arguments)
        self.runs: list[Run] = []
        lock = try_lock(folder / "lock")
        if lock is None:
            raise SystemExit(f"another process is running a sweep in {folder}: give another --output")
        self.lock = lock
        if self.state_file.is_file():
            self._read()

    @property
    def state_file(self) -> Path:
        """What a sweep goes on from."""
        return self.folder / "sweep.json"

    @property
    def table(self) -> Path:
        """Parameters, metric, state, seconds and folder of each run that has ended."""
        return self.folder / "results.csv"

    def _read(self) -> None:
        try:
            kept = json.loads(self.state_file.read_text())
            self.runs = [Run(**run) for run in kept.pop("runs")]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise SystemExit(f"{self.state_file} is not of a sweep: remove it, or give another --output") from None
        now = json.loads(json.dumps(self.identity))
        other = [key for key in now if kept.get(key) != now[key]]
        if other and all(run.state == "failed" for run in self.runs):
            self.runs = []  # of a mistyped argument, for instance: nothing is lost
        elif other:
            raise SystemExit(
                f"{self.folder} holds a sweep with other {' and '.join(other)}: give another --output, or delete it"
            )

    def save(self) -> None:
        """Writes both files."""
        kept = {**self.identity, "runs": [asdict(run) for run in self.runs]}
        write_text(self.state_file, json.dumps(kept, indent=1))
        ended = [run for run in self.runs if run.state != "running"]
        names = list(self.sweep.settings["parameters"])
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["run", *names, self.sweep.metric, "state", "seconds", "folder"])
        for run in ended:
            score = self.sweep.best(run.history) if run.history else ""
            values = [run.parameters.get(name, "") for name in names]
            table.writerow([run.name, *values, score, run.state, run.seconds, run.folder])
        write_text(self.table, text.getvalue())

    def scored(self) -> list[tuple[float, Run]]:
        """The runs that finished or were stopped early, with their best metric; the best one first."""
        ended = [run for run in self.runs if run.state in ("finished", "stopped") and run.history]
        scores = [(self.sweep.best(run.history), run) for run in ended]
        return sorted(scores, key=lambda scored: scored[0], reverse=self.sweep.maximise)


def short_names(names: Sequence[str]) -> dict[str, str]:
    """The last parts of dotted names, as many as it takes to tell them apart."""
    parts = {name: [part for part in name.split(".") if part != "init_args"] for name in names}

    def ending(name: str, length: int) -> str:
        return ".".join(parts[name][-length:])

    short = {}
    for name in names:
        lengths = range(1, len(parts[name]) + 1)
        unique = (n for n in lengths if sum(ending(other, n) == ending(name, n) for other in names) == 1)
        short[name] = ending(name, next(unique, len(parts[name])))
    return short


def brief(value: Any) -> str:
    """A value for people: 4 digits, and a block of JSON as a call of its class."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            value = json.loads(value)
        except ValueError:
            return str(value)
    if isinstance(value, dict) and "class_path" in value:
        arguments = ", ".join(f"{name}={brief(given)}" for name, given in value.get("init_args", {}).items())
        return f"{value['class_path'].split('.')[-1]}({arguments})"
    if isinstance(value, list):
        return ", ".join(map(brief, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def listed(parameters: Parameters) -> str:
    """Parameters in a line."""
    short = short_names(list(parameters))
    return ", ".join(f"{short[name]} {brief(value)}" for name, value in parameters.items())
