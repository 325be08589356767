"""Settings of the dense CRF behind a trained network, chosen on the validation split by crfgrad tune.

python -m experiments.dense_crf --output outputs/dense_crf --report outputs/dense_crf/report.html -- \
    --config experiments/weizmann_horse/network.yaml \
    --ckpt_path outputs/weizmann_horse/network/version_0/checkpoints/best.ckpt

Options before -- are those of crfgrad tune, what stands after it goes to ``main.py validate``. Images, probabilities
and ground truth of the split are written to folders in OUTPUT, at the size at which the network sees them; scores are
those of ``--data.init_args.measure_at_own_size=false``.
"""

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import yaml
from PIL import Image
from torch import Tensor

from crfgrad.cli import main as run_crfgrad
from crfgrad.cli.outputs import array_npy, write
from main import main as run_main

HEAD = "model.init_args.head.init_args."
UNKNOWN = 255  # how unlabelled pixels are written


@torch.no_grad()
def write_split(output: Path, arguments: Sequence[str]) -> Path:
    """Writes images, probabilities and truth of the validation split; returns a file with their names.

    The file keeps out what an earlier run has left. What has not changed is not written again, since scores that are
    kept hold for files as old as theirs.
    """
    same_size = "--data.init_args.measure_at_own_size=false"
    run = run_main(["validate", *arguments, same_size, f"--output={output}", "--name=network"])
    data, module = run.datamodule, run.model.eval()
    if data.num_classes > UNKNOWN:
        raise SystemExit(f"masks are written with up to {UNKNOWN} labels, the data have {data.num_classes}: merge some")
    names: list[str] = []
    for batch in data.val_dataloader():
        probabilities = module(batch["image"])[1]
        for q, image, mask, name in zip(probabilities, batch["image"], batch["mask"], batch["name"], strict=True):
            truth = mask.masked_fill(mask == data.ignore_index, UNKNOWN)
            _write(output / "images" / f"{name}.png", _png(image.movedim(0, -1)))
            _write(output / "truth" / f"{name}.png", _png(truth))
            _write(output / "probabilities" / f"{name}.npy", array_npy(q.numpy()))
            names.append(f"{name}.png")
    listed = output / "names.txt"
    _write(listed, "\n".join(names).encode())
    return listed


def _png(values: Tensor) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(values.byte().numpy()).save(buffer, "PNG")
    return buffer.getvalue()


def _write(path: Path, content: bytes) -> None:
    if not path.is_file() or path.read_bytes() != content:
        write(path, content)


def main(output: Path, options: Sequence[str], arguments: Sequence[str]) -> dict[str, float]:
    """Writes the split, chooses settings, prints how to use them, and returns them."""
    sys.argv = sys.argv[:1]  # or Lightning warns that it was given arguments twice
    listed = write_split(output, arguments)
    folders = [text for kind in ("images", "probabilities", "truth") for text in (f"--{kind}", str(output / kind))]
    given = [*folders, "--list", str(listed), "--ignore", str(UNKNOWN), "--output", str(output / "settings.yaml")]
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
