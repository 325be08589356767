"""Gaps to the optimum as a plot, and the way of each solver as an animation."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from experiments.figures.style import colour_of, title_of
from experiments.graph_cut.descent import Descent
from experiments.graph_cut.problem import Problem

FLOOR = 1e-4  # the smallest gap that the plot tells from none


def draw_gaps(figure: Figure, axis: Axes, descents: list[Descent]) -> None:
    """The gaps against iterations, on a logarithmic scale; what is below FLOOR lies on its lower edge."""
    for descent in descents:
        name, colour = title_of(descent.solver), colour_of(descent.solver)
        relaxed, rounded = descent.gaps.clip(min=FLOOR).T
        axis.plot(relaxed, color=colour, label=f"{name}, $q^t$")
        axis.plot(rounded, color=colour, linestyle="--", label=f"{name}, rounded labels")
    axis.set(yscale="log", xlim=(0, len(descents[0].gaps) - 1))
    axis.set_ylim(bottom=FLOOR / 1.5)
    powers = [power for power in range(round(np.log10(FLOOR)), 3) if 10.0**power <= axis.get_ylim()[1]]
    ticks = [f"{100 * 10.0**power:g} %" for power in powers]
    axis.set_yticks([10.0**power for power in powers], [f"\u2264 {ticks[0]}", *ticks[1:]])
    axis.minorticks_off()
    axis.tick_params(labelsize=8)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axis.set_xlabel("iterations $t$", fontsize=9)
    axis.set_ylabel("gap to the optimum", fontsize=9)
    axis.grid(axis="y", color="0.9")
    axis.spines[["top", "right"]].set_visible(False)
    columns = 2 if figure.get_figwidth() < 8 else 4
    figure.legend(fontsize=8, frameon=False, loc="outside lower center", ncols=columns)


def animate(problem: Problem, optimum: Tensor, descents: list[Descent], path: Path) -> None:
    """q^t and its rounded labels beside the optimum, above the gaps: one frame for each t."""
    names = ["image", *(name for each in range(len(descents)) for name in (f"q{each}", f"x{each}")), "optimum"]
    rows: list[Any] = [names, ["gaps"] * len(names)]
    figure, axes = plt.subplot_mosaic(rows, figsize=(1.6 * len(names), 4), height_ratios=[1, 1.5], layout="constrained")
    for name in names:
        axes[name].set(xticks=[], yticks=[])
    axes["image"].imshow(problem.image.movedim(0, -1).numpy().astype(np.uint8))
    axes["image"].set_title("\nimage", fontsize=8)
    axes["optimum"].imshow(optimum[0], cmap="gray", vmin=0, vmax=1)
    axes["optimum"].set_title("\ngraph cut", fontsize=8)
    pictures = {name: axes[name].imshow(optimum[0], cmap="gray", vmin=0, vmax=1) for name in names[1:-1]}
    draw_gaps(figure, axes["gaps"], descents)
    now = axes["gaps"].axvline(0, color="0.5", linewidth=1)

    def draw(t: int) -> list:
        for number, descent in enumerate(descents):
            pictures[f"q{number}"].set_data(descent.states[t])
            pictures[f"x{number}"].set_data(descent.labels[t])
            differ = int((descent.labels[t] != optimum[0]).sum())
            axes[f"q{number}"].set_title(f"{title_of(descent.solver)}\n$q^{{{t}}}$", fontsize=8)
            axes[f"x{number}"].set_title(f"rounded\n{differ} pixel{'s' * (differ != 1)} off", fontsize=8)
        now.set_xdata([t, t])
        return []

    frames = len(descents[0].states)
    FuncAnimation(figure, draw, frames=frames, init_func=list).save(path, PillowWriter(fps=4), dpi=100)
    plt.close(figure)
