"""Gradients of any order for operations that are linear in each of their arguments.

Such operations come together: a multilinear form T(a, b, c), a number, has a derivative by each argument, which
is an operation on the others. Slice, splat and the products of corners are the derivatives of one form. The
gradient of one derivative is made of the others, and so on.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from crfgrad.ops.registry import signed


def derivatives(*operations: Callable[..., Tensor]) -> list[Callable[..., Tensor]]:
    """Differentiable functions from the derivatives of a form by its first argument, its second, ...

    Args:
        operations: Each takes the other arguments of the form in their order, and then what is constant: tensors
            before numbers.
    """
    first = len(FUNCTIONS)
    FUNCTIONS.extend(_derivative(operations, place, first) for place in range(len(operations)))
    return [_applied(function) for function in FUNCTIONS[first:]]


FUNCTIONS: list[Any] = []
"""The derivatives of all forms, which is where the compiler of torch finds them."""


def _applied(function: Any) -> Callable[..., Tensor]:
    def apply(*arguments: Any) -> Tensor:
        result: Tensor = function.apply(*arguments)
        return result

    return apply


def _derivative(operations: tuple[Callable[..., Tensor], ...], place: int, first: int) -> Any:
    others = [n for n in range(len(operations)) if n != place]

    class Derivative(torch.autograd.Function):
        @staticmethod
        @signed
        def forward(*arguments: Any) -> Tensor:
            return operations[place](*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            ctx.save_for_backward(*(one for one in inputs if isinstance(one, Tensor)))
            ctx.numbers = [one for one in inputs if not isinstance(one, Tensor)]

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            saved = ctx.saved_tensors
            given = {place: grad}
            for n, other in enumerate(others):
                given[other] = saved[n]
            constants = [*saved[len(others) :], *ctx.numbers]
            grads: list[Tensor | None] = [None] * (len(others) + len(constants))
            for n, other in enumerate(others):
                if ctx.needs_input_grad[n]:
                    arguments = [given[one] for one in range(len(operations)) if one != other]
                    grads[n] = FUNCTIONS[first + other].apply(*arguments, *constants)
            return tuple(grads)

    return Derivative
