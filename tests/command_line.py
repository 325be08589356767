"""Runs of main.py on tiny data, in this process or in one of their own."""

import csv
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

from main import CLI, main

ROOT = Path(__file__).parents[1]
STREETS = ROOT / "experiments" / "synthetic_streets" / "network.yaml"
QUIET = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
QUIET += ["--trainer.max_epochs=1", "--panels.images=1"]
SMALL = [f"--data.init_args.{key}" for key in ("height=48", "width=64", "train_size=4", "val_size=3", "test_size=3")]
TINY = [*QUIET, *SMALL, "--data.init_args.batch_size=2"]


def run(*arguments: str) -> CLI:
    """Runs a command in this process."""
    with patch.object(sys, "argv", ["main.py"]):  # or Lightning warns of pytest's own arguments
        return main(list(arguments))


def streets(command: str, output: Path, *arguments: str) -> CLI:
    """Runs a command on tiny street scenes; its folder is OUTPUT/run/version_N."""
    return run(command, f"--config={STREETS}", *TINY, f"--output={output}", "--name=run", *arguments)


def start(*arguments: str) -> "subprocess.Popen[str]":
    """Starts main.py as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "main.py", *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def streets_on_two(command: str, output: Path, *arguments: str) -> None:
    """The same as ``streets``, on two processes."""
    two = ["--trainer.devices=2", "--trainer.strategy=ddp"]
    process = start(command, f"--config={STREETS}", *TINY, f"--output={output}", "--name=two", *two, *arguments)
    printed = process.communicate(timeout=300)[0]
    assert process.returncode == 0, printed


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open() as file:
        return list(csv.DictReader(file))


def read_metrics(folder: Path) -> list[dict[str, str]]:
    """The rows of a run's metrics.csv."""
    return read_table(folder / "metrics.csv")
