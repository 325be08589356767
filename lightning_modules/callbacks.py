"""Pictures while training, and predictions as files."""

from pathlib import Path
from typing import Any, cast

import matplotlib.pyplot as plt
import numpy as np
import pytorch_lightning as pl
import torch
from matplotlib.figure import Figure
from PIL import Image
from pytorch_lightning.callbacks import BasePredictionWriter, Callback
from pytorch_lightning.loggers import TensorBoardLogger, WandbLogger
from torch import Tensor

from crfgrad import CRF
from lightning_modules.pictures import blend, draw_filters, draw_panel, filters_of, paint, picture
from lightning_modules.segmentation import SegmentationModule
from lightning_modules.sizes import at_size


class _RunFolder(Callback):
    """Knows the folder of the run; asking for it is a collective call, so every rank does it here."""

    run_folder: Path

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Asks for the folder."""
        self.run_folder = Path(trainer.log_dir or trainer.default_root_dir)


class PredictionPanels(_RunFolder):
    """Draws image, truth, network, q^1 ... q^T and result of some validation and test images.

    Args:
        images: How many images.
        every_n_epochs: How often, in validation.
    """

    def __init__(self, images: int = 4, every_n_epochs: int = 1) -> None:
        self.images = images
        self.every_n_epochs = every_n_epochs
        self.rows: list[dict[str, np.ndarray]] = []

    def on_validation_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, *args: Any
    ) -> None:
        """Collects rows."""
        if not trainer.sanity_checking and trainer.current_epoch % self.every_n_epochs == 0:
            self._collect(trainer, cast(SegmentationModule, module), batch)

    def on_test_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, *args: Any
    ) -> None:
        """Collects rows."""
        self._collect(trainer, cast(SegmentationModule, module), batch)

    def on_validation_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Draws them."""
        self._draw(trainer, "val", f"_epoch{trainer.current_epoch:03d}" if trainer.state.fn == "fit" else "")

    def on_test_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Draws them."""
        self._draw(trainer, "test", "")

    def _collect(self, trainer: pl.Trainer, module: SegmentationModule, batch: dict[str, Any]) -> None:
        for image, mask in zip(batch["image"], batch["mask"], strict=True):
            if len(self.rows) < self.images and trainer.is_global_zero:
                self.rows.append(_panel_row(module, image, mask))

    def _draw(self, trainer: pl.Trainer, stage: str, epoch: str) -> None:
        if self.rows:
            file = self.run_folder / "pictures" / f"predictions_{stage}{epoch}.png"
            log_picture(trainer, f"predictions_{stage}", file, draw_panel(self.rows))
            self.rows = []


class FilterPictures(_RunFolder):
    """Draws the learned filters at the end of training."""

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Draws them."""
        module = cast(SegmentationModule, module)
        if not isinstance(module.head, CRF) or not trainer.is_global_zero:
            return
        for number, potential in enumerate(module.head.potentials):
            found = filters_of(potential)
            if found is None:
                continue  # a potential of one's own may have no filters to draw
            name = f"filters_{number}_{type(potential).__name__}"
            file = self.run_folder / "pictures" / f"{name}.png"
            log_picture(trainer, name, file, draw_filters(found[0], module.class_names, found[1]))


class PredictionWriter(_RunFolder, BasePredictionWriter):
    """Writes predictions, which are at the original image size.

    For each image ``labels/NAME.png`` (palette PNG whose values are labels), ``overlays/NAME.png`` and,
    if asked for, ``probabilities/NAME.npy`` (L, H, W) float16. Where the data module has ``result_ids`` (the id of
    each label in a benchmark), also ``results/NAME.png``, an 8-bit grey PNG whose values are these ids.

    Args:
        folder: Where to; the default is ``predictions`` in the folder of the run.
        probabilities: Write the probabilities as well.
    """

    def __init__(self, folder: str | None = None, probabilities: bool = False) -> None:
        BasePredictionWriter.__init__(self, "batch")
        self.folder = folder
        self.probabilities = probabilities

    def write_on_batch_end(
        self,
        trainer: pl.Trainer,
        module: pl.LightningModule,
        prediction: list[Tensor],
        indices: Any,
        batch: Any,
        *args: Any,
    ) -> None:
        """Writes the images of a batch."""
        folder = Path(self.folder) if self.folder else self.run_folder / "predictions"
        colours = cast(SegmentationModule, module).colours
        result_ids = getattr(trainer.datamodule, "result_ids", None)  # type: ignore[attr-defined]
        for q, image, name in zip(prediction, batch["image"], batch["name"], strict=True):
            labels = q.argmax(0)
            painted = paint(labels, colours)
            original = Image.fromarray(picture(image, labels.shape))
            overlay = Image.blend(original, Image.fromarray(painted), 0.5)
            indexed = Image.fromarray(labels.cpu().numpy().astype(np.uint8))
            indexed.putpalette([channel for colour in colours for channel in colour])
            pictures = {"labels": indexed, "overlays": overlay}
            if result_ids is not None:
                pictures["results"] = Image.fromarray(np.array(result_ids, dtype=np.uint8)[labels.cpu().numpy()])
            for kind, drawn in pictures.items():
                path = folder / kind / f"{name}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                drawn.save(path)
            if self.probabilities:
                path = folder / "probabilities" / f"{name}.npy"
                path.parent.mkdir(parents=True, exist_ok=True)
                np.save(path, q.half().cpu().numpy())


def log_picture(trainer: pl.Trainer, name: str, path: Path, figure: Figure) -> None:
    """Writes a picture to a file, and gives it to W&B and TensorBoard, if they are on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            logger.log_image(name, [str(path)])
        elif isinstance(logger, TensorBoardLogger):
            logger.experiment.add_figure(name, figure, trainer.global_step, close=False)
    plt.close(figure)


@torch.no_grad()
def _panel_row(module: SegmentationModule, image: Tensor, mask: Tensor) -> dict[str, np.ndarray]:
    """Titled pictures of one image, at the size of its mask."""
    colours = module.colours
    row = {"image": picture(image, mask.shape), "truth": paint(mask, colours)}
    with module.trainer.precision_plugin.val_step_context():  # as it was measured
        logits, energy, states = module.infer(image[None])
        logits, _, *later = (at_size(each, mask.shape) for each in (logits, *states))
    row["network"] = paint(logits[0].argmax(0), colours)
    if energy is not None:  # otherwise there is only the last state
        row |= {f"$q^{{{t}}}$": blend(state[0].float(), colours) for t, state in enumerate(later, start=1)}
    if later:
        row["result"] = paint(later[-1][0].argmax(0), colours)
    return row
