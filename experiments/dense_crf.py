"""Settings of the dense CRF behind a trained network, chosen on the validation split by crfgrad tune.

python -m experiments.dense_crf --output outputs/dense_crf --report outputs/dense_crf/report.html -- \
    --config experiments/weizmann_horse/network.yaml \
    --ckpt_path outputs/weizmann_horse/network/version_0/checkpoints/best.ckpt

Options before -- are those of crfgrad tune, what stands after it goes to ``main.py validate``. Images, probabilities
and ground truth of the split are written to folders in OUTPUT, at the size at which the network sees them.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import yaml
from PIL import Image

from crfgrad.cli import main as run_crfgrad
from main import main as run_main

HEAD = "model.init_args.head.init_args."


@torch.no_grad()
def write_split(output: Path, arguments: Sequence[str]) -> int:
    """Writes images, probabilities and truth of the validation split; returns the value of unlabelled pixels."""
    run = run_main(["validate", *arguments, f"--output={output}", "--name=network"])
    module = run.model.eval()
    for batch in run.datamodule.val_dataloader():
        probabilities = module(batch["image"])[1]
        for q, image, mask, name in zip(probabilities, batch["image"], batch["mask"], batch["name"], strict=True):
            paths = {kind: output / kind / name for kind in ("images", "probabilities", "truth")}
            for path in paths.values():
                path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.movedim(0, -1).byte().numpy()).save(f"{paths['images']}.png")
            Image.fromarray(mask.byte().numpy()).save(f"{paths['truth']}.png")
            np.save(f"{paths['probabilities']}.npy", q.numpy())
    return int(run.datamodule.ignore_index)


def main(output: Path, options: Sequence[str], arguments: Sequence[str]) -> dict[str, float]:
    """Writes the split, chooses settings, prints how to use them, and returns them."""
    sys.argv = sys.argv[:1]  # or Lightning warns that it was given arguments twice
    ignore = write_split(output, arguments)
    folders = [text for kind in ("images", "probabilities", "truth") for text in (f"--{kind}", str(output / kind))]
    given = [*folders, "--ignore", str(ignore), "--output", str(output / "settings.yaml")]
    if status := run_crfgrad(["tune", *given, *options]):
        raise SystemExit(status)
    settings: dict[str, float] = yaml.safe_load((output / "settings.yaml").read_text())
    print("to use them behind the network, with --config experiments/heads/dense_crf.yaml:")
    print("  " + " ".join(f"--{HEAD}{name}={value}" for name, value in settings.items()))
    return settings


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("outputs/dense_crf"))
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    known, options = parser.parse_known_args(sys.argv[1:split])
    main(known.output, options, sys.argv[split + 1 :])
