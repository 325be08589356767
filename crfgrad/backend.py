"""Which implementation runs: compiled kernels on a CPU, plain torch elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

from torch import Tensor

Backend = Literal["auto", "numba", "torch"]
_preferred: ContextVar[Backend] = ContextVar("backend", default="auto")


@contextmanager
def use_backend(backend: Backend) -> Iterator[None]:
    """Within this context, ``backend="auto"`` means the given backend.

    Args:
        backend: "numba", compiled kernels for tensors on a CPU; "torch", the reference, on any device;
            "auto", numba on a CPU and torch elsewhere.

    Example:
        >>> import torch
        >>> from crfgrad import CRF
        >>> with use_backend("torch"):
        ...     q = CRF(num_classes=2)(torch.zeros(1, 2, 4, 4), torch.zeros(1, 3, 4, 4))
    """
    _check(backend)
    token = _preferred.set(backend)
    try:
        yield
    finally:
        _preferred.reset(token)


def compiled(backend: Backend, tensor: Tensor) -> bool:
    """Whether to use the compiled kernels for a tensor."""
    _check(backend)
    chosen = _preferred.get() if backend == "auto" else backend
    if chosen == "numba" and tensor.device.type != "cpu":
        raise ValueError(f'backend "numba" is for a CPU, the tensor is on {tensor.device}: use "auto" or "torch"')
    return chosen != "torch" and tensor.device.type == "cpu"


def _check(backend: str) -> None:
    if backend not in get_args(Backend):
        raise ValueError(f'there is no backend "{backend}": use {", ".join(get_args(Backend))}')
