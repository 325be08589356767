"""The unary potential (3)."""

import math

import torch
from torch import Tensor, nn

from crfgrad.checks import check_positive


class UnaryPotential(nn.Module):
    r"""Cost of a label from the network's belief in it: :math:`\psi_i(l) = -w_u \log(z_{il} + \epsilon)`.

    Args:
        unary_weight: Initial value of the learned weight w_u.
        eps: The epsilon added to the probabilities z = softmax(logits). It bounds the cost of a
            label that the network excludes to -w_u log(eps).

    Shape:
        - logits: (B, L, H, W)
        - costs psi: (B, L, H, W)

    Example:
        >>> UnaryPotential(unary_weight=1.0)(torch.zeros(1, 2, 1, 1)).flatten().tolist()
        [0.693..., 0.693...]
    """

    def __init__(self, unary_weight: float = 0.5, eps: float = 1e-6) -> None:
        super().__init__()
        self.unary_weight = nn.Parameter(torch.tensor(float(check_positive("unary_weight", unary_weight))))
        self.eps = check_positive("eps", eps)

    def forward(self, logits: Tensor) -> Tensor:
        """(B, L, H, W) logits -> (B, L, H, W) costs psi."""
        log_z = logits.movedim(1, -1).log_softmax(-1).movedim(-1, 1)
        log_eps = log_z.new_tensor(math.log(self.eps))
        return -self.unary_weight.to(logits.dtype) * torch.logaddexp(log_z, log_eps)

    def extra_repr(self) -> str:
        """Shown by print(crf)."""
        return f"eps={self.eps}"
