"""One run after the other: trained, tested, and written to its folder; none of them twice."""

import platform
import shutil
import statistics
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from experiments.ablation.loop import compare_solvers
from experiments.ablation.plan import Plan
from experiments.ablation.rows import NETWORK, Row
from experiments.ablation.widths import Point, choose, write_head
from experiments.files import alone, duration, write_json
from lightning_modules.cli import CLI
from main import main as run_main


def run_all(plan: Plan, rows: Sequence[Row], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The results of all runs; those that are not there yet are run now."""
    runs = [(row, seed) for seed in seeds for row in rows]
    for row in rows:
        plan.refuse_other_settings(row)
    results: dict[tuple[Row, int], dict[str, Any]] = {}
    for row, seed in runs:
        found = plan.result(row, seed)
        if found is not None:
            results[row, seed] = found
    for number, (row, seed) in enumerate(runs, start=1):
        line = f"run {number} of {len(runs)}: seed {seed}, {row.title}: "
        with alone(plan.folder(row, seed) / "lock"):  # another process may be sharing the work
            found = results.get((row, seed)) or plan.result(row, seed)
            if found is not None:
                results[row, seed] = found
                print(f"{line}mIoU {100 * found['metrics']['miou']:.1f}, done before", flush=True)
                continue
            left = remaining(list(results.values()), [key for key in runs if key not in results])
            print(f"{line}started{left}", flush=True)
            results[row, seed] = found = run_one(plan, row, seed)
        left = remaining(list(results.values()), [key for key in runs if key not in results])
        took = duration(found["seconds"])
        print(f"{line}mIoU {100 * found['metrics']['miou']:.1f}, took {took}{left}", flush=True)
    return [results[key] for key in runs]


def run_one(plan: Plan, row: Row, seed: int) -> dict[str, Any]:
    """Chooses widths where the row wants that, trains, tests, and writes the result."""
    folder = plan.folder(row, seed)
    settings = plan.settings(row)
    resumed = (folder / "widths.csv").is_file() or any(folder.glob("version_*"))
    write_json(folder / "settings.json", settings)
    started = time.monotonic()
    widths: Point | None = None
    head = row.head
    source = plan.uses_widths(row)
    if source is not None:
        head = folder / "head.yaml"
        widths = write_head(row, choose(plan, source, seed), head)
    run, metrics = (train_and_test if row.trained else only_test)(plan, row, seed, head)
    result = {
        "row": row.name,
        "seed": seed,
        "metrics": {name.removeprefix("test/"): value for name, value in metrics.items()},
        "validation": best_score(run) if row.trained else None,
        "solvers": compare_solvers(run),
        "widths": widths,
        "data": type(run.datamodule).__name__,
        "classes": list(run.datamodule.classes),
        "seconds": time.monotonic() - started,
        "resumed": resumed,
        "command": plan.command,
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "settings": settings,
    }
    write_json(folder / "result.json", result)
    return plan.result(row, seed) or result


def best_score(run: CLI) -> float | None:
    """The mIoU on the validation split of the checkpoint that was tested."""
    score = run.trainer.checkpoint_callback.best_model_score  # type: ignore[union-attr]
    return None if score is None else float(score)


def versions() -> dict[str, str]:
    """Of Python and of the packages that results depend on."""
    packages = ["crfgrad", "torch", "numba", "pytorch-lightning", "torchmetrics", "segmentation-models-pytorch", "timm"]
    found = {name: metadata.version(name) for name in [*packages, "albumentations"]}
    return {"Python": platform.python_version(), **found}


def train_and_test(plan: Plan, row: Row, seed: int, head: Path | None) -> tuple[CLI, dict[str, float]]:
    """Trains, from the last epoch of a run that was killed if there is one, and tests the best checkpoint."""
    given = plan.given(row, seed, head)
    last, best = (plan.checkpoint(row, seed, name) for name in ("last", "best"))
    if last.is_file():
        given.append(f"--ckpt_path={last}")
    else:
        for begun in plan.folder(row, seed).glob("version_*"):  # killed before its first epoch was over
            shutil.rmtree(begun)
    run = run_main(["fit", *given])
    if not best.is_file():
        raise SystemExit(f"{best} was not written: leave the checkpoints as they are by default")
    tested = run.trainer.test(run.model, run.datamodule, str(best), verbose=False, weights_only=True)
    return run, dict(tested[0])


def only_test(plan: Plan, row: Row, seed: int, head: Path | None) -> tuple[CLI, dict[str, float]]:
    """Tests a head in which there is nothing to learn, behind the network of the seed."""
    run = run_main(["test", *plan.given(row, seed, head), "--untrained=true", "--verbose=false"])
    return run, {name: value.item() for name, value in run.trainer.callback_metrics.items()}


def remaining(results: Sequence[dict[str, Any]], left: Sequence[tuple[Row, int]]) -> str:
    """The time that the runs that are left will take, by the mean of finished ones of the same row, or kind."""
    if not left:
        return ""
    timed = [result for result in results if not result["resumed"]]
    seconds, unknown = 0.0, 0
    for row, _ in left:
        same = [result["seconds"] for result in timed if result["row"] == row.name]
        heads = [result["seconds"] for result in timed if result["row"] != NETWORK.name and row.head is not None]
        if same or heads:
            seconds += statistics.mean(same or heads)
        else:
            unknown += 1
    if unknown == len(left):
        return f"; {unknown} left, of a kind that has not been timed yet"
    return f"; about {duration(seconds)} left" + (
        f" and {unknown} runs that have not been timed yet" if unknown else ""
    )
