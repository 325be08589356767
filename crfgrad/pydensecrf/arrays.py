"""What callers give, as arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from crfgrad.features import Widths, spread_widths


def array(name: str, given: Any, shape: Sequence[int | str], remedy: str = "") -> np.ndarray:
    """A float32 array in C order, or a sentence that says what is wrong with it.

    Args:
        name: How to call it.
        given: Anything that numpy takes for an array of real numbers.
        shape: The length of each dimension, or its name where any length will do.
        remedy: What to do if the shape is another one.
    """
    found = real(name, given)
    fits = len(found.shape) == len(shape) and all(
        isinstance(wanted, str) or wanted == size for wanted, size in zip(shape, found.shape, strict=True)
    )
    if not fits or 0 in found.shape:
        expected = ", ".join(map(str, shape))
        raise ValueError(f"{name} must have shape ({expected}), got {found.shape}{remedy}")
    return np.ascontiguousarray(found, np.float32)


def real(name: str, given: Any) -> np.ndarray:
    """An array of real numbers."""
    found = np.asarray(given)
    if found.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be an array of real numbers, got {found.dtype} from {type(given).__name__}")
    return found


def widths(name: str, given: Widths, count: int, what: str) -> np.ndarray:
    """One width for each of some features, from one for all or from as many."""
    return np.array(spread_widths(name, given, count, what), np.float32)
