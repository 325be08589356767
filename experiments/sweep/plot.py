"""Parallel coordinates: a line for each run, an axis for each parameter, the colour by the metric."""

import math
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator

from experiments.sweep.results import brief, short_names
from experiments.sweep.run import Run

TICKS = 6
GAP = 0.04
"""The least distance between two labels on an axis of length 1."""
COLOURS = "viridis"


class Axis:
    """Places the values of a parameter on 0..1.

    Numbers are placed by size, on a logarithmic scale if they span a factor of 20 or more; anything else is spread
    evenly, in the order of appearance.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self.numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        self.values: list[Any] = sorted(set(values)) if self.numbers else list(dict.fromkeys(map(brief, values)))
        low, high = self.values[0], self.values[-1]
        self.logarithmic = self.numbers and low > 0 and high >= 20 * low

    def place(self, value: Any) -> float:
        """Where a value is: 0..1."""
        if len(self.values) == 1:
            return 0.5
        if not self.numbers:
            return self.values.index(brief(value)) / (len(self.values) - 1)
        low, high, at = (self._scaled(number) for number in (self.values[0], self.values[-1], value))
        return (at - low) / (high - low)

    def _scaled(self, number: float) -> float:
        return math.log(number) if self.logarithmic else number

    def ticks(self) -> list[tuple[float, str]]:
        """Places and labels: all values if they are few, else round numbers."""
        if not self.numbers:
            classes = [value.partition("(")[0] for value in self.values]
            labels = classes if len(set(classes)) == len(classes) else self.values
            return [
                (self.place(value), textwrap.fill(label, 24)) for value, label in zip(self.values, labels, strict=True)
            ]
        low, high = self.values[0], self.values[-1]
        marks = self.values
        if len(marks) > TICKS:
            locator = LogLocator(subs=(1.0, 2.0, 5.0)) if self.logarithmic else MaxNLocator(TICKS)
            marks = [mark for mark in locator.tick_values(low, high) if low <= mark <= high]
        return [(self.place(mark), f"{mark:.4g}") for mark in marks]


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Places on 0..1 moved as far as it takes for a gap between any two, in the same order; above 1 if they must.

    Example:
        >>> apart([0.0, 0.01, 0.5, 1.0], gap=0.05)
        [0.0, 0.05, 0.5, 1.0]
    """
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved = list(places)
    for above, below in pairwise(reversed(order)):  # down from the highest
        moved[below] = min(moved[below], moved[above] - gap)
    moved[order[0]] = max(moved[order[0]], 0.0)
    for below, above in pairwise(order):  # and up again from the lowest
        moved[above] = max(moved[above], moved[below] + gap)
    return moved


def plot(metric: str, scores: Sequence[tuple[float, Run]], path: Path) -> None:
    """Draws runs, the best of which comes first."""
    names = [name for name in scores[0][1].parameters if len({brief(run.parameters[name]) for _, run in scores}) > 1]
    titles = short_names(list(scores[0][1].parameters))
    axes = [Axis([run.parameters[name] for _, run in scores]) for name in names]
    last = Axis([score for score, _ in scores])
    figure, panel = plt.subplots(figsize=(3 + 2.6 * len(names), 4.5), layout="constrained")
    colours = mpl.colormaps[COLOURS]
    for rank, (score, run) in reversed(list(enumerate(scores))):  # the best one on top
        places = [axis.place(run.parameters[name]) for axis, name in zip(axes, names, strict=True)]
        width, opacity = (3.0, 1.0) if rank == 0 else (1.4, 0.75)
        colour = colours(last.place(score))
        panel.plot([*places, last.place(score)], color=colour, linewidth=width, alpha=opacity, marker="o", markersize=4)
    for at, (title, axis) in enumerate(zip([titles[name] for name in names] + [metric], [*axes, last], strict=True)):
        panel.plot([at, at], [0, 1], color="0.3", linewidth=1, zorder=0)
        panel.text(at, 1.06, title, ha="center", va="bottom", weight="bold")
        marks, labels = zip(*axis.ticks(), strict=True)
        for place, label in zip(apart(marks, GAP), labels, strict=True):
            panel.annotate(
                label,
                (at, place),
                xytext=(8, 0),
                textcoords="offset points",
                annotation_clip=False,
                va="center",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8},
            )
    gradient = np.linspace(0, 1, 256)[:, None]
    extent = (len(names) - 0.02, len(names) + 0.02, 0, 1)
    panel.imshow(gradient, cmap=COLOURS, extent=extent, origin="lower", aspect="auto", zorder=1)
    panel.set(xlim=(-0.15, len(names) + 0.45), ylim=(-0.06, 1.14))
    panel.set_axis_off()
    figure.savefig(path, dpi=110)
    plt.close(figure)
