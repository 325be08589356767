"""What all figures share: files, colours of the solvers, legends of the classes."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from crfgrad import MeanField, ProjectedGradient, Solver
from datamodules.colours import Colour

plt.rcParams["pdf.fonttype"] = 42  # text stays text, which publishers ask for
SOLVER_COLOURS = {ProjectedGradient: "tab:blue", MeanField: "tab:orange"}
LETTER = 0.07  # inches: about the width of one at 9 points


def save(figure: Figure, folder: Path, name: str) -> None:
    """Writes NAME.pdf and NAME.png."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the layout is done; with many axes, once more for each file takes long
    for suffix in ("pdf", "png"):
        figure.savefig(folder / f"{name}.{suffix}", dpi=200)
    plt.close(figure)


def title_of(solver: Solver) -> str:
    """The name of a solver as words: "projected gradient"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(solver).__name__).lower()


def colour_of(solver: Solver) -> str:
    """The colour of its curves."""
    return SOLVER_COLOURS.get(type(solver), "tab:green")


def add_classes(figure: Figure, names: Sequence[str], colours: Sequence[Colour]) -> None:
    """A legend of the classes below the pictures, in as many columns as the figure is wide."""
    patches = [
        Patch(facecolor="#{:02x}{:02x}{:02x}".format(*colour), edgecolor="0.5", linewidth=0.5, label=name)
        for name, colour in zip(names, colours, strict=True)
    ]
    entry = LETTER * (max(map(len, names)) + 6)  # inches: the patch and the spaces between count as letters
    columns = max(1, min(len(names), int(figure.get_figwidth() / entry)))
    rows = math.ceil(len(names) / columns)
    columns = math.ceil(len(names) / rows)  # so that no row is much shorter
    figure.set_figheight(figure.get_figheight() + 0.2 * rows + 0.1)
    figure.legend(
        handles=patches, loc="outside lower center", ncols=columns, fontsize=8, frameon=False, handlelength=1.2
    )
