"""Trains a network on generated street scenes, then adds a CRF in two ways: python -m experiments.demo.

Ends with a table of what the CRF is worth, and the paths of the pictures.
"""

import argparse
import time
import warnings
from pathlib import Path

from main import main as run

CONFIGS = [
    "--config",
    "experiments/synthetic_streets/network.yaml",
    "--config",
    "experiments/synthetic_streets/demo.yaml",
]
HEADS = {
    "network": None,
    "network + CRF (projected gradient)": "experiments/heads/full.yaml",
    "network + CRF (mean field)": "experiments/heads/full_mean_field.yaml",
}


def main(output: Path, arguments: list[str]) -> dict[str, dict[str, float]]:
    """Trains and tests each row of the table, and returns its metrics."""
    warnings.filterwarnings("ignore", message=".*does not have many workers.*|.*LeafSpec.*|.*logging interval.*")
    rows: dict[str, dict[str, float]] = {}
    pictures, checkpoint = [], ""
    started = time.monotonic()
    for name, head in HEADS.items():
        print(f"\n--- {name} ---")
        given = [*CONFIGS, f"--output={output}", f"--name={name.replace(' ', '_')}", "--panels.images=3", *arguments]
        if head is not None:
            given += ["--config", head, f"--model.init_args.unary_checkpoint={checkpoint}", f"--name={Path(head).stem}"]
            given += [
                "--trainer.max_epochs=2",
                "--trainer.limit_train_batches=24",
                "--model.init_args.learning_rate=1e-4",
            ]
        else:
            given += ["--trainer.max_epochs=5"]
        trained = run(["fit", *given])
        best = trained.trainer.checkpoint_callback.best_model_path  # type: ignore[union-attr]
        rows[name] = dict(trained.trainer.test(trained.model, trained.datamodule, best, verbose=False)[0])
        checkpoint = checkpoint or best
        pictures += sorted(Path(trained.trainer.log_dir).glob("pictures/*.png"))  # type: ignore[arg-type]
    print(f"\n{'test scenes':38s}{'mIoU':>8s}{'trimap mIoU':>14s}{'E(q^0)':>10s}{'E(q^5)':>10s}")
    for name, metrics in rows.items():
        energies = [f"{metrics[key]:.0f}" if key in metrics else "" for key in ("test/energy_network", "test/energy")]
        iou, band = 100 * metrics["test/miou"], 100 * metrics["test/trimap_miou"]
        print(f"{name:38s}{iou:8.1f}{band:14.1f}{energies[0]:>10s}{energies[1]:>10s}")
    print(f"\n{(time.monotonic() - started) / 60:.1f} minutes; pictures:")
    for picture in pictures:
        print(f"  {picture}")
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("outputs/demo"))
    known, rest = parser.parse_known_args()
    main(known.output, rest)
