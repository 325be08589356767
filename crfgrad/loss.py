"""What to put a loss on, behind a CRF."""

import math

import torch
from torch import Tensor


def log_distribution(q: Tensor, floor: float = 0.05) -> Tensor:
    r"""The logarithm of q, continued below a floor as the straight line of the same slope.

    .. math:: \log q \text{ for } q > \phi, \quad \log \phi + (q - \phi) / \phi \text{ below}

    The projection sets labels to exactly 0 and its leak makes them negative, where the logarithm and
    its gradient do not exist. The line keeps both finite, so a label that is wrongly at 0 still gets
    pushed up. The result serves as log-probabilities (``nll_loss``) or as logits (``cross_entropy``).

    Args:
        q: Distributions, with or without leak.
        floor: Where the line begins, 0 to 1; the gradient is at most 1 / floor.

    Example:
        >>> log_distribution(torch.tensor([1.0, 0.5, 0.0, -0.2])).tolist()
        [0.0, -0.693..., -3.995..., -7.995...]
    """
    line = math.log(floor) + (q - floor) / floor
    # contiguous, for the gradient of nll_loss does not work where the labels are last in memory, as they are in q
    return torch.where(q > floor, q.clamp_min(floor).log(), line).contiguous()
