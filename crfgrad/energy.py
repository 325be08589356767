"""The Gibbs energy (2) of a labelling, relaxed to the simplex (5), for a batch of images."""

from collections.abc import Sequence

import torch
from torch import Tensor

from crfgrad.checks import values_are_checked
from crfgrad.operators import Operator, Sum


def labels_last(q: Tensor) -> Tensor:
    """(B, L, *) -> (B, *, L), the labels of a pixel side by side in memory."""
    return q.movedim(1, -1).contiguous()


def labels_first(q: Tensor) -> Tensor:
    """(B, *, L) -> (B, L, *)."""
    return q.movedim(-1, 1)


class Energy:
    r"""Unary and pairwise potentials bound to a batch of images.

    .. math:: E(q) = \sum_i \langle \psi_i, q_i \rangle
        + \tfrac12 \sum_{i \neq j} \langle q_i, K_{ij} q_j \rangle

    The distribution (1) of the labellings x is P(x) = exp(-E(x)) / Z, so the lowest energy is the
    most probable labelling. With the factor 1/2 each pair of pixels pays once.

    Args:
        unary: psi, (B, L, H, W).
        operators: Bound pairwise potentials; K is their sum.
        excluded: Labels that a pixel must not take, (B, L, H, W) bool: they cost infinity.

    Shape:
        - q, gradient: (B, L, H, W)
        - energy: (B,)
        - labels: (B, H, W), integers

    Example:
        >>> energy = Energy(unary=torch.tensor([0.0, 1.0]).reshape(1, 2, 1, 1))
        >>> energy(torch.tensor([0.25, 0.75]).reshape(1, 2, 1, 1))
        tensor([0.7500])
        >>> energy.of_labels(torch.tensor([[[1]]]))
        tensor([1.])
    """

    def __init__(self, unary: Tensor, operators: Sequence[Operator] = (), excluded: Tensor | None = None) -> None:
        self.costs = labels_last(unary)  # (B, *, L)
        self.excluded = None if excluded is None else labels_last(excluded)
        self.operator = Sum(operators)

    @property
    def unary(self) -> Tensor:
        """Psi: (B, L, H, W)."""
        return labels_first(self.costs)

    @property
    def symmetric(self) -> bool:
        """Whether K is symmetric."""
        return self.operator.symmetric

    @property
    def excludes_self(self) -> bool:
        """Whether no pixel interacts with itself."""
        return self.operator.excludes_self

    def __call__(self, q: Tensor) -> Tensor:
        """E(q) of each image."""
        q = self._checked(q)
        energy = (q * (self.costs + self._product(q) / 2)).flatten(1).sum(1)
        if self.excluded is None:
            return energy
        return energy.masked_fill((self.excluded & (q != 0)).flatten(1).any(1), torch.inf)

    def gradient(self, q: Tensor) -> Tensor:
        """The direction psi + K q that the solvers follow (6).

        It is the gradient of E where K is symmetric. See ``derivative`` for where it is not.
        """
        return labels_first(self.direction(self._checked(q)))

    def direction(self, q: Tensor) -> Tensor:
        """``gradient`` with the labels last, as the solvers go through it: (B, *, L) -> (B, *, L)."""
        with torch.autocast(q.device.type, enabled=False):
            return self.operator.add_to([self.costs], q)

    def pairwise(self, q: Tensor, transposed: bool = False) -> Tensor:
        """K q, or K^T q. In full precision under autocast as well."""
        return labels_first(self._product(self._checked(q), transposed))

    def derivative(self, q: Tensor) -> Tensor:
        """dE/dq = psi + (K + K^T) q / 2, for any K."""
        q = self._checked(q)
        return labels_first(self.costs + self._symmetric_product(q))

    def of_labels(self, labels: Tensor) -> Tensor:
        """E(x) of a labelling: (B, H, W) int64 -> (B,)."""
        return self(one_hot(labels, self.costs.shape[-1]).to(self.costs.dtype))

    def operator_norm(self, iterations: int = 50) -> Tensor:
        """The norm of K on differences of distributions, estimated by power iteration: (B,).

        Any step below 2 / norm lowers E at every iteration of projected gradient descent. The estimate
        comes from below, by a few percent: a step of 1.8 / ``operator_norm()`` is on the safe side.
        """
        with torch.no_grad():
            generator = torch.Generator().manual_seed(0)
            change = torch.randn(self.costs.shape, generator=generator, dtype=torch.float64).to(self.costs)
            norm = change.new_ones(len(change))
            each = (-1, *[1] * (change.dim() - 1))
            for _ in range(iterations):
                change = change - change.mean(dim=-1, keepdim=True)  # entries of q - q' sum to zero
                change = change / change.flatten(1).norm(dim=1).clamp_min(1e-30).view(each)
                change = self._symmetric_product(change)
                norm = (change - change.mean(dim=-1, keepdim=True)).flatten(1).norm(dim=1)
            return norm

    def _product(self, q: Tensor, transposed: bool = False) -> Tensor:
        """K q with the labels last."""
        with torch.autocast(q.device.type, enabled=False):
            return (self.operator.transpose() if transposed else self.operator).matmul(q)

    def _symmetric_product(self, q: Tensor) -> Tensor:
        return self._product(q) if self.symmetric else (self._product(q) + self._product(q, transposed=True)) / 2

    def _checked(self, q: Tensor) -> Tensor:
        return labels_last(self.checked(q))

    def checked(self, q: Tensor) -> Tensor:
        """The same q (B, L, H, W), or a ValueError if it does not fit."""
        if q.shape != self.unary.shape:
            raise ValueError(f"q has shape {tuple(q.shape)}, this energy is for {tuple(self.unary.shape)}")
        return q


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """(B, H, W) int64 -> (B, L, H, W) int64."""
    if labels.dim() < 2 or labels.is_floating_point():
        raise ValueError(f"labels must be integers (B, H, W), got {labels.dtype} {tuple(labels.shape)}")
    if values_are_checked(labels) and (labels.min() < 0 or labels.max() >= num_classes):
        raise ValueError(
            f"labels run from {labels.min()} to {labels.max()}, the energy knows 0 to {num_classes - 1}: "
            "replace labels to be ignored first"
        )
    return torch.nn.functional.one_hot(labels.long(), num_classes).movedim(-1, 1)  # (B, L, H, W)
