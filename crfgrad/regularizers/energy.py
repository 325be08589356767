"""The energy of any pairwise potentials as a loss."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from crfgrad.checks import check_finite
from crfgrad.energy import labels_last
from crfgrad.operators import Masked, Sum
from crfgrad.potentials import PairwisePotential
from crfgrad.regularizers.inputs import prepared


class EnergyLoss(nn.Module):
    r"""The relaxed pairwise energy of the probabilities of a network, per pixel.

    .. math:: \frac{w}{2 N} \sum_{i \neq j} \langle p_i, K_{ij} p_j \rangle

    for potentials of any kind, such as the free filters of a trained CRF: ``EnergyLoss(crf.potentials)``. The loss
    has a copy of them that does not learn, since no filter has a lowest energy. What a CRF itself calls the energy,
    the unary term included, is ``crf.energy(logits, image)``.

    Args:
        potentials: Pairwise potentials, all for the same labels.
        weight: Weight w.
        check_colour: Refuse images that cannot be colours 0..255.

    Shape:
        - images: (B, C, H, W), colours 0..255
        - probs: (B, L, H, W), 0..1
        - rois: (B, H, W), 1 inside of the regions that count, 0 outside, as if there were no pixels; all of them count
          if it is None
        - seg_label: not looked at, since an energy knows no labels; all regularisers have one call
        - result: ()

    Example:
        >>> from crfgrad import CRF, EnergyLoss
        >>> loss = EnergyLoss(CRF(num_classes=2).potentials, weight=0.1)
        >>> loss(torch.zeros(1, 3, 8, 8), torch.full((1, 2, 8, 8), 0.5))
        tensor(0.0...)
    """

    def __init__(self, potentials: Sequence[PairwisePotential], weight: float = 1.0, check_colour: bool = True) -> None:
        super().__init__()
        for potential in potentials:
            if not isinstance(potential, PairwisePotential):
                raise TypeError(
                    f"potentials must be pairwise potentials, such as those of crf.potentials; got {potential!r}"
                )
        classes = {potential.num_classes for potential in potentials}
        if len(classes) != 1:
            raise ValueError(f"potentials must be for one number of classes, got {sorted(classes) or 'none of them'}")
        self.num_classes = classes.pop()
        self.potentials = nn.ModuleList(copy.deepcopy(potential) for potential in potentials).requires_grad_(False)
        self.weight = weight
        self.check_colour = check_colour

    def forward(
        self, images: Tensor, probs: Tensor, rois: Tensor | None = None, seg_label: Tensor | None = None
    ) -> Tensor:
        """The loss."""
        inputs = prepared(images, probs, rois, None, 0, self.check_colour)
        if probs.shape[1] != self.num_classes:
            raise ValueError(
                f"probs have {probs.shape[1]} channels, the potentials were built for {self.num_classes} classes"
            )
        with torch.autocast(probs.device.type, enabled=False):
            q = labels_last(inputs.probs)  # (B, H, W, L)
            counts = inputs.rois.movedim(1, -1) > 0  # (B, H, W, 1)
            valid = None if rois is None else counts[..., 0]
            bound = [potential.bind(inputs.images, valid) for potential in self.potentials]  # type: ignore[operator]
            operator = Masked(Sum(bound), counts.to(q.dtype))
            loss: Tensor = self.weight * (q * operator.matmul(q)).sum() / (2 * counts.sum().clamp_min(1))
        check_finite("the result of the loss: check its weight and potentials", loss)
        return loss

    def extra_repr(self) -> str:
        """Shown by print(loss)."""
        return f"weight={self.weight}"
