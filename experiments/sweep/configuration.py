"""A sweep file in W&B's format: read, checked, and turned into proposals and commands."""

import json
import os
import random
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jsonschema import ValidationError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it is written for an older pydantic, whose names still work
    import sweeps

Parameters = dict[str, Any]
DEFAULT_COMMAND = ["${env}", "${interpreter}", "${program}", "${args}"]
VARIABLE = re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")
MOST = 100_000  # runs of a grid


@dataclass(frozen=True)
class Sweep:
    """What to vary, how to choose values, and the command of a run.

    Attributes:
        settings: The file, as the engine wants it.
        run_cap: Number of runs after which the sweep ends, or None.
    """

    settings: dict[str, Any]
    run_cap: int | None

    @classmethod
    def read(cls, path: Path) -> "Sweep":
        """Reads a file, and refuses one that could not be run to its end."""
        try:
            given = yaml.safe_load(path.read_text())
        except OSError:
            raise SystemExit(f"there is no file {path}: give the path of a sweep, as in experiments/sweeps") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise SystemExit(f"{path} is not YAML: {_one_line(error)}") from None
        if not isinstance(given, dict):
            raise SystemExit(f"{path} is no sweep: it needs method, metric and parameters, as in experiments/sweeps")
        cap = given.pop("run_cap", None)  # the engine does not know it
        if cap is not None and (not isinstance(cap, int) or cap < 1):
            raise SystemExit(f"run_cap in {path} must be a number of runs, got {cap!r}")
        if not isinstance(given.get("metric"), dict):
            raise SystemExit(f"{path} has no metric: give for instance metric: {{name: val/miou, goal: maximize}}")
        if given.get("method") not in ("grid", "random", "bayes"):
            raise SystemExit(f"method in {path} must be grid, random or bayes, got {given.get('method')!r}")
        parameters = given.get("parameters")
        for name, values in parameters.items() if isinstance(parameters, dict) else ():
            if isinstance(values, dict) and "parameters" in values:
                raise SystemExit(f"{name} in {path} is nested: write its parameters as {name}.NAME")
        try:
            given = {**given, "metric": {"goal": "minimize", **given["metric"]}}  # W&B's default
            sweep = cls(dict(sweeps.SweepConfig(given)), cap)
            sweep.propose([])
            sweep.to_stop([])
        except (ValidationError, ValueError, TypeError, KeyError) as error:
            raise SystemExit(f"{path} is no sweep that can be run: {_one_line(error)}") from None
        sweep._check_command(path)
        return sweep

    def _check_command(self, path: Path) -> None:
        macros = {word[2:-1] for word in self._words() if word.startswith("${") and word.endswith("}")}
        known = set(self._macros({}, Path()))
        if macros - known:
            raise SystemExit(
                f"command in {path} has ${{{min(macros - known)}}}, which means nothing here: known are "
                + ", ".join(sorted(known))
            )
        if not any(macro.startswith("args") for macro in macros):
            raise SystemExit(f"command in {path} has no ${{args}}: no parameter would reach the program")
        program = self.settings.get("program")
        if "program" in macros and (program is None or not Path(program).is_file()):
            raise SystemExit(f"program in {path} is {program}, which is no file here: start from the project's folder")

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return str(self.settings["metric"]["name"])

    @property
    def maximise(self) -> bool:
        """Whether more is better."""
        return self.settings["metric"]["goal"] == "maximize"

    def best(self, values: Sequence[float]) -> float:
        """The best of some values of the metric."""
        return max(values) if self.maximise else min(values)

    def reached(self, values: Sequence[float]) -> bool:
        """Whether one of them is as good as the target, if there is one."""
        target = self.settings["metric"].get("target")
        return target is not None and len(values) > 0 and self.best([*values, target]) == self.best(values)

    @property
    def size(self) -> int | None:
        """Number of runs of a grid; None for other methods, which have no end."""
        if self.settings["method"] != "grid":
            return None
        return sum(run is not None for run in sweeps.next_runs(self.settings, [], n=MOST))

    def propose(self, runs: list[sweeps.SweepRun]) -> Parameters | None:
        """The parameters of the next run, or None at the end of a grid."""
        random.seed(len(runs))  # the engine draws from both: a sweep that is run again is the same
        np.random.seed(len(runs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # with few runs its Gaussian process fits badly
            run = sweeps.next_run(self.settings, runs)
        if run is None:
            return None
        return {name: _plain(entry["value"]) for name, entry in run.config.items()}

    def to_stop(self, runs: list[sweeps.SweepRun]) -> set[str]:
        """Names of the runs that early_terminate would stop."""
        if "early_terminate" not in self.settings:
            return set()
        return {run.name for run in sweeps.stop_runs(self.settings, runs)}

    def command(self, parameters: Parameters, json_file: Path) -> list[str]:
        """The command of a run, as W&B's agent would build it; ``json_file`` is for ${args_json_file}."""
        macros = self._macros(parameters, json_file)
        built: list[str] = []
        for word in self._words():
            known = word.startswith("${") and word.endswith("}")
            built += macros[word[2:-1]] if known else [word]
        return built

    def _words(self) -> list[str]:
        words = map(str, self.settings.get("command") or DEFAULT_COMMAND)
        return [VARIABLE.sub(lambda match: os.environ.get(match[1], match[1]), word) for word in words]

    def _macros(self, parameters: Parameters, json_file: Path) -> dict[str, list[str]]:
        pairs = [f"{name}={value}" for name, value in parameters.items()]
        booleans = {f"{name}={value}": value for name, value in parameters.items() if isinstance(value, bool)}
        return {
            "env": ["/usr/bin/env"],
            "interpreter": [sys.executable],
            "program": [str(self.settings.get("program"))],
            "args": [f"--{pair}" for pair in pairs],
            "args_no_equals": [word for name, value in parameters.items() for word in (f"--{name}", str(value))],
            "args_no_hyphens": pairs,
            "args_no_boolean_flags": [
                f"--{pair.partition('=')[0] if pair in booleans else pair}"
                for pair in pairs
                if booleans.get(pair, True)
            ],
            "args_json": [json.dumps(parameters)],
            "args_json_file": [str(json_file)],
        }


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _one_line(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error))[:300]
