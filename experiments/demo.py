"""Trains a network on generated street scenes, then adds a CRF in two ways: python -m experiments.demo.

Ends with a table of what the CRF is worth, and the paths of the pictures.
"""

import argparse
import sys
import time
from pathlib import Path

from main import main as run

EXPERIMENTS = Path(__file__).parent
STREETS = EXPERIMENTS / "synthetic_streets"
ROWS = {
    "network": [],
    "network + CRF (projected gradient)": [f"--config={EXPERIMENTS / 'heads' / 'full.yaml'}"],
    "network + CRF (mean field)": [f"--config={EXPERIMENTS / 'heads' / 'full_mean_field.yaml'}"],
}
NETWORK = ["--trainer.max_epochs=4"]
HEAD = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=40", "--model.init_args.learning_rate=1e-4"]


def main(output: Path, arguments: list[str]) -> dict[str, dict[str, float]]:
    """Trains and tests each row of the table, and returns its metrics."""
    sys.argv = sys.argv[:1]  # or Lightning warns that it was given arguments twice
    started = time.monotonic()
    metrics: dict[str, dict[str, float]] = {}
    pictures: list[Path] = []
    network = None
    for name, head in ROWS.items():
        print(f"\n--- {name} ---", flush=True)
        given = [
            f"--config={STREETS / 'network.yaml'}",
            f"--config={STREETS / 'demo.yaml'}",
            *head,
            f"--output={output}",
        ]
        given += NETWORK if network is None else [*HEAD, f"--model.init_args.unary_checkpoint={network}"]
        trained = run(["fit", *given, *arguments])
        best = trained.trainer.checkpoint_callback.best_model_path  # type: ignore[union-attr]
        tested = trained.trainer.test(trained.model, trained.datamodule, best, verbose=False, weights_only=True)
        metrics[name] = dict(tested[0])
        network = network or best
        folder = Path(trained.trainer.log_dir or output) / "pictures"
        pictures += [folder / "predictions_test.png", *sorted(folder.glob("filters_*.png"))]
    print(table(metrics))
    print(f"\n{(time.monotonic() - started) / 60:.1f} minutes; pictures:")
    for picture in pictures:
        print(f"  {picture}")
    alone, *refined = (row["test/miou"] for row in metrics.values())
    if min(refined) <= alone:
        print("A CRF is no better than the network alone: with this short schedule that should not be.")
    return metrics


def table(metrics: dict[str, dict[str, float]]) -> str:
    """IoU in percent of each row and of the network in it, and mean energies of the network's q^0 and of q^5."""
    columns = {"mIoU": "miou", "trimap mIoU": "trimap_miou", "its network's": "miou_network"}
    energies = {"E(q^0)": "energy_network", "E(q^5)": "energy"}
    lines = [f"\n{'test scenes':36s}" + "".join(f"{title:>15s}" for title in (*columns, *energies))]
    for name, row in metrics.items():
        cells = [f"{100 * row[f'test/{key}']:.1f}" if f"test/{key}" in row else "" for key in columns.values()]
        cells += [f"{row[f'test/{key}']:.0f}" if f"test/{key}" in row else "" for key in energies.values()]
        lines.append(f"{name:36s}" + "".join(f"{cell:>15s}" for cell in cells))
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("outputs/demo"))
    known, rest = parser.parse_known_args()
    main(known.output, rest)
