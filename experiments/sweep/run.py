"""One run of a sweep: what is kept of it, and its process."""

import csv
import ctypes
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.sweep.configuration import Parameters, sweeps

PATIENCE = 10.0
"""Seconds that a run has to end by itself when it is stopped."""
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
DEATH_SIGNAL = 1


@dataclass
class Run:
    """What is kept of a run.

    Attributes:
        number: From 1 on.
        parameters: The values that it was given.
        state: running, finished, stopped (early) or failed.
        history: The metric, epoch by epoch.
        seconds: How long it took.
        folder: Where main.py has written.
        error: Last line of the output of a failed run.
    """

    number: int
    parameters: Parameters
    state: str = "running"
    history: list[float] = field(default_factory=list)
    seconds: float = 0.0
    folder: str = ""
    error: str = ""

    @property
    def name(self) -> str:
        """Its name in the folder of the sweep."""
        return f"{self.number:03d}"

    def for_engine(self, metric: str) -> sweeps.SweepRun:
        """The run as the engine wants it; one that was stopped early counts with what it has reached."""
        return sweeps.SweepRun(
            name=self.name,
            config={name: {"value": value} for name, value in self.parameters.items()},
            state="finished" if self.state == "stopped" else self.state,
            sampledHistory=[{metric: value} for value in self.history],
        )


class Job:
    """The process of a run.

    Its output goes to ``folder``/NAME/output.txt, its metrics are read from ``folder``/NAME/version_N/metrics.csv.
    """

    def __init__(self, run: Run, command: Sequence[str], folder: Path, threads: int) -> None:
        self.run = run
        self.home = folder / run.name
        self.home.mkdir(parents=True, exist_ok=True)
        self.json_file.write_text(json.dumps(run.parameters))
        self.earlier = set(self.home.glob("version_*"))  # of an attempt that was interrupted
        self.started = time.monotonic()
        self.stopped: float | None = None
        run.state, run.history, run.error = "running", [], ""
        # W&B's own switch: the command may name its logger, which then does nothing
        environment = {"WANDB_MODE": "disabled", "OMP_NUM_THREADS": str(threads), **os.environ}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, f"--output={folder}", f"--name={run.name}"],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # so that all processes of the run can be stopped at once
                preexec_fn=_die_with_parent,
            )

    @property
    def log(self) -> Path:
        """The output of the run."""
        return self.home / "output.txt"

    @property
    def json_file(self) -> Path:
        """The parameters, for a command that takes them from a file."""
        return json_path(self.home.parent, self.run)

    def update(self, metric: str) -> bool:
        """Reads the metric; whether there was something new."""
        folders = [path for path in self.home.glob("version_*") if path not in self.earlier]
        if not folders:
            return False
        self.run.folder = str(max(folders, key=lambda path: int(path.name.partition("_")[2])))
        history = read_history(Path(self.run.folder) / "metrics.csv", metric)
        longer = len(history) > len(self.run.history)  # shorter while the file is being written anew
        if longer:
            self.run.history = history
        return longer

    def stop(self) -> None:
        """Asks the run to end, and after some time makes it end."""
        now = time.monotonic()
        if self.stopped is None:
            self.stopped = now
            self._signal(signal.SIGTERM)
        elif now - self.stopped > PATIENCE:
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def ended(self, metric: str) -> bool:
        """Whether the process has ended; its run then has its state."""
        if self.stopped is not None:
            self.stop()
        code = self.process.poll()
        if code is None:
            return False
        self.update(metric)
        self.run.seconds = round(time.monotonic() - self.started, 1)
        if self.stopped is not None:
            self.run.state = "stopped"
        elif code == 0 and self.run.history:
            self.run.state = "finished"
        else:
            self.run.state = "failed"
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
            last = lines[-1] if lines else f"it ended with code {code} and said nothing"
            self.run.error = last if code else f"there is no {metric} in its metrics.csv"
        return True


def json_path(folder: Path, run: Run) -> Path:
    """Where the parameters of a run are kept."""
    return folder / run.name / "parameters.json"


def read_history(path: Path, metric: str) -> list[float]:
    """The finite values of a metric in a metrics.csv, which may still be written to."""
    try:
        text = path.read_text()
    except OSError:
        return []
    complete = text[: text.rfind("\n") + 1]
    history = []
    for row in csv.DictReader(complete.splitlines()):
        try:
            value = float(row.get(metric) or "nan")
        except ValueError:
            continue
        if math.isfinite(value):
            history.append(value)
    return history


def _die_with_parent() -> None:
    """A run does not outlive its sweep, however that ends."""
    if LIBC is not None:
        LIBC.prctl(DEATH_SIGNAL, signal.SIGKILL)
