"""Learns street scenes from scribbles, with and without a regulariser: python -m experiments.scribbles.

Ends with a table, and a picture of scribbles and results.
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from datamodules import SyntheticStreets
from experiments.scribbles.picture import draw
from main import main as run

EXPERIMENTS = Path(__file__).parents[1]
STREETS = EXPERIMENTS / "synthetic_streets"
ROWS = {
    "partial cross-entropy": ["partial"],
    "+ DenseEnergyLoss": ["dense_energy", "partial"],
    "+ GatedCRFLoss": ["gated_crf", "partial"],
    "all pixels labelled": [],
}
SCHEDULE = ["--trainer.max_epochs=8"]
SCENES = [f"--data.init_args.{key}" for key in ("height=64", "width=96", "train_size=240", "test_size=64")]


def main(output: Path, arguments: list[str]) -> dict[str, dict[str, float]]:
    """Trains and tests each row of the table, and returns its metrics."""
    sys.argv = sys.argv[:1]  # or Lightning warns that it was given arguments twice
    started = time.monotonic()
    metrics: dict[str, dict[str, float]] = {}
    results: dict[str, list[Tensor]] = {}
    for name, configurations in ROWS.items():
        print(f"\n--- {name} ---", flush=True)
        given = [f"--config={STREETS / 'network.yaml'}", f"--config={STREETS / 'demo.yaml'}"]
        given += [f"--config={EXPERIMENTS / 'scribbles' / configuration}.yaml" for configuration in configurations]
        began = time.monotonic()
        trained = run(["fit", *given, f"--output={output}", f"--name={_folder(name)}", *SCHEDULE, *SCENES, *arguments])
        minutes = (time.monotonic() - began) / 60
        best = trained.trainer.checkpoint_callback.best_model_path  # type: ignore[union-attr]
        tested = trained.trainer.test(trained.model, trained.datamodule, best, verbose=False, weights_only=True)
        metrics[name] = dict(tested[0]) | {"minutes": minutes}
        data: SyntheticStreets = trained.datamodule
        with torch.no_grad():
            trained.model.eval()
            scenes = [data.dataset("test", [])[index]["image"] for index in range(4)]
            results[name] = [
                trained.model(scene[None].to(trained.model.device))[1].argmax(1)[0].cpu() for scene in scenes
            ]
        if name == "partial cross-entropy":
            weak = data
    print(table(metrics))
    picture = output / "scribbles.png"
    draw(weak, results, picture)
    print(f"\n{(time.monotonic() - started) / 60:.1f} minutes; picture: {picture}")
    return metrics


def _folder(name: str) -> str:
    return name.strip("+ ").replace(" ", "_").replace("-", "_").lower()


def table(metrics: dict[str, dict[str, float]]) -> str:
    """IoU in percent, and what training took."""
    lines = [f"\n{'test scenes':28s}{'mIoU':>8s}{'trimap mIoU':>14s}{'minutes':>10s}"]
    for name, row in metrics.items():
        scores = f"{100 * row['test/miou']:8.1f}{100 * row['test/trimap_miou']:14.1f}"
        lines.append(f"{name:28s}{scores}{row['minutes']:10.1f}")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("outputs/scribbles"))
    known, rest = parser.parse_known_args()
    main(known.output, rest)
