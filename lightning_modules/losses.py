"""Losses on logits, by name."""

import inspect
from typing import Any

import segmentation_models_pytorch as smp
from torch import Tensor, nn


class Loss(nn.Module):
    """A loss of (scores, labels) that is 0, and not NaN, where there is no label that counts.

    Args:
        loss: Maps scores (B, L, H, W) and labels (B, H, W) to a number.
        ignore_index: Label that does not count.
    """

    def __init__(self, loss: nn.Module, ignore_index: int) -> None:
        super().__init__()
        self.loss = loss
        self.ignore_index = ignore_index

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        if (labels == self.ignore_index).all():
            return scores.sum() * 0
        loss: Tensor = self.loss(scores, labels)
        return loss


def build_loss(name: str, ignore_index: int, **options: Any) -> Loss:
    """A loss by its name: CrossEntropyLoss, or one of smp.losses. The labels ``ignore_index`` do not count."""
    if name == "CrossEntropyLoss":
        return Loss(nn.CrossEntropyLoss(ignore_index=ignore_index, **options), ignore_index)
    loss = getattr(smp.losses, name, None)
    if loss is None:
        known = ", ".join(sorted(other for other in dir(smp.losses) if other.endswith("Loss")))
        raise ValueError(f"there is no loss {name}: take CrossEntropyLoss or one of smp.losses ({known})")
    accepted = inspect.signature(loss).parameters
    if "ignore_index" not in accepted or name == "SoftBCEWithLogitsLoss":
        raise ValueError(f"smp.losses.{name} is not for several classes with ignored pixels: take another loss")
    mode: dict[str, Any] = {"mode": "multiclass"} if "mode" in accepted else {}
    if name == "SoftCrossEntropyLoss":
        options.setdefault("smooth_factor", 0.0)  # its own default, None, fails
    return Loss(loss(ignore_index=ignore_index, **mode, **options), ignore_index)
