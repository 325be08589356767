"""The Gibbs energy (2) of a labelling, relaxed to the simplex (5), for a batch of images."""

from collections.abc import Sequence

import torch
from torch import Tensor

from crfgrad.layout import copied
from crfgrad.potentials.base import Message


class Energy:
    r"""Unary and pairwise potentials bound to a batch of images.

    .. math:: E(q) = \sum_i \langle \psi_i, q_i \rangle
        + \tfrac12 \sum_{i \neq j} \langle q_i, K_{ij} q_j \rangle

    The distribution (1) of the labellings x is P(x) = exp(-E(x)) / Z, so the lowest energy is the
    most probable labelling. With the factor 1/2 each pair of pixels pays once.

    Args:
        unary: psi, (B, L, H, W).
        messages: Bound pairwise potentials, q -> K q; K is their sum.
        symmetric: Whether every K is symmetric; if not, the messages take ``adjoint=True``.
        exclude_self: Whether no pixel interacts with itself, which rounding needs.

    Shape:
        - q, gradient: (B, L, H, W)
        - energy: (B,)
        - labels: (B, H, W), integers

    Example:
        >>> energy = Energy(unary=torch.tensor([0.0, 1.0]).reshape(1, 2, 1, 1), messages=[])
        >>> energy(torch.tensor([0.25, 0.75]).reshape(1, 2, 1, 1))
        tensor([0.7500])
        >>> energy.of_labels(torch.tensor([[[1]]]))
        tensor([1.])
    """

    def __init__(
        self, unary: Tensor, messages: Sequence[Message], symmetric: bool = True, exclude_self: bool = True
    ) -> None:
        self.unary = unary
        self.messages = messages
        self.symmetric = symmetric
        self.exclude_self = exclude_self

    def __call__(self, q: Tensor) -> Tensor:
        """E(q) of each image."""
        return (q * (self.unary + self.pairwise(q) / 2)).sum(dim=(1, 2, 3))

    def gradient(self, q: Tensor) -> Tensor:
        """The direction psi + K q that the solvers follow (6).

        It is the gradient of E where K is symmetric. See ``derivative`` for where it is not.
        """
        return self._added(self.unary, q)

    def pairwise(self, q: Tensor, **options: bool) -> Tensor:
        """K q, or with ``adjoint=True`` K^T q. In full precision under autocast as well."""
        return self._added(torch.zeros_like(q), q, **options)

    def _added(self, start: Tensor, q: Tensor, **options: bool) -> Tensor:
        """All messages added to a start."""
        if q.shape != self.unary.shape:
            raise ValueError(f"q has shape {tuple(q.shape)}, this energy is for {tuple(self.unary.shape)}")
        if torch.is_grad_enabled() or not self.messages:
            total = start
        else:
            total = copied(start)
        with torch.autocast(q.device.type, enabled=False):
            for message in self.messages:
                if hasattr(message, "add_to") and not torch.is_grad_enabled():
                    message.add_to(total, q, **options)
                else:
                    total = total + message(q, **options)
        return total

    def derivative(self, q: Tensor) -> Tensor:
        """dE/dq = psi + (K + K^T) q / 2, for any K."""
        return self.unary + self._symmetric_pairwise(q)

    def _symmetric_pairwise(self, q: Tensor) -> Tensor:
        return self.pairwise(q) if self.symmetric else (self.pairwise(q) + self.pairwise(q, adjoint=True)) / 2

    def of_labels(self, labels: Tensor) -> Tensor:
        """E(x) of a labelling: (B, H, W) int64 -> (B,)."""
        return self(one_hot(labels, self.unary.shape[1]).to(self.unary.dtype))

    def operator_norm(self, iterations: int = 50) -> Tensor:
        """The norm of K on differences of distributions, estimated by power iteration: (B,).

        Any step below 2 / norm lowers E at every iteration of projected gradient descent. The estimate
        comes from below, by a few percent: a step of 1.8 / ``operator_norm()`` is on the safe side.
        """
        with torch.no_grad():
            generator = torch.Generator().manual_seed(0)
            change = torch.randn(self.unary.shape, generator=generator, dtype=torch.float64).to(self.unary)
            norm = change.new_ones(len(change))
            for _ in range(iterations):
                change = change - change.mean(dim=1, keepdim=True)  # entries of q - q' sum to zero
                change = change / change.flatten(1).norm(dim=1).clamp_min(1e-30)[:, None, None, None]
                change = self._symmetric_pairwise(change)
                norm = (change - change.mean(dim=1, keepdim=True)).flatten(1).norm(dim=1)
            return norm


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """(B, H, W) int64 -> (B, L, H, W) int64."""
    if labels.dim() != 3 or labels.is_floating_point():
        raise ValueError(f"labels must be integers (B, H, W), got {labels.dtype} {tuple(labels.shape)}")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(
            f"labels run from {labels.min()} to {labels.max()}, the energy knows 0 to {num_classes - 1}: "
            "replace labels to be ignored first"
        )
    return torch.nn.functional.one_hot(labels.long(), num_classes).movedim(-1, 1)  # (B, L, H, W)
