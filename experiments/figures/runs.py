"""Models and data of finished runs, built by the command line that made them."""

import contextlib
import io
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from crfgrad import CRF
from datamodules import SegmentationDataModule
from experiments.figures.style import title_of
from lightning_modules import SegmentationModule
from lightning_modules.cli import CLI
from main import main as run_main

PLAIN = [
    "--trainer.devices=1",
    "--trainer.num_nodes=1",
    "--trainer.strategy=auto",
    "--trainer.logger=false",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.limit_test_batches=0",  # the command line builds and loads everything, and tests nothing
]


class Run(NamedTuple):
    """A trained network with a CRF, and the data that it was trained for."""

    title: str
    module: SegmentationModule
    data: SegmentationDataModule

    @property
    def crf(self) -> CRF:
        """The head."""
        assert isinstance(self.module.head, CRF)
        return self.module.head

    def samples(self, most: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Image (1, 3, H, W) and mask (1, H, W) of each of the first so many test images, on the module's device."""
        images = (
            (image[None].to(self.module.device), mask[None].to(self.module.device))
            for batch in self.data.test_dataloader()
            for image, mask in zip(batch["image"], batch["mask"], strict=True)
        )
        return islice(images, most)


def load_module(
    config: Path, checkpoint: Path, arguments: Sequence[str] = ()
) -> tuple[SegmentationModule, SegmentationDataModule]:
    """Builds model and data of a config.yaml, with the weights of a checkpoint.

    Args:
        config: The config.yaml of the run.
        checkpoint: One of its checkpoints.
        arguments: More arguments of ``main.py test``.
    """
    if not config.is_file():
        raise SystemExit(f"there is no file {config}: give the config.yaml in the folder of a run")
    if not checkpoint.is_file():
        raise SystemExit(
            f"there is no file {checkpoint}: give a run's checkpoints/best.ckpt, or its folder to --beside (of a run "
            "that was resumed, version_0 has it)"
        )
    built = _build(config, f"--ckpt_path={checkpoint}", *arguments)
    return built.model.eval(), built.datamodule


def load_run(config: Path, checkpoint: Path, arguments: Sequence[str] = ()) -> Run:
    """The same, of a run with a CRF."""
    module, data = load_module(config, checkpoint, arguments)
    if not isinstance(module.head, CRF):
        raise SystemExit(f"{config} has no CRF as its head: give a run that was trained with one")
    if module.head_tiling is not None:
        raise SystemExit(
            f"the CRF of {config} works in tiles, which have no common energy: end the command with "
            "-- --model.init_args.head_tiling=null"
        )
    return Run(f"trained with {title_of(module.head.solver)}", module, data)


def initial_crf(config: Path, arguments: Sequence[str] = ()) -> CRF:
    """The head of a run as it was before training."""
    untrained = ["--ckpt_path=null", "--untrained=true", "--model.init_args.unary_checkpoint=null"]
    crf: CRF = _build(config, *arguments, *untrained).model.head
    return crf


def _build(config: Path, *arguments: str) -> CLI:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        return run_main(["test", f"--config={config}", *arguments, *PLAIN, f"--output={folder}"])
