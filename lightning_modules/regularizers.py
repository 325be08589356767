"""A loss without labels, beside the loss on the labels there are."""

from typing import Literal

import torch
from torch import Tensor, nn

from crfgrad.checks import check_count

UNKNOWN = 255


class Regularizer(nn.Module):
    """Puts a loss such as ``crfgrad.DenseEnergyLoss`` on the probabilities of the network or of the head.

    Args:
        loss: Called with images 0..255 (B, C, H, W), probabilities (B, L, H, W), None for the regions, and (B, 1, H,
            W) with 255 where no label is known and 0 elsewhere, whatever the data's own ``ignore_index`` is; its result
            is summed up, and has its weight already.
        on: Whose probabilities: of the "network", or of the "head" behind it.
        from_epoch: The first epoch that it counts in, so that the labels alone come first.
    """

    def __init__(self, loss: nn.Module, on: Literal["network", "head"] = "network", from_epoch: int = 0) -> None:
        super().__init__()
        if on not in ("network", "head"):
            raise ValueError(f'a regularizer is on the "network" or the "head", not on "{on}"')
        index = getattr(loss, "ignore_index", UNKNOWN)
        if index != UNKNOWN:
            raise ValueError(
                f"the loss of a regularizer has ignore_index {index}, but is called with {UNKNOWN} where no label is "
                "known: leave it out"
            )
        self.loss = loss
        self.on = on
        self.from_epoch = check_count("from_epoch", from_epoch, least=0)

    def forward(self, image: Tensor, logits: Tensor, q: Tensor, unknown: Tensor, epoch: int) -> Tensor:
        """What is to be added to the loss.

        Args:
            image: (B, C, H, W).
            logits: Of the network, (B, L, H, W).
            q: Distributions of the head, (B, L, H, W).
            unknown: Where no label is known, (B, H, W) bool.
            epoch: The epoch, counted from 0.
        """
        if epoch < self.from_epoch:
            return logits.new_zeros(())
        probs = logits.softmax(1) if self.on == "network" else q
        seg_label = torch.where(unknown, UNKNOWN, 0)[:, None]
        loss: Tensor = self.loss(image, probs, None, seg_label).sum()
        return loss
