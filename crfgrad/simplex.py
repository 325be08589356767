"""Euclidean projection onto the probability simplex (Algorithm 2 of the paper), with a leak."""

from typing import Any

import torch
from torch import Tensor

from crfgrad.backend import Backend, compiled
from crfgrad.checks import check_fraction


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
        from crfgrad.kernels.parallel import run

        rows = x.detach().reshape(-1, x.shape[-1]).contiguous().numpy()
        projected = torch.empty(x.shape, dtype=x.dtype)
        run(simplex.project, len(rows), rows, rows.dtype.type(leak), projected.view(rows.shape).numpy())
        ctx.save_for_backward(projected)
        ctx.leak = leak
        return projected

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        from crfgrad.kernels import simplex
        from crfgrad.kernels.parallel import run

        (projected,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _jacobian_product(grads[0], projected > 0, ctx.leak), None
        rows = grads[0].reshape(-1, projected.shape[-1]).contiguous().numpy()
        out = torch.empty(projected.shape, dtype=projected.dtype)
        given = (rows, projected.detach().view(rows.shape).numpy(), rows.dtype.type(ctx.leak))
        run(simplex.project_gradient, len(rows), *given, out.view(rows.shape).numpy())
        return out, None


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
    low, high = torch.aminmax(x)
    if not (torch.isfinite(low) & torch.isfinite(high)):
        raise ValueError(f"x holds NaN or infinity (minimum {low:g}, maximum {high:g}): check what it was made from")
    projection = _CompiledProjection if compiled(backend, x) else _SimplexProjection
    projected: Tensor = projection.apply(x.movedim(dim, -1), leak)  # (..., L)
    return projected.movedim(-1, dim)
