"""The unary potential (3)."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from crfgrad.checks import check_positive
from crfgrad.ops.rows import costs


class UnaryPotential(nn.Module):
    r"""Cost of a label from the network's belief in it: :math:`\psi_i(l) = -w_u \log(z_{il} + \epsilon)`.

    The learned parameter is the cost of a label that the network excludes, :math:`-w_u \log \epsilon`: like
    those of other potentials it is in units of what a pixel pays, so that they can share a learning rate.

    Args:
        unary_weight: Initial value of the weight w_u.
        eps: The epsilon added to the probabilities z = softmax(logits), below 1. A setting and no part of the state
            dict: under another one, the same learned parameter is another w_u.

    Shape:
        - logits: (B, L, H, W)
        - costs psi: (B, L, H, W)

    Example:
        >>> UnaryPotential(unary_weight=1.0)(torch.zeros(1, 2, 1, 1)).flatten().tolist()
        [0.693..., 0.693...]
    """

    def __init__(self, unary_weight: float = 0.5, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = check_positive("eps", eps)
        if eps >= 1:
            raise ValueError(f"eps must be below 1, got {eps}")
        self.unit = -math.log(self.eps)
        self.largest_cost = nn.Parameter(torch.tensor(check_positive("unary_weight", unary_weight) * self.unit))

    @property
    def unary_weight(self) -> Tensor:
        """The weight w_u."""
        return self.largest_cost / self.unit

    def forward(self, logits: Tensor) -> Tensor:
        """(B, L, H, W) logits -> (B, L, H, W) costs psi."""
        return self.largest_cost.to(logits.dtype) * costs(logits.movedim(1, -1), self.eps, self.unit).movedim(-1, 1)

    def extra_repr(self) -> str:
        """Shown by print(crf)."""
        return f"eps={self.eps}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Reads what was saved when the parameter was w_u, too."""
        if prefix + "unary_weight" in state_dict:
            state_dict[prefix + "largest_cost"] = state_dict.pop(prefix + "unary_weight") * self.unit
        super()._load_from_state_dict(state_dict, prefix, *rest)
