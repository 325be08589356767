"""Records two runs, and what they predict, of a version whose parameters had other names and units.

Made at commit 7b6832d: this file in a worktree of it, and there ``python -m tests.recorded.make_old_run``.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from experiments.scene import make_scene
from tests.command_line import QUIET, ROOT, run
from tests.tiny_data import tiny_data

FOLDER = Path(__file__).parent
NETWORK = ROOT / "experiments" / "folder" / "network.yaml"
DATA = ["--data.init_args.classes=[a, b, c]", "--data.init_args.colours=[[0, 0, 0], [255, 0, 0], [0, 0, 255]]"]


class TinyNetwork(nn.Module):
    """A convolution."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.last = nn.Conv2d(3, num_classes, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.last(image.float() / 64 - 2)
        return logits


def record(name: str, folder: Path) -> None:
    """A run with a head of experiments/heads/, whose parameters are not those that it starts with."""
    torch.manual_seed(0)
    given = [f"--config={NETWORK}", f"--config={ROOT / 'experiments' / 'heads' / name}.yaml", *QUIET]
    given += ["--model.init_args.network=tests.recorded.make_old_run.TinyNetwork", *tiny_data(NETWORK, folder), *DATA]
    cli = run("test", *given, f"--output={folder}", "--untrained=true", "--trainer.limit_test_batches=0")
    image = make_scene(24, 32)[0].byte()[None]
    with torch.no_grad():
        for parameter in cli.model.head.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
        probabilities = cli.model.eval()(image)[1]
    cli.trainer.save_checkpoint(FOLDER / f"old_{name}.ckpt", weights_only=True)
    torch.save({"image": image, "probabilities": probabilities}, FOLDER / f"old_{name}.pt")


if __name__ == "__main__":
    for head in ("full", "full_gaussian"):
        with TemporaryDirectory() as scratch:
            record(head, Path(scratch))
