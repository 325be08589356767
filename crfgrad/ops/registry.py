"""Operations that torch knows by name: it can trace, compile and export what is made of them.

Each is defined once, by its schema, a reference in plain torch for any device, the shapes of its results, and the
names of compiled kernels for the CPU and for GPUs. Nothing here is differentiable: see ``crfgrad.ops.forms``.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from crfgrad.backend import compiled

HALF = (torch.float16, torch.bfloat16)
"""Types without kernels."""
LIBRARY = torch.library.Library("crfgrad", "DEF")
ON_GPU: dict[str, Callable[..., Any]] = {}
"""What runs on a GPU, by the name of the operation, where that is not the reference."""


def on_cpu(tensor: Tensor) -> bool:
    """Whether to work in small pieces, which stay in a cache, rather than in few calls, which wait for nothing."""
    return tensor.device.type == "cpu"


def operation(
    schema: str, fake: Callable[..., Any], kernel: str = "", gpu: str = ""
) -> Callable[[Callable[..., Any]], Any]:
    """Defines the operation whose reference is decorated.

    Args:
        schema: Arguments and results, ``(Tensor values, int count) -> Tensor``.
        fake: Results of the right shape, from the arguments.
        kernel: Where its compiled kernel is, ``module.function`` below ``crfgrad.kernels``; imported when needed.
        gpu: The same of what launches a Triton kernel, below ``crfgrad.gpu``.
    """

    def define(reference: Callable[..., Any]) -> Any:
        name = reference.__name__
        LIBRARY.define(name + schema)
        LIBRARY.impl(name, _hidden(reference), "CompositeExplicitAutograd")
        LIBRARY.impl(name, _hidden(lambda *arguments: _called_alone(operator, arguments)), "Autograd")
        torch.library.register_fake(f"crfgrad::{name}", _traceable(fake), lib=LIBRARY)
        if kernel:
            LIBRARY.impl(name, _hidden(lambda *arguments: _on_cpu(kernel, reference, arguments)), "CPU")
        if gpu:
            ON_GPU[name] = _hidden(lambda *arguments: _on_gpu(gpu, reference, arguments))
            for key in ("CUDA", "XPU"):
                LIBRARY.impl(name, ON_GPU[name], key)
        operator = getattr(torch.ops.crfgrad, name).default
        operator.__doc__ = reference.__doc__
        return operator

    return define


def signed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, knowing its signature: ``torch.autograd.Function`` asks for that of ``forward`` at every call."""
    function.__signature__ = signature(function)  # type: ignore[attr-defined]
    return function


def refuse_onnx() -> None:
    """Raises a NotImplementedError while a model is exported to ONNX."""
    if torch.onnx.is_in_onnx_export():
        raise NotImplementedError(
            "ONNX has no operations for a permutohedral lattice: use torch.export for the whole model, or export the "
            "network alone and refine its output with crfgrad afterwards"
        )


def _traceable(fake: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(fake)
    def call(*arguments: Any) -> Any:
        refuse_onnx()  # here, for the compiler of torch takes it for granted that nothing is exported
        return fake(*arguments)

    return call


def _hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, out of sight of the compiler of torch, which would look into what runs while its code runs.

    Unlike ``torch.compiler.disable`` this does not load the compiler, which takes as long as all of torch.
    """
    hidden: Callable[..., Any] = _disable_dynamo(function)
    return hidden


def _called_alone(operator: Any, arguments: tuple[Any, ...]) -> Any:
    """A call that may come from outside of ``crfgrad.ops``, as those of an exported program do."""
    with torch._C._AutoDispatchBelowAutograd():
        results = operator(*arguments)
    if torch.is_grad_enabled() and any(isinstance(one, Tensor) and one.requires_grad for one in arguments):
        return _WithoutGradient.apply(results, *arguments)
    return results


class _WithoutGradient(torch.autograd.Function):
    """Keeps a gradient that is not there from passing for zero."""

    @staticmethod
    def forward(ctx: Any, results: Any, *arguments: Any) -> Any:
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError("an exported CRF gives no gradients: call it under torch.no_grad()")


def _on_cpu(kernel: str, reference: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    if not _served(arguments):
        return reference(*arguments)
    return _kernel("kernels", kernel)(*(_plain(one) if isinstance(one, Tensor) else one for one in arguments))


def _on_gpu(launcher: str, reference: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    if not _served(arguments) or not _triton():
        return reference(*arguments)
    device = next(one.device for one in arguments if isinstance(one, Tensor))
    with torch.accelerator.device_index(device.index):
        results = _kernel("gpu", launcher)(*arguments)
    return reference(*arguments) if results is NotImplemented else results


def _served(arguments: tuple[Any, ...]) -> bool:
    """Whether compiled kernels are wanted, and made for the types of these arguments."""
    types = {one.dtype for one in arguments if isinstance(one, Tensor) and one.is_floating_point()}
    if len(types) > 1:
        raise TypeError(
            f"the tensors of one operation must have one floating-point type, got {sorted(map(str, types))}"
        )
    return compiled() and types.isdisjoint(HALF)


@lru_cache
def _triton() -> bool:
    return find_spec("triton") is not None


@lru_cache
def _kernel(package: str, name: str) -> Callable[..., Any]:
    module, function = name.split(".")
    found: Callable[..., Any] = getattr(import_module(f"crfgrad.{package}.{module}"), function)
    return found


def _plain(tensor: Tensor) -> Tensor:
    """The tensor as NumPy can see it."""
    return (tensor.detach() if tensor.requires_grad else tensor).contiguous()
