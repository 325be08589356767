"""The head alone: logits of a network that stays frozen are computed once and kept."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from lightning_modules.logit_stores import InFolder, InMemory, fingerprint
from lightning_modules.segmentation import SegmentationModule


class KeptLogits(Callback):
    """Trains a head on kept logits where the network is frozen throughout.

    That is, where ``freeze_network_epochs`` is at least the ``max_epochs`` of the trainer. The network then sees each
    training and validation image once, as transforms that always happen (Resize) make them; flips, quarter turns and
    crops that come after them in ``train_transforms`` act on logits, image and mask together. With other transforms
    the network is computed at every step, and a line says why.

    Args:
        use: Whether logits are kept; null where it can be done, true to refuse what cannot.
        folder: Keeps those of the training images in files, also for later runs of the same network, or takes those
            that ``experiments.folds`` has written, which are in float16 whatever ``half`` says. Without it they are in
            memory. All processes must reach it.
        half: Keeps those of the training images in float16.
        most_memory: What the logits of a split may take of the memory of each process, in 10^9 bytes.
    """

    def __init__(
        self, use: bool | None = None, folder: str | None = None, half: bool = True, most_memory: float = 4.0
    ) -> None:
        self.use = use
        self.folder = folder
        self.most_memory = most_memory
        self.dtype: type[np.floating] = np.float16 if half else np.float32

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Computes them, or says why not."""
        module = cast(SegmentationModule, pl_module)
        data: Any = getattr(trainer, "datamodule", None)
        demanded = self.use is True or self.folder is not None
        self._forget(data)
        if self.use is False or not (demanded or module.frozen_throughout):
            return
        if not module.frozen_throughout:
            raise ValueError(
                "kept_logits is for a head behind a network that stays frozen: give model.head, and "
                f"freeze_network_epochs of at least max_epochs ({trainer.max_epochs})"
            )
        with torch.random.fork_rng(devices=[]):  # the order of training is the same with and without
            self._keep(trainer, module, data, demanded)

    def _keep(self, trainer: pl.Trainer, module: SegmentationModule, data: Any, demanded: bool) -> None:
        """The logits of both splits."""
        try:
            pictures = _pictures(data, "train")
            size = _size(module, pictures, self.dtype)
            if self.folder is None and size > self.most_memory:
                raise ValueError(
                    f"logits of {len(pictures)} images take {size:.2g} GB, more than kept_logits.most_memory: give "
                    "kept_logits.folder"
                )
        except ValueError as reason:
            if demanded:
                raise
            rank_zero_info(f"The network is computed at every step: {reason}.")
            return
        if self.folder is None:
            data.logits["train"] = InMemory(compute(trainer, module, module.network, pictures), self.dtype)
        else:
            data.logits["train"] = self._in_folder(trainer, module, pictures)
        kind = "out-of-fold" if getattr(data.logits["train"], "out_of_fold", False) else "kept"
        rank_zero_info(f"The head trains on {kind} logits of {len(pictures)} images.")
        if trainer.limit_val_batches:
            self._keep_validation(trainer, module, data)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forgets them, since the network may change."""
        self._forget(getattr(trainer, "datamodule", None))

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Forgets them after a fit that fails, too."""
        self._forget(getattr(trainer, "datamodule", None))

    def _forget(self, data: Any) -> None:
        if hasattr(data, "logits"):
            data.logits = {}

    def _in_folder(self, trainer: pl.Trainer, module: SegmentationModule, pictures: Any) -> InFolder:
        """The files, after all processes together have computed what is missing."""
        kept = InFolder(Path(str(self.folder)), len(pictures), repr(pictures.transform), self.dtype)
        if kept.out_of_fold:
            kept.check_complete()
            return kept
        kept.claim({"network": fingerprint(module.network), "precision": trainer.precision})
        mine = range(trainer.global_rank, len(pictures), trainer.world_size)
        missing = [index for index in mine if not kept.has(index)]
        for index, name, logits in compute(trainer, module, module.network, pictures, missing):
            kept.write(index, name, logits)
        trainer.strategy.barrier()
        return kept

    def _keep_validation(self, trainer: pl.Trainer, module: SegmentationModule, data: Any) -> None:
        """In float32, so that it measures what ``validate`` does."""
        try:
            pictures = _pictures(data, "val")
            if _size(module, pictures, np.float32) > self.most_memory:
                raise ValueError("logits of the validation images take more than kept_logits.most_memory")
        except ValueError as reason:
            rank_zero_info(f"The network is computed at every validation: {reason}.")
            return
        data.logits["val"] = InMemory(compute(trainer, module, module.network_logits, pictures), np.float32)


@torch.no_grad()
def compute(
    trainer: pl.Trainer,
    module: SegmentationModule,
    network: Callable[[Tensor], Tensor],
    pictures: Any,
    indices: Sequence[int] | None = None,
) -> Iterator[tuple[int, str, np.ndarray]]:
    """Index, name and logits (L, H, W) of pictures, in evaluation mode.

    Args:
        trainer: Says the precision.
        module: Says the device.
        network: Image (1, C, H, W) -> logits.
        pictures: A SegmentationDataset.
        indices: Which of them; all by default.
    """
    training = module.network.training
    module.network.eval()
    which = range(len(pictures)) if indices is None else indices
    for index, sample in zip(which, DataLoader(Subset(pictures, which), batch_size=None), strict=True):
        with trainer.precision_plugin.forward_context():
            logits = network(sample["image"][None].to(module.device))
        yield index, sample["name"], logits[0].float().cpu().numpy()
    module.network.train(training)


def _pictures(data: Any, split: str) -> Any:
    """The pictures of a split, or why their logits cannot be kept."""
    if not hasattr(data, "pictures"):
        raise ValueError("logits are kept for a SegmentationDataModule: give one")
    return data.pictures(split)


def _size(module: SegmentationModule, pictures: Any, dtype: type[np.floating]) -> float:
    """About how large all logits of some pictures are, in 10^9 bytes."""
    each = module.hparams["num_classes"] * pictures[0]["image"][0].numel() * np.dtype(dtype).itemsize
    return float(len(pictures) * each / 1e9)
