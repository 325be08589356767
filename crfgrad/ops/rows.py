"""Rows of labels onto the simplex: Euclidean projection with a leak, and softmax.

Rows are (*, L); a mask of the same shape excludes entries, as minus infinity does.
An excluded entry gives 0. A row with NaN or infinity, or of minus infinity alone, gives
NaN.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from crfgrad.ops.registry import operation, signed


def without(x: Tensor, excluded: Tensor | None, factor: float) -> Tensor:
    """Rows whose excluded entries, times a factor, are minus infinity."""
    return x if excluded is None else x.masked_fill(excluded, -torch.inf if factor > 0 else torch.inf)


def _like(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def moved(x: Tensor, gradient: Tensor | None, step: float, excluded: Tensor | None) -> Tensor:
    """Rows x - step * gradient whose excluded entries are minus infinity."""
    if gradient is None:
        return without(x, excluded, 1)
    x = torch.sub(x, gradient, alpha=step)
    return x if excluded is None else x.masked_fill_(excluded, -torch.inf)


@operation(
    "(Tensor x, Tensor? gradient, float step, Tensor? excluded, float leak) -> Tensor",
    fake=_like,
    kernel="rows.project_rows",
    gpu="rows.project_rows",
)
def simplex_project(x: Tensor, gradient: Tensor | None, step: float, excluded: Tensor | None, leak: float) -> Tensor:
    """Projection (Algorithm 2) of x - step * gradient: f_l = x_l - t, times the leak where that is negative.

    t is such that the positive parts sum to 1. It lies within 1 of the largest entry: exact at any scale.
    """
    x = moved(x, gradient, step, excluded)
    ranked = x.topk(x.shape[-1]).values  # descending
    largest = ranked[..., :1]
    share, minus_share = _shares(x.shape[-1], x.dtype, x.device)
    # t if the k largest entries were the support, for each k: the true t is the largest of them
    total = (ranked - largest).clamp_min_(-2).cumsum(-1)
    distance = (x - largest).sub_(torch.addcmul(minus_share, total, share).max(-1, keepdim=True).values)
    return leaky_relu(distance, leak).nan_to_num_(nan=torch.nan, neginf=0) if leak else distance.clamp_min_(0)


@lru_cache(maxsize=16)
def _shares(labels: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """1 / k and -1 / k for k = 1, ..., L."""
    with torch.inference_mode(False):
        share = 1 / torch.arange(1, labels + 1, device=device, dtype=dtype)
        return share, -share


@operation(
    "(Tensor grad, Tensor projected, float leak, bool transposed) -> Tensor",
    fake=_like,
    kernel="rows.project_rows_jacobian",
    gpu="rows.project_rows_jacobian",
)
def simplex_project_jacobian(grad: Tensor, projected: Tensor, leak: float, transposed: bool) -> Tensor:
    """J g, or J^T g, for the Jacobian of the projection, df_l/dx_m = c_l (delta_lm - dt/dx_m).

    c_l is the slope at the *output* index l: 1 on the support, the leak below it, 0 for an excluded label;
    dt/dx_m is 1/|support| on the support and else 0.
    """
    sign = projected.sign()
    support = sign.clamp_min(0)
    size = support.sum(-1, keepdim=True)
    slope = leaky_relu(sign, -leak) if leak else support
    if transposed:
        sloped = slope * grad
        return torch.addcmul(sloped, support, sloped.sum(-1, keepdim=True) / size, value=-1)
    return slope * (grad - (support * grad).sum(-1, keepdim=True) / size)


@operation(
    "(Tensor grad, Tensor projected, float leak, float step) -> (Tensor, Tensor)",
    fake=lambda grad, *_: (_like(grad), _like(grad)),
    gpu="rows.project_step_gradients",
)
def simplex_project_step_gradients(grad: Tensor, projected: Tensor, leak: float, step: float) -> tuple[Tensor, Tensor]:
    """J^T g and -step * J^T g: what the projection of x - step * gradient gives to x and to the gradient."""
    by_x = simplex_project_jacobian(grad, projected, leak, True)
    return by_x, -step * by_x


@operation(
    "(Tensor x, Tensor? excluded, float factor) -> Tensor",
    fake=_like,
    kernel="rows.softmax_rows",
    gpu="rows.softmax_rows",
)
def simplex_softmax(x: Tensor, excluded: Tensor | None, factor: float) -> Tensor:
    """Softmax of factor * x."""
    x = without(x, excluded, factor)
    return (x if factor == 1 else factor * x).softmax(-1)


@operation(
    "(Tensor grad, Tensor probability, float factor) -> Tensor",
    fake=_like,
    kernel="rows.softmax_rows_gradient",
    gpu="rows.softmax_rows_gradient",
)
def simplex_softmax_gradient(grad: Tensor, probability: Tensor, factor: float) -> Tensor:
    """Its Jacobian, which is symmetric, times a gradient: factor * p * (g - <p, g>)."""
    product = torch.ops.aten._softmax_backward_data(grad, probability, -1, grad.dtype)
    return product if factor == 1 else factor * product


@operation("(Tensor logits, float eps, float unit) -> Tensor", fake=_like, gpu="rows.costs")
def unary_costs(logits: Tensor, eps: float, unit: float) -> Tensor:
    """Costs -log(softmax(logits) + eps) / unit."""
    return logits.softmax(-1).add_(eps).log_().mul_(-1 / unit)


@operation("(Tensor grad, Tensor logits, float eps, float unit) -> Tensor", fake=_like, gpu="rows.costs_gradient")
def unary_costs_gradient(grad: Tensor, logits: Tensor, eps: float, unit: float) -> Tensor:
    """Their transposed Jacobian times a gradient: p <r, g> - r g, with r = p / (p + eps) / unit."""
    p = logits.softmax(-1)
    by_p = p / (unit * (p + eps)) * grad
    return p.mul_(by_p.sum(-1, keepdim=True)).sub_(by_p)


class _Project(torch.autograd.Function):
    @staticmethod
    @signed
    def forward(x: Tensor, gradient: Tensor | None, step: float, excluded: Tensor | None, leak: float) -> Tensor:
        return simplex_project(x, gradient, step, excluded, leak)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.gradient, ctx.step, ctx.leak = inputs[1] is not None, inputs[2], inputs[4]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (projected,) = ctx.saved_tensors
        if not ctx.gradient:
            return _Jacobian.apply(grad, projected.detach(), ctx.leak, True), None, None, None, None
        by_x, by_gradient = _StepGradients.apply(grad, projected.detach(), ctx.leak, ctx.step)
        return by_x, by_gradient, None, None, None


class _Jacobian(torch.autograd.Function):
    """Linear in the gradient; by the projected rows it is piecewise constant."""

    @staticmethod
    @signed
    def forward(grad: Tensor, projected: Tensor, leak: float, transposed: bool) -> Tensor:
        return simplex_project_jacobian(grad, projected, leak, transposed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float, bool], output: Tensor) -> None:
        _, projected, ctx.leak, ctx.transposed = inputs
        ctx.save_for_backward(projected)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (projected,) = ctx.saved_tensors
        return _Jacobian.apply(grad, projected, ctx.leak, not ctx.transposed), None, None, None


class _StepGradients(torch.autograd.Function):
    """Those of x and of the gradient of one step."""

    @staticmethod
    @signed
    def forward(grad: Tensor, projected: Tensor, leak: float, step: float) -> tuple[Tensor, Tensor]:
        both: tuple[Tensor, Tensor] = simplex_project_step_gradients(grad, projected, leak, step)
        return both

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float, float], output: Any) -> None:
        _, projected, ctx.leak, ctx.step = inputs
        ctx.save_for_backward(projected)

    @staticmethod
    def backward(ctx: Any, by_x: Tensor, by_gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (projected,) = ctx.saved_tensors
        return _Jacobian.apply(by_x - ctx.step * by_gradient, projected, ctx.leak, False), None, None, None


class _Softmax(torch.autograd.Function):
    @staticmethod
    @signed
    def forward(x: Tensor, excluded: Tensor | None, factor: float) -> Tensor:
        return simplex_softmax(x, excluded, factor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor | None, float], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.factor = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (probability,) = ctx.saved_tensors
        return _SoftmaxGradient.apply(grad, probability, ctx.factor), None, None


class _SoftmaxGradient(torch.autograd.Function):
    @staticmethod
    @signed
    def forward(grad: Tensor, probability: Tensor, factor: float) -> Tensor:
        return simplex_softmax_gradient(grad, probability, factor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.factor = inputs[2]

    @staticmethod
    def backward(ctx: Any, upper: Tensor) -> tuple[Tensor, Tensor, None]:
        grad, p = ctx.saved_tensors
        mean, cross = (p * grad).sum(-1, keepdim=True), (p * upper).sum(-1, keepdim=True)
        by_probability = ctx.factor * (upper * (grad - mean) - cross * grad)
        return _SoftmaxGradient.apply(upper, p, ctx.factor), by_probability, None


class _Costs(torch.autograd.Function):
    @staticmethod
    @signed
    def forward(logits: Tensor, eps: float, unit: float) -> Tensor:
        return unary_costs(logits, eps, unit)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, float], output: Tensor) -> None:
        logits, ctx.eps, ctx.unit = inputs
        ctx.save_for_backward(logits)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (logits,) = ctx.saved_tensors
        return _CostsGradient.apply(grad, logits, ctx.eps, ctx.unit), None, None


class _CostsGradient(torch.autograd.Function):
    @staticmethod
    @signed
    def forward(grad: Tensor, logits: Tensor, eps: float, unit: float) -> Tensor:
        return unary_costs_gradient(grad, logits, eps, unit)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float, float], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.eps, ctx.unit = inputs[2:]

    @staticmethod
    def backward(ctx: Any, upper: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad, logits = ctx.saved_tensors
        upper = upper / ctx.unit
        p = softmax(logits)
        part = p / (p + ctx.eps)
        mean = (p * upper).sum(-1, keepdim=True) - upper
        by_p = ctx.eps / (p + ctx.eps) ** 2 * grad * mean + upper * (part * grad).sum(-1, keepdim=True)
        return part * mean, _SoftmaxGradient.apply(by_p, p, 1.0), None, None


def project(x: Tensor, excluded: Tensor | None = None, leak: float = 0.0) -> Tensor:
    """Projection of each row (*, L), with 0 for excluded labels; differentiable. See ``crfgrad.project_simplex``."""
    projected: Tensor = _Project.apply(x, None, 0.0, excluded, leak)
    return projected


def project_step(
    x: Tensor, gradient: Tensor, step: float | Tensor, excluded: Tensor | None = None, leak: float = 0.0
) -> Tensor:
    """Projection of each row of x - step * gradient; a tensor as step gets a gradient too."""
    if isinstance(step, Tensor):
        return project(x - step * gradient, excluded, leak)
    projected: Tensor = _Project.apply(x, gradient, step, excluded, leak)
    return projected


def softmax(x: Tensor, excluded: Tensor | None = None, factor: float = 1.0) -> Tensor:
    """Softmax of factor times each row (*, L), with 0 for excluded labels; differentiable."""
    probability: Tensor = _Softmax.apply(x, excluded, factor)
    return probability


def costs(logits: Tensor, eps: float, unit: float) -> Tensor:
    """Costs -log(softmax(logits) + eps) / unit of rows (*, L), differentiable."""
    found: Tensor = _Costs.apply(logits, eps, unit)
    return found
