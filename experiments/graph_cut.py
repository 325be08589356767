"""Projected gradient and mean field against the global optimum: python -m experiments.graph_cut.

Two labels and Potts costs on a generated picture, where graph cut finds the labelling of lowest energy. Prints the
energy of q^t and of its rounded labels with their gap to the optimum, and draws them as a plot and as an animation.
The gap is the share of the way from the network's labels to the optimum that is missing.
"""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import maxflow
import numpy as np
import torch
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from crfgrad import (
    CRF,
    Energy,
    GaussianBilateralPotential,
    GaussianSpatialPotential,
    MeanField,
    ProjectedGradient,
    Solver,
    round_labels,
)
from experiments.figures.style import colour_of, save, title_of
from experiments.scene import make_logits, make_scene

FLOOR = 1e-4  # the smallest gap that the plot tells from none
PRINTED = (0, 1, 2, 3, 5, 10, 20, 50, 100)


class Problem(NamedTuple):
    """Two labels on a generated picture."""

    image: Tensor
    """(3, H, W), colours 0..255."""
    logits: Tensor
    """(1, 2, H, W)."""
    crf: CRF
    energy: Energy


class Descent(NamedTuple):
    """What a solver has found after 0 to T iterations."""

    solver: Solver
    states: Tensor
    """(T + 1, H, W): q^t of label 1."""
    labels: Tensor
    """(T + 1, H, W): ``round_labels`` of q^t."""
    energies: np.ndarray
    """(T + 1, 2): E of q^t and of the labels."""
    gaps: np.ndarray
    """(T + 1, 2): their gaps to the optimum."""


def potts_costs(energy: Energy) -> Tensor:
    """What each pair of pixels pays for different labels, of one image with two labels: (H*W, H*W)."""
    shape = energy.unary.shape
    if shape[:2] != (1, 2) or not energy.symmetric or not energy.exclude_self:
        raise ValueError(
            f"graph cut is for one image, two labels and symmetric potentials that exclude self, got {tuple(shape)}"
        )
    pixels = shape[2] * shape[3]
    costs = energy.unary.new_zeros(pixels, pixels)
    alike = energy.pairwise(torch.zeros_like(energy.unary).index_fill(1, torch.tensor(0), 1))[:, 0].abs().max()
    for pixel in range(pixels):
        impulse = torch.zeros_like(energy.unary)
        impulse.view(2, -1)[1, pixel] = 1
        to_zero, to_one = energy.pairwise(impulse)[0].flatten(1)  # (H*W,) each
        costs[:, pixel] = to_zero
        alike = torch.maximum(alike, to_one.abs().max())
    tolerance = 1e-6 * float(costs.abs().max())
    if costs.min() < -tolerance or alike > tolerance * pixels:
        raise ValueError("graph cut needs Potts costs: none between equal labels, 0 or more between different ones")
    return costs.clamp_min(0)


@torch.no_grad()
def graph_cut(energy: Energy) -> Tensor:
    """The labelling of lowest energy of one image, two labels and Potts costs: (1, H, W)."""
    height, width = energy.unary.shape[2:]
    costs = torch.triu(potts_costs(energy), 1).double().cpu()
    first, second = costs.nonzero(as_tuple=True)
    capacity = costs[first, second].numpy()
    if_zero, if_one = energy.unary[0].flatten(1).double().cpu().numpy()
    lowest = np.minimum(if_zero, if_one)  # capacities must not be negative; a constant changes no minimum
    graph = maxflow.Graph[float](height * width, len(capacity))
    nodes = graph.add_grid_nodes(height * width)
    graph.add_grid_tedges(nodes, if_one - lowest, if_zero - lowest)  # in the sink's segment a node has label 1
    graph.add_edges(first.numpy(), second.numpy(), capacity, capacity)
    graph.maxflow()
    segments = torch.from_numpy(graph.get_grid_segments(nodes))
    return segments.long().reshape(1, height, width).to(energy.unary.device)


@torch.no_grad()
def make_problem(height: int = 36, width: int = 48, strength: float = 1.0, seed: int = 0) -> Problem:
    """House and trees against the rest of a generated picture, with noisy scores and Gaussian potentials."""
    image, labels = make_scene(height, width, seed)
    logits = make_logits((labels > 1).long(), num_classes=2, stride=4, seed=seed)[None].double()
    potentials = [
        GaussianSpatialPotential(2, radius=2, strength=strength),
        GaussianBilateralPotential(2, sigma_xy=8.0, sigma_rgb=20.0, strength=strength),
    ]
    crf = CRF(2, potentials).double().eval()
    return Problem(image, logits, crf, crf.energy(logits, image[None].double()))


@torch.no_grad()
def descend(problem: Problem, solver: Solver, optimum: Tensor) -> Descent:
    """Follows a solver, and rounds each of its states.

    Args:
        problem: The problem.
        solver: The solver.
        optimum: The labelling of lowest energy, (1, H, W).
    """
    energy = problem.energy
    lowest, network = (float(energy.of_labels(labels)) for labels in (optimum, problem.logits.argmax(1)))
    states, labels, energies = [], [], []
    for q in solver.eval().trajectory(energy, problem.crf.initial(problem.logits)):
        rounded = round_labels(energy, q)
        states.append(q[0, 1])
        labels.append(rounded[0])
        energies.append([float(energy(q)), float(energy.of_labels(rounded))])
    gaps = (np.array(energies) - lowest) / (network - lowest)
    assert gaps.min() > -1e-9, "something is lower than the optimum"
    return Descent(solver, torch.stack(states), torch.stack(labels), np.array(energies), gaps.clip(min=0))


def table(problem: Problem, optimum: Tensor, descents: list[Descent]) -> str:
    """Energies and gaps of some of the iterations."""
    lowest, network = (float(problem.energy.of_labels(labels)) for labels in (optimum, problem.logits.argmax(1)))
    lines = [f"labels of the network: E = {network:.2f}; graph cut: E = {lowest:.2f}"]
    lines.append(f"{'solver':20s}{'t':>5s}{'E(q^t)':>12s}{'gap':>9s}{'E(labels)':>12s}{'gap':>9s}{'differ':>8s}")
    for descent in descents:
        last = len(descent.energies) - 1
        for t in sorted({t for t in PRINTED if t < last} | {last}):
            (relaxed, rounded), (gap, rounded_gap) = descent.energies[t], descent.gaps[t]
            differ = int((descent.labels[t] != optimum[0]).sum())
            lines.append(
                f"{title_of(descent.solver):20s}{t:5d}{relaxed:12.2f}{gap:9.2%}{rounded:12.2f}{rounded_gap:9.2%}{differ:8d}"
            )
    return "\n".join(lines)


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


def main(
    output: Path, height: int = 36, width: int = 48, strength: float = 1.0, iterations: int = 50, seed: int = 0
) -> list[Descent]:
    """Prints the table, writes gaps.pdf, gaps.png and descent.gif, and returns what each solver has found."""
    if min(height, width) < 8 or strength <= 0 or iterations < 1:
        raise SystemExit(
            "give --height and --width of at least 8 pixels, --strength above 0 and --iterations of 1 or more"
        )
    problem = make_problem(height, width, strength, seed)
    optimum = graph_cut(problem.energy)
    descents = [descend(problem, solver, optimum) for solver in (ProjectedGradient(iterations), MeanField(iterations))]
    print(table(problem, optimum, descents))
    figure, axis = plt.subplots(figsize=(4.5, 3.2), layout="constrained")
    draw_gaps(figure, axis, descents)
    save(figure, output, "gaps")
    animate(problem, optimum, descents, output / "descent.gif")
    print(f"written to {output}")
    return descents


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("outputs/graph_cut"))
    parser.add_argument("--height", type=int, default=36)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--strength", type=float, default=1.0, help="cost of different labels against the unary term")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
