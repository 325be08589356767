"""From q to a labelling that costs no more: Proposition 1 of the paper, at any image size."""

import torch
from torch import Tensor

from crfgrad.checks import check_finite, values_are_checked
from crfgrad.energy import Energy, labels_last, one_hot


@torch.no_grad()
def round_labels(energy: Energy, q: Tensor) -> Tensor:
    r"""Rounds q to labels x with E(x) <= E(q), for each image, up to the rounding errors of the dtype.

    No pixel interacts with itself, so E is linear in each q_i, and some corner of the simplex is no
    worse than q_i with the other pixels held. The proof moves one pixel after the other. Here as many
    as possible move at once: the exact change of E for a group,
    :math:`\langle \Delta, (\nabla E(q) + \nabla E(q + \Delta)) / 2 \rangle`, decides whether it may; if
    not, every second pixel of it is tried, and so on down to a single one, which always may.

    Args:
        energy: The energy; its potentials must exclude the interaction of a pixel with itself.
        q: Distributions on the simplex (leak 0).

    Shape:
        - q: (B, L, H, W)
        - result: (B, H, W), int64

    Example:
        >>> energy = Energy(unary=torch.tensor([0.0, 1.0]).reshape(1, 2, 1, 1))
        >>> round_labels(energy, torch.tensor([0.4, 0.6]).reshape(1, 2, 1, 1))
        tensor([[[0]]])
    """
    check_finite("q", q)
    if not energy.excludes_self:
        raise ValueError("a pixel interacts with itself, so rounding has no guarantee: use exclude_self=True")
    if values_are_checked(q) and (q.min() < -1e-4 or (q.sum(dim=1) - 1).abs().max() > 1e-4):
        raise ValueError("q is not on the simplex, so rounding has no guarantee: run the solver with leak 0")
    slope = energy.derivative(q)
    excluded = None if energy.excluded is None else energy.excluded.movedim(-1, 1)
    away = (q != 0) & (q != 1)
    if excluded is not None:
        away = away | (excluded & (q != 0))
    pending = away.any(dim=1).flatten(1)  # (B, H*W), pixels that are not yet at a corner that they may take
    spacing = torch.ones(len(q), 1, dtype=torch.int64, device=q.device)
    each = (-1, *[1] * (q.dim() - 1))
    while pending.any():
        rank = pending.cumsum(dim=1) - 1
        group = pending & (rank % spacing == 0)
        moving = group.unflatten(1, q.shape[2:])[:, None]  # (B, 1, H, W)
        cost = slope if excluded is None else slope.masked_fill(excluded, torch.inf)
        best = one_hot(cost.argmin(dim=1), q.shape[1]).to(q.dtype)
        moved = torch.where(moving, best, q)
        moved_slope = energy.derivative(moved)
        change = ((moved - q) * (slope + moved_slope)).double().flatten(1).sum(1)
        accepted = (change <= 0) | (group.sum(dim=1) <= 1)  # (B,)
        q = torch.where(accepted.view(each), moved, q)
        slope = torch.where(accepted.view(each), moved_slope, slope)
        pending &= ~(group & accepted[:, None])
        spacing = torch.where(accepted[:, None], (spacing // 2).clamp_min(1), spacing * 2)
    return labels_last(q).argmax(dim=-1)
