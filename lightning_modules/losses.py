"""Losses on logits, by name."""

import segmentation_models_pytorch as smp
from torch import nn


def build_loss(name: str, ignore_index: int) -> nn.Module:
    """A loss of (logits, labels) by its name: CrossEntropyLoss, or one of smp.losses.

    The labels ``ignore_index`` do not count.
    """
    if name == "CrossEntropyLoss":
        return nn.CrossEntropyLoss(ignore_index=ignore_index)
    loss = getattr(smp.losses, name, None)
    if loss is None:
        known = ", ".join(sorted(other for other in dir(smp.losses) if other.endswith("Loss")))
        raise ValueError(f"there is no loss {name}: take CrossEntropyLoss or one of smp.losses ({known})")
    try:
        built: nn.Module = loss(mode="multiclass", ignore_index=ignore_index)
    except TypeError as error:
        raise ValueError(f"smp.losses.{name} has no multiclass mode with ignore_index: take another loss") from error
    return built
