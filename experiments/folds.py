"""Out-of-fold logits: each training image's from a network that was trained without it, to train a head on.

python -m experiments.folds --folds 5 --output outputs/folds/horses \
    --head_config experiments/weizmann_horse/head_alone.yaml -- --config experiments/weizmann_horse/lite0.yaml
python main.py fit --config experiments/weizmann_horse/lite0.yaml --config experiments/heads/full.yaml \
    --config experiments/weizmann_horse/head_alone.yaml --kept_logits.folder outputs/folds/horses/logits \
    --model.init_args.unary_checkpoint outputs/weizmann_horse/lite0/version_0/checkpoints/best.ckpt

A network is surer of images that it was trained on than of new ones, so that a head that learns from these trusts it
too much. What stands after -- goes to ``main.py fit``, once for each fold; ``--head_config`` says with which
``train_transforms`` the head will be trained. Folds are stretches of the training images in their order, so that
neighbours, such as frames of one scene, are on one side. Give the same command again to go on where it was stopped.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from datamodules.base import fold_of
from experiments.files import check_arguments, write_json
from lightning_modules.kept_logits import compute
from lightning_modules.logit_stores import InFolder
from main import main as run_main


def main(folds: int, output: Path, head_config: Path, arguments: Sequence[str]) -> Path:
    """Trains the networks, and writes the logits of all training images; returns their folder."""
    if folds < 2:
        raise SystemExit(f"--folds is {folds}: give 2 or more, or a network has nothing to be trained on")
    sys.argv = sys.argv[:1]  # or Lightning warns that it was given arguments twice
    check_arguments(
        output / "arguments.json", [f"--folds={folds}", f"--head_config={head_config}", *arguments], "logits"
    )
    for fold in range(folds):
        checkpoint = train(fold, folds, output, arguments)
        write(fold, folds, output, checkpoint, [*arguments, f"--config={head_config}"])
        print(f"fold {fold + 1} of {folds}: logits are in {output / 'logits'}", flush=True)
    print(f"train a head on them with --kept_logits.folder={output / 'logits'}")
    return output / "logits"


def train(fold: int, folds: int, output: Path, arguments: Sequence[str]) -> Path:
    """The best checkpoint of the network that is trained without a fold."""
    folder = output / f"fold_{fold}"
    checkpoints = folder / "version_0" / "checkpoints"
    if not (folder / "finished.json").is_file():
        last = checkpoints / "last.ckpt"
        resumed = [f"--ckpt_path={last}"] if last.is_file() else []
        given = [f"--data.init_args.fold=[{fold}, {folds}]", f"--output={output}", f"--name={folder.name}", *resumed]
        run_main(["fit", *arguments, *given])
        write_json(folder / "finished.json", {"fold": fold, "folds": folds})
    return checkpoints / "best.ckpt"


def write(fold: int, folds: int, output: Path, checkpoint: Path, arguments: Sequence[str]) -> None:
    """Writes the logits of the images of a fold."""
    plain = ["--model.init_args.freeze_network_epochs=0", "--trainer.limit_val_batches=0", "--trainer.devices=1"]
    plain += ["--trainer.strategy=auto", f"--output={output}", "--name=computed", f"--ckpt_path={checkpoint}"]
    built = run_main(["validate", *arguments, *plain])
    module, pictures = built.model.to(built.trainer.strategy.root_device), built.datamodule.pictures("train")
    kept = InFolder(output / "logits", len(pictures), repr(pictures.transform), np.float16)
    kept.claim({"folds": folds, "precision": built.trainer.precision})
    missing = [index for index in fold_of(len(pictures), fold, folds) if not kept.has(index)]
    for index, name, logits in compute(built.trainer, module, module.network, pictures, missing):
        kept.write(index, name, logits)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("outputs/folds"))
    parser.add_argument("--head_config", type=Path, required=True, help="configuration that the head is trained with")
    parser.add_argument("arguments", nargs="+", help="of main.py fit, after --")
    main(**vars(parser.parse_args()))
