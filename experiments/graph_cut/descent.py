"""What solvers find, beside the optimum."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from crfgrad import Solver, round_labels
from experiments.figures.style import title_of
from experiments.graph_cut.problem import Problem

PRINTED = (0, 1, 2, 3, 5, 10, 20, 50, 100)


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
    if network == lowest:
        raise ValueError("the network's labels have the lowest energy already: raise --strength, or take another image")
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
