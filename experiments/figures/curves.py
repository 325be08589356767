"""Energy and mean IoU against iterations, of the solver of a run and of another one on the same model."""

import copy
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from crfgrad import Solver
from experiments.figures.runs import Run
from experiments.figures.style import colour_of, title_of
from experiments.solvers import switched
from lightning_modules.metrics import segmentation_metrics
from lightning_modules.sizes import at_size


class Curve(NamedTuple):
    """What a solver makes of the test images, after 0 to T iterations."""

    solver: Solver
    trained: int | None
    """Iterations of the run, None for the solver that takes its place."""
    energies: Tensor
    """(T + 1, N): E(q^t) of each image, divided by its number of pixels."""
    miou: Tensor
    """(T + 1,): of the labels argmax q^t of all images."""
    iou: Tensor
    """(T + 1, L): of each class; NaN where it is neither there nor predicted."""


@torch.no_grad()
def measure(run: Run, iterations: int, images: int | None = None, step_size: float = 0.5) -> list[Curve]:
    """The curves of the run's solver and of the one to switch to, over the first so many test images."""
    module = run.module
    own = copy.deepcopy(run.crf.solver).eval()
    own.iterations = iterations
    solvers: list[Solver] = [own, switched(own, step_size)]
    energies: list[list[Tensor]] = [[] for _ in solvers]
    metrics = [
        [
            segmentation_metrics(run.data.num_classes, run.data.ignore_index).to(module.device)
            for _ in range(iterations + 1)
        ]
        for _ in solvers
    ]
    for image, mask in run.samples(images):
        logits, energy, _ = module.infer(image)
        assert energy is not None
        for solver, rows, metric in zip(solvers, energies, metrics, strict=True):
            row = []
            for state, scored in zip(solver.trajectory(energy, run.crf.initial(logits)), metric, strict=True):
                row.append(energy(state) / image[0, 0].numel())
                scored.update(at_size(state, mask.shape[1:]).argmax(1), mask)
            rows.append(torch.cat(row))
    if not energies[0]:
        raise SystemExit("there are no test images to draw: give --images a larger number")
    curves = []
    for solver, rows, metric in zip(solvers, energies, metrics, strict=True):
        values = [scored.compute() for scored in metric]
        trained = run.crf.solver.iterations if solver is solvers[0] else None
        miou, iou = (torch.stack([value[key] for value in values]).cpu() for key in ("miou", "iou"))
        curves.append(Curve(solver, trained, torch.stack(rows, dim=1).cpu(), miou, iou))
    return curves


def draw_energies(runs: dict[str, list[Curve]]) -> Figure:
    """Energy per pixel, a panel for each model: thin lines are single images, thick ones their mean."""
    figure, axes = _panels(runs, "energy per pixel", share=False)
    for axis, curves in zip(axes, runs.values(), strict=True):
        for curve in curves:
            if curve.trained is not None:
                faint = min(0.3, 12 / curve.energies.shape[1])  # or hundreds of lines hide their mean
                axis.plot(curve.energies, color=colour_of(curve.solver), linewidth=0.5, alpha=faint)
            axis.plot(curve.energies.mean(1), **_line(curve))
    _legend(figure, runs, single="single image")
    return figure


def draw_miou(runs: dict[str, list[Curve]]) -> Figure:
    """Mean IoU over the data set, a panel for each model."""
    figure, axes = _panels(runs, "mean IoU (%)", share=True)
    for axis, curves in zip(axes, runs.values(), strict=True):
        for curve in curves:
            axis.plot(100 * curve.miou, **_line(curve))
    _legend(figure, runs)
    return figure


def write_curves(runs: dict[str, list[Curve]], path: Path) -> None:
    """The numbers that the figures show, as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "solver", "iteration", "energy_per_pixel", "miou"])
        for title, curves in runs.items():
            for curve in curves:
                for t, (energy, miou) in enumerate(zip(curve.energies.mean(1), curve.miou, strict=True)):
                    writer.writerow([title, title_of(curve.solver), t, f"{energy:.6g}", f"{miou:.6g}"])


def _line(curve: Curve) -> dict:
    style = "-" if curve.trained is not None else "--"
    return {"color": colour_of(curve.solver), "linestyle": style, "linewidth": 2}


def _panels(runs: dict[str, list[Curve]], quantity: str, share: bool) -> tuple[Figure, Sequence[Axes]]:
    size = (3.4 * len(runs) + 0.4, 3.1)
    figure, axes = plt.subplots(1, len(runs), figsize=size, layout="constrained", squeeze=False, sharey=share)
    for axis, (title, curves) in zip(axes[0], runs.items(), strict=True):
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("iterations $t$", fontsize=9)
        axis.tick_params(labelsize=8)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlim(0, len(curves[0].miou) - 1)
        axis.axvline(curves[0].trained, color="0.6", linestyle=":", linewidth=1)
    axes[0, 0].set_ylabel(quantity, fontsize=9)
    return figure, axes[0]


def _legend(figure: Figure, runs: dict[str, list[Curve]], single: str | None = None) -> None:
    """One legend for all panels: solvers by colour, solid where they are the model's own."""
    handles = {}
    for curve in (curve for curves in runs.values() for curve in curves):
        name = ("" if curve.trained is not None else "switched to ") + title_of(curve.solver)
        handles[name] = Line2D([], [], label=name, **_line(curve))
    if single is not None:
        handles[single] = Line2D([], [], color="0.4", linewidth=0.5, label=single)
    handles["T"] = Line2D([], [], color="0.6", linestyle=":", linewidth=1, label="$T$ in training")
    figure.legend(
        handles=list(handles.values()), loc="outside lower center", ncols=1 + len(runs), fontsize=8, frameon=False
    )
