"""Widths and strengths of Gaussian potentials, chosen on the validation split."""

import copy
import csv
import io
import itertools
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from crfgrad import GaussianBilateralPotential, GaussianSpatialPotential
from crfgrad.potentials.base import potts
from experiments.ablation.loop import batches
from experiments.ablation.plan import Grid, Plan
from experiments.ablation.rows import HEADS, NETWORK, Row, head_settings
from experiments.files import alone, duration, write_text
from lightning_modules.cli import CLI
from lightning_modules.metrics import segmentation_metrics
from lightning_modules.sizes import at_size
from main import main as run_main

Point = dict[str, float]
SCORE = "val/miou"
TOGETHER = 18
"""Points whose scores are found in one pass over the images, and written together."""


def points(grid: Grid) -> list[Point]:
    """All combinations that differ: where a strength is 0, only the first of the widths that go with it.

    Example:
        >>> [tuple(point.values()) for point in points({"spatial.sigma": [1, 3], "spatial.strength": [0, 2]})]
        [(1, 0), (1, 2), (3, 2)]
    """
    combinations = (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
    return [
        point
        for point in combinations
        if all(value == grid[name][0] for name, value in point.items() if _without_effect(name, point))
    ]


def _without_effect(name: str, point: Point) -> bool:
    part, parameter = name.split(".")
    return parameter != "strength" and point.get(f"{part}.strength") == 0


@torch.no_grad()
def set_widths(potentials: Sequence[nn.Module], point: Point) -> None:
    """Gives Gaussian potentials the widths and strengths of a point, as if they were built with them."""
    for potential in potentials:
        if isinstance(potential, GaussianSpatialPotential):
            if "spatial.sigma" in point:
                potential.log_sigma.fill_(math.log(point["spatial.sigma"]))
            strength = point.get("spatial.strength")
        elif isinstance(potential, GaussianBilateralPotential):
            if "bilateral.sigma_xy" in point:
                potential.log_sigma[:2] = math.log(point["bilateral.sigma_xy"])
            if "bilateral.sigma_value" in point:
                potential.log_sigma[2:] = math.log(point["bilateral.sigma_value"])
            strength = point.get("bilateral.strength")
        else:
            continue
        if strength is not None:
            potential.compatibility.copy_(strength * potts(potential.num_classes))


@torch.no_grad()
def scores(run: CLI, grid: Sequence[Point]) -> list[float]:
    """The mIoU of each point on the validation split; the network sees each image once."""
    model, device = run.model, run.trainer.strategy.root_device
    model.to(device).eval()
    ignored = run.datamodule.ignore_index
    metrics = [segmentation_metrics(run.datamodule.num_classes, ignored)["miou"].to(device) for _ in grid]
    for batch in batches(run, "val"):
        image, masks = batch["image"].to(device), [mask.to(device) for mask in batch["mask"]]
        logits = model.infer(image)[0]
        start = model.head.initial(logits)
        for point, metric in zip(grid, metrics, strict=True):
            set_widths(model.head.potentials, point)
            q = model.solver(model.head.energy(logits, image), start)
            for index, mask in enumerate(masks):
                metric.update(at_size(q[[index]], mask.shape).argmax(1), mask[None])
    return [metric.compute().item() for metric in metrics]


def choose(plan: Plan, name: str, seed: int) -> Point:
    """The best point for a row of Gaussian shape, behind the network of a seed; all are in its widths.csv."""
    row = Row(name, HEADS / f"{name}.yaml")
    grid = points(plan.grid_of(row))
    path = plan.folder(row, seed) / "widths.csv"
    network = plan.checkpoint(NETWORK, seed, "best")
    with alone(path.with_suffix(".lock")):  # the free rows want them, too
        current = path.is_file() and path.stat().st_mtime >= network.stat().st_mtime  # else of a network that is gone
        scored = [(score, point) for score, point in (_read(path) if current else []) if point in grid]
        left = [point for point in grid if point not in [point for _, point in scored]]
        if left:
            given = [*plan.given(row, seed), "--untrained=true", "--verbose=false", f"--name={row.name}/validation"]
            run = run_main(["validate", *given])
            started = time.monotonic()
            for first in range(0, len(left), TOGETHER):
                some = left[first : first + TOGETHER]
                scored += zip(scores(run, some), some, strict=True)
                scored.sort(key=lambda pair: -pair[0])
                _write(path, scored)  # so that little is lost if this is killed
                done = first + len(some)
                seconds = (time.monotonic() - started) / done * (len(left) - done)
                rest = f"; about {duration(seconds)} left" if seconds else ""
                print(f"widths: {len(scored)} of {len(grid)} points{rest}", flush=True)
    return scored[0][1]


def write_head(row: Row, point: Point, path: Path) -> Point:
    """The head of a row with other widths: as they are in Gaussian potentials, as initial values in bilateral ones.

    Returns the part of the point that the row has taken over.
    """
    content = copy.deepcopy(row.read())
    taken: Point = {}
    for potential in head_settings(content)["init_args"]["potentials"]:
        kind = str(potential["class_path"]).split(".")[-1]
        given = potential.setdefault("init_args", {})
        for name, value in point.items():
            part, parameter = name.split(".")
            if kind == f"Gaussian{part.capitalize()}Potential" or (kind, part) == ("BilateralPotential", "bilateral"):
                given[parameter] = taken[name] = value
    write_text(path, yaml.safe_dump(content, sort_keys=False))
    return taken


def _write(path: Path, scored: Sequence[tuple[float, Point]]) -> None:
    """Best first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*scored[0][1], SCORE])
    writer.writerows([*point.values(), score] for score, point in scored)
    write_text(path, text.getvalue())


def _read(path: Path) -> list[tuple[float, Point]]:
    with path.open() as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    return [(float(row.pop(SCORE)), {name: float(value) for name, value in row.items()}) for row in rows]
