"""Projected gradient and mean field against the global optimum: python -m experiments.graph_cut.

Two labels and Potts costs, where graph cut finds the labelling of lowest energy: on a generated picture, or on a test
image with the scores of a trained network (--config RUN/config.yaml --checkpoint RUN/checkpoints/best.ckpt). Prints the
energy of q^t and of its rounded labels with their gap to the optimum, and draws them as a plot and as an animation. The
gap is the share of the way from the network's labels to the optimum that is missing. What stands after -- goes to
``main.py test``.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt

from crfgrad import MeanField, ProjectedGradient
from experiments.figures.runs import load_module
from experiments.figures.style import save
from experiments.graph_cut.descent import Descent, descend, table
from experiments.graph_cut.optimum import graph_cut
from experiments.graph_cut.pictures import animate, draw_gaps
from experiments.graph_cut.problem import Problem, generated, of_network


def main(output: Path, problem: Problem, iterations: int = 50) -> list[Descent]:
    """Prints the table, writes gaps.pdf, gaps.png and descent.gif, and returns what each solver has found."""
    optimum = graph_cut(problem.energy)
    solvers = (ProjectedGradient(iterations), MeanField(iterations))
    descents = [descend(problem, solver, optimum) for solver in solvers]
    print(table(problem, optimum, descents))
    figure, axis = plt.subplots(figsize=(4.5, 3.2), layout="constrained")
    draw_gaps(figure, axis, descents)
    save(figure, output, "gaps")
    animate(problem, optimum, descents, output / "descent.gif")
    print(f"written to {output}")
    return descents


def read_problem(asked: argparse.Namespace) -> Problem:
    """The problem that the command line asks for."""
    size = {"height": asked.height, "width": asked.width, "strength": asked.strength}
    if asked.config is None and asked.checkpoint is None:
        if asked.image is not None or asked.label or asked.arguments:
            raise SystemExit("--image, --label and arguments after -- are of a run: give its --config and --checkpoint")
        return generated(**size, seed=asked.seed or 0)
    if asked.config is None or asked.checkpoint is None:
        raise SystemExit("give both --config and --checkpoint of a run, or neither for a generated picture")
    if asked.seed is not None:
        raise SystemExit("--seed is of the generated picture: leave it out, or --config and --checkpoint")
    module, data = load_module(asked.config, asked.checkpoint, asked.arguments)
    label = asked.label or module.class_names[-1]
    if label not in module.class_names:
        raise SystemExit(f"--label {label} is none of the classes: give one of {', '.join(module.class_names)}")
    return of_network(module, data, asked.image or 0, label, **size)


def read_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.graph_cut",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, default=Path("outputs/graph_cut"))
    parser.add_argument("--config", type=Path, help="config.yaml of a run, whose network gives the scores")
    parser.add_argument("--checkpoint", type=Path, help="one of its checkpoints")
    parser.add_argument("--image", type=int, help="number of the test image; the default is 0, the first")
    parser.add_argument("--label", help="class against the rest; the default is the last one")
    parser.add_argument(
        "--height", type=int, default=36, help="images are scaled to it; memory grows as pixels squared"
    )
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--strength", type=float, default=1.0, help="cost of different labels against the unary term")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--seed", type=int, help="of the generated picture, 0 if not given")
    parser.add_argument("arguments", nargs="*", help="of main.py test, after --")
    asked = parser.parse_args(arguments)
    if min(asked.height, asked.width) < 8 or asked.strength <= 0 or asked.iterations < 1:
        raise SystemExit(
            "give --height and --width of at least 8 pixels, --strength above 0 and --iterations of 1 or more"
        )
    return asked


if __name__ == "__main__":
    asked = read_arguments()
    sys.argv = sys.argv[:1]  # or Lightning warns that it was given arguments twice
    try:
        main(asked.output, read_problem(asked), asked.iterations)
    except ValueError as refusal:
        raise SystemExit(str(refusal)) from None
