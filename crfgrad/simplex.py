"""Onto the probability simplex: Euclidean projection (Algorithm 2 of the paper) with a leak, and softmax."""

from typing import Any

import torch
from torch import Tensor

from crfgrad.backend import Backend, compiled
from crfgrad.checks import check_fraction
from crfgrad.layout import map_rows


def _threshold(x: Tensor) -> Tensor:
    """The t with sum(max(x - t, 0)) = 1 along the last dimension: (..., L) -> (..., 1).

    The largest entry must be 0. Then t >= -1, and how far an entry lies below that is irrelevant.
    """
    ranked = x.clamp_min(-2).sort(dim=-1, descending=True).values
    count = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
    candidate = (ranked.cumsum(-1) - 1) / count  # t if the k largest entries were the support
    support_size = (ranked > candidate).sum(-1, keepdim=True)
    return candidate.gather(-1, support_size - 1)


def _jacobian_product(grad: Tensor, support: Tensor, leak: float) -> Tensor:
    sloped = torch.where(support, grad, leak * grad)
    mean = sloped.sum(-1, keepdim=True) / support.sum(-1, keepdim=True)
    return torch.where(support, sloped - mean, sloped)


class _SimplexProjection(torch.autograd.Function):
    """f_l = x_l - t on the support, leak * (x_l - t) elsewhere.

    Its Jacobian, with c_l the slope at the *output* index l (1 on the support, else the leak), is
    df_l/dx_m = c_l (delta_lm - dt/dx_m) with dt/dx_m = 1/|support| on the support, else 0.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, leak: float) -> Tensor:
        shifted = x - x.amax(-1, keepdim=True)  # the support lies within 1 of the maximum: exact at any scale
        distance = shifted - _threshold(shifted)
        ctx.save_for_backward(distance > 0)
        ctx.leak = leak
        projected = distance.clamp_min(0)
        return projected + leak * distance.clamp_max(0) if leak else projected

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (support,) = ctx.saved_tensors
        return _jacobian_product(grads[0], support, ctx.leak), None


class _CompiledProjection(torch.autograd.Function):
    """The same, by ``crfgrad.kernels.simplex``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, leak: float) -> Tensor:
        from crfgrad.kernels import simplex

        projected, finite = map_rows(simplex.project, x, factor=leak)
        if not all(finite):
            raise ValueError(_NOT_FINITE)
        ctx.save_for_backward(projected)
        ctx.leak = leak
        return projected

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        from crfgrad.kernels import simplex

        (projected,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _jacobian_product(grads[0], projected > 0, ctx.leak), None
        return map_rows(simplex.project_gradient, grads[0], projected, factor=ctx.leak)[0], None


class _CompiledSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        from crfgrad.kernels import simplex

        probability, _ = map_rows(simplex.softmax, x, factor=factor)
        ctx.save_for_backward(probability)
        ctx.factor = factor
        return probability

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        from crfgrad.kernels import simplex

        (probability,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            weighted = probability * grads[0]
            return ctx.factor * (weighted - probability * weighted.sum(-1, keepdim=True)), None
        return map_rows(simplex.softmax_gradient, grads[0], probability, factor=ctx.factor)[0], None


_NOT_FINITE = "x holds NaN or infinity: check what it was made from"


def softmax(x: Tensor, factor: float = 1.0, dim: int = 1, backend: Backend = "auto") -> Tensor:
    """Softmax of factor * x along ``dim``, whose entries then lie side by side in memory."""
    rows = x.movedim(dim, -1)
    if compiled(backend, x) and x.dtype in (torch.float32, torch.float64) and x.numel():
        probability: Tensor = _CompiledSoftmax.apply(rows, factor)
    else:
        probability = (rows if factor == 1 else factor * rows).softmax(-1)
    return probability.movedim(-1, dim)


def project_simplex(x: Tensor, dim: int = 1, leak: float = 0.0, backend: Backend = "auto") -> Tensor:
    r"""Projects every vector along ``dim`` onto the probability simplex.

    .. math:: f_l(x) = \max(x_l - t, 0) + \alpha \min(x_l - t, 0), \quad \sum_l \max(x_l - t, 0) = 1

    With leak 0 this is the Euclidean projection. A leak keeps a gradient where the projection is
    flat; its result has negative entries and is not on the simplex.

    Args:
        x: Finite values of any scale, float32 or float64.
        dim: The dimension of the labels.
        leak: The slope alpha below the threshold, 0 to 1.
        backend: See ``use_backend``.

    Returns:
        A tensor of the shape of ``x``. The gradient is the closed-form Jacobian product, and it can
        be differentiated again.

    Example:
        >>> project_simplex(torch.tensor([[0.9, 0.6, -1.0]]))
        tensor([[0.6500, 0.3500, 0.0000]])
    """
    check_fraction("leak", leak)
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"project_simplex needs float32 or float64, got {x.dtype}: convert x first")
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"x has {x.dim()} dimensions, so there is no dimension {dim}: give dim")
    if x.shape[dim] == 0:
        raise ValueError(f"x has no labels along dimension {dim}: its shape is {tuple(x.shape)}")
    if x.numel() == 0:
        return x.clone()
    rows = x.movedim(dim, -1)  # (..., L)
    if compiled(backend, x):  # which finds out for itself whether x is finite
        projected: Tensor = _CompiledProjection.apply(rows, leak)
    else:
        if not torch.isfinite(torch.stack(torch.aminmax(x))).all():
            raise ValueError(_NOT_FINITE)
        projected = _SimplexProjection.apply(rows, leak)
    return projected.movedim(-1, dim)
