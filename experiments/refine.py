"""Refines noisy scores of a generated picture with each solver: python -m experiments.refine.

Prints energy and IoU before and after, and draws image, scores, q^1 ... q^5 and result.
"""

import argparse
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor

from crfgrad import CRF, FrankWolfe, MeanField, MirrorDescent, ProjectedGradient, round_labels
from experiments.scene import CLASSES, PALETTE, make_logits, make_scene
from lightning_modules.pictures import blend

COLOURS = PALETTE.tolist()


def mean_iou(predicted: Tensor, truth: Tensor) -> float:
    """Mean over the classes of intersection over union, in percent."""
    ious = []
    for label in range(len(CLASSES)):
        union = ((predicted == label) | (truth == label)).sum()
        if union:
            ious.append(((predicted == label) & (truth == label)).sum() / union)
    return 100 * float(torch.stack(ious).mean())


@torch.no_grad()
def main(path: Path, seed: int = 0) -> dict[str, float]:
    """Runs the example and returns the mean IoU of the scores and of each solver's result."""
    image, truth = make_scene(seed=seed)
    logits = make_logits(truth, seed=seed)
    crf = CRF(num_classes=len(CLASSES)).eval()  # the full model with its initial values, not trained
    energy = crf.energy(logits[None], image[None])
    start = crf.initial(logits[None])
    iou = {"scores": mean_iou(logits.argmax(0), truth)}
    print(f"{'solver':20s}{'E(q^0)':>10s}{'E(q^5)':>10s}{'E(labels)':>11s}{'mean IoU':>10s}")
    before, unrefined = float(energy(start)), float(energy.of_labels(logits.argmax(0)[None]))
    print(f"{'none':20s}{before:10.0f}{'':10s}{unrefined:11.0f}{iou['scores']:10.1f}")

    solvers = [ProjectedGradient(), MeanField(), MirrorDescent(), FrankWolfe()]
    figure, axes = plt.subplots(len(solvers), 9, figsize=(18, 1.62 * len(solvers)), layout="constrained")
    for row, solver in zip(axes, solvers, strict=True):
        crf.solver = solver.eval()
        states = list(crf.trajectory(logits[None], image[None]))
        labels = round_labels(energy, states[-1])
        name = type(solver).__name__
        iou[name] = mean_iou(labels[0], truth)
        after, rounded = float(energy(states[-1])), float(energy.of_labels(labels))
        print(f"{name:20s}{before:10.0f}{after:10.0f}{rounded:11.0f}{iou[name]:10.1f}")
        panels = {"image": image.movedim(0, -1).numpy() / 255, "$q^0$": blend(states[0][0], COLOURS)}
        panels |= {f"$q^{t}$": blend(state[0], COLOURS) for t, state in enumerate(states[1:], start=1)}
        panels |= {"result": PALETTE[labels[0]].numpy(), "truth": PALETTE[truth].numpy()}
        for axis, (title, picture) in zip(row, panels.items(), strict=True):
            axis.imshow(picture)
            axis.set(xticks=[], yticks=[])
            if solver is solvers[0]:
                axis.set_title(title)
        row[0].set_ylabel(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    plt.close(figure)
    print(f"picture: {path}")
    return iou


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("outputs/refine.png"))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    main(arguments.output, arguments.seed)
