"""Which implementation runs: compiled kernels where there are, or plain torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

Backend = Literal["auto", "torch"]
_chosen: ContextVar[Backend] = ContextVar("backend", default="auto")


@contextmanager
def use_backend(backend: Backend) -> Iterator[None]:
    """Chooses the implementation within this context.

    Args:
        backend: "auto", compiled kernels for tensors on a CPU or a GPU and plain torch elsewhere; "torch", plain torch
            everywhere, which is the reference.

    Example:
        >>> import torch
        >>> from crfgrad import CRF
        >>> with use_backend("torch"):
        ...     q = CRF(num_classes=2)(torch.zeros(1, 2, 4, 4), torch.zeros(1, 3, 4, 4))
    """
    if backend not in get_args(Backend):
        raise ValueError(f'there is no backend "{backend}": use {", ".join(get_args(Backend))}')
    token = _chosen.set(backend)
    try:
        yield
    finally:
        _chosen.reset(token)


def compiled() -> bool:
    """Whether compiled kernels are to be used where there are any."""
    return _chosen.get() == "auto"
