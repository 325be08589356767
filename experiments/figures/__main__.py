"""Figures and tables of a trained run, on its test images.

python -m experiments.figures --config RUN/config.yaml --checkpoint RUN/checkpoints/best.ckpt --output DIR

Learned filters, states q^0 to q^T, results beside the truth, energy and mean IoU against iterations with the solver of
the run and with another one in its place, and IoU by class. What stands after -- goes to ``main.py test``.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from experiments.figures.curves import Curve, draw_energies, draw_miou, measure, write_curves
from experiments.figures.pictures import draw_results, draw_states, filter_figures
from experiments.figures.runs import Run, initial_crf, load_run
from experiments.figures.style import save
from experiments.figures.tables import class_rows, write_classes


def main(
    config: Path,
    checkpoint: Path,
    output: Path,
    beside: Sequence[Path] = (),
    images: int | None = None,
    rows: int = 4,
    iterations: int = 20,
    step_size: float = 0.5,
    label: str | None = None,
    device: str = "cpu",
    arguments: Sequence[str] = (),
) -> dict[str, list[Curve]]:
    """Draws everything, and returns the curves by the title of the model."""
    if rows < 1 or iterations < 1 or (images is not None and images < 1):
        raise SystemExit("give --rows, --iterations and --images of 1 or more")
    sys.argv = sys.argv[:1]  # or Lightning warns that it was given arguments twice
    run = load_run(config, checkpoint, arguments)
    names = run.module.class_names
    if label is not None and label not in names:
        raise SystemExit(f"--label {label} is none of the classes: give one of {', '.join(names)}")
    output.mkdir(parents=True, exist_ok=True)
    for name, figure in filter_figures(run, initial_crf(config, arguments)):
        save(figure, output, name)

    others = [load_run(folder / "config.yaml", folder / "checkpoints" / "best.ckpt", arguments) for folder in beside]
    curves: dict[str, list[Curve]] = {}
    for number, (other, folder) in enumerate(zip([run, *others], [config.parent, *beside], strict=True)):
        if other.module.class_names != names:
            raise SystemExit(f"{folder} was trained for other classes than {config.parent}: give runs on the same data")
        other.module.to(device)
        title = other.title if other.title not in curves else f"{other.title} ({number + 1}: {folder.parent.name})"
        print(f"{folder}: {title}", flush=True)
        same_data = Run(title, other.module, run.data)
        last = max(iterations, other.crf.solver.iterations)
        curves[title] = measure(same_data, last, images, step_size)
    save(draw_energies(curves), output, "energy")
    save(draw_miou(curves), output, "miou")
    write_curves(curves, output / "curves.csv")

    table = class_rows(names, curves[run.title][0])
    print(write_classes(table, output), end="")
    gains = {name: gain for name, _, _, gain in table[:-1] if not math.isnan(gain)}  # of a class that is there
    label = label or max(gains, key=lambda name: gains[name])
    save(draw_states(run, rows), output, "states")
    save(draw_states(run, rows, label), output, "states_of_one_class")
    save(draw_results(run, rows), output, "results")
    print(f"written to {output}")
    return curves


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m experiments.figures", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, required=True, help="config.yaml of the run")
    parser.add_argument("--checkpoint", type=Path, required=True, help="one of its checkpoints")
    parser.add_argument("--output", type=Path, default=Path("outputs/figures"))
    parser.add_argument(
        "--beside", type=Path, nargs="+", default=[], metavar="RUN", help="folders of runs for curves side by side"
    )
    parser.add_argument("--images", type=int, help="measure the first so many test images; all if not given")
    parser.add_argument("--rows", type=int, default=4, help="images in pictures")
    parser.add_argument("--iterations", type=int, default=20, help="length of the curves")
    parser.add_argument("--step-size", type=float, default=0.5, help="of projected gradient where it is switched to")
    parser.add_argument("--label", help="class of the grey maps; if not given, the one that gains most from the CRF")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("arguments", nargs="*", help="of main.py test, after --")
    main(**vars(parser.parse_args()))
