"""Learned filters, the states q^0 to q^T, and results beside the truth."""

from collections.abc import Iterator
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from torch import Tensor

from crfgrad import CRF, BilateralPotential
from experiments.figures.runs import Run
from experiments.figures.style import LETTER, add_classes
from lightning_modules.pictures import blend, draw_filters, draw_panel, filters_of, lattice_filter_slice, paint, picture
from lightning_modules.sizes import at_size

Picture = dict[str, np.ndarray]
MOST_STATES = 6
MOST_LABELS = 8
COST = "cost that the row's label, in the middle, pays for the column's"


def filter_figures(run: Run, initial: CRF) -> Iterator[tuple[str, Figure]]:
    """Name and figure for each potential: filters of the pairs of labels, or slices of them on the lattice.

    Free filters on the lattice start as a Gaussian that hides what is learned: their change has a figure of its own.

    Args:
        run: The run.
        initial: Its CRF before training.
    """
    names = run.module.class_names
    for number, (potential, before) in enumerate(zip(run.crf.potentials, initial.potentials, strict=True)):
        found = filters_of(potential)
        if found is None:
            continue
        name = f"filters_{number}_{type(potential).__name__}"
        kernel, axes = found
        yield name, draw_strongest(kernel, names, COST, axes, MOST_LABELS)
        if isinstance(before, BilateralPotential):
            change = kernel - lattice_filter_slice(before)
            title = f"change in training of the {COST}"
            yield f"{name}_change", draw_strongest(change, names, title, axes, MOST_LABELS)


def draw_strongest(kernel: Tensor, names: list[str], quantity: str, axes: str, most: int) -> Figure:
    """The filters of the labels that have the strongest ones, in their own order.

    Args:
        kernel: (L, L, height, width).
        names: Names of the labels.
        quantity: What the colours are.
        axes: What the axes of each small picture are.
        most: How many labels.
    """
    strength = kernel.abs().amax(dim=(1, 2, 3))  # (L,)
    kept = strength.argsort(descending=True)[:most].sort().values
    figure = draw_filters(kernel[kept][:, kept], [names[label] for label in kept], axes, most)
    lines = fill(f"{quantity}, {axes}", int(figure.get_figwidth() / LETTER))
    figure.set_figheight(figure.get_figheight() + 0.15 * lines.count("\n"))
    figure.suptitle(lines, fontsize=9)
    return figure


@torch.no_grad()
def states_of(run: Run, image: Tensor) -> list[Tensor]:
    """q^0 to q^T of one image (1, 3, H, W), each (L, H, W), on the CPU."""
    return [state[0].cpu() for state in run.module.infer(image)[2]]


def draw_states(run: Run, images: int, label: str | None = None) -> Figure:
    """A row of states for each of the first so many images.

    Args:
        run: The run.
        images: How many images.
        label: Draws q of this class as grey maps; None blends the colours of all classes.
    """
    rows = [_states_row(run, image, label) for image, _ in run.samples(images)]
    figure = draw_panel(rows)
    if label is None:
        add_classes(figure, run.module.class_names, run.module.colours)
    else:
        scale = ScalarMappable(plt.Normalize(0, 1), "gray")
        bar = figure.colorbar(scale, ax=figure.axes, aspect=15 * len(rows), pad=0.01, ticks=[0, 0.5, 1])
        bar.set_label(f"q of {label}", fontsize=9)
        bar.ax.tick_params(labelsize=8)
    return figure


def draw_results(run: Run, images: int) -> Figure:
    """Image, truth, labels of the network and of the CRF, for each of the first so many images."""
    rows = []
    for image, mask in run.samples(images):
        states = states_of(run, image)
        size = mask.shape[1:]
        first, last = (at_size(state[None], size)[0].argmax(0) for state in (states[0], states[-1]))
        labels = {"truth": mask[0], "network": first, "network + CRF": last}
        painted = {title: paint(each, run.module.colours) for title, each in labels.items()}
        rows.append({"image": picture(image[0], size), **painted})
    figure = draw_panel(rows)
    add_classes(figure, run.module.class_names, run.module.colours)
    return figure


def _states_row(run: Run, image: Tensor, label: str | None) -> Picture:
    states = states_of(run, image)
    drawn = np.unique(np.linspace(0, len(states) - 1, MOST_STATES).round().astype(int))
    row = {"image": picture(image[0], image.shape[2:])}
    for t in drawn:
        if label is None:
            row[f"$q^{{{t}}}$"] = blend(states[t].float(), run.module.colours)
        else:
            grey = states[t][run.module.class_names.index(label)].clamp(0, 1).float()
            row[f"$q^{{{t}}}$"] = grey[..., None].expand(-1, -1, 3).numpy()
    return row
