"""Projection onto the simplex: equals ``crfgrad.simplex``."""

import numpy as np

from crfgrad.kernels.parallel import kernel


@kernel
def project(x: np.ndarray, leak: float, out: np.ndarray, start: int, stop: int) -> None:
    """Projects rows of x (rows, L).

    The support shrinks from all entries within 1 of the maximum to those above the threshold that
    it implies, until nothing changes; that is exact, and needs no sorting.
    """
    labels = x.shape[1]
    for i in range(start, stop):
        row = x[i]
        top = row[0]
        for label in range(1, labels):
            top = max(top, row[label])
        threshold = row.dtype.type(-1)
        size = 0
        while True:
            total = row.dtype.type(0)
            count = 0
            for label in range(labels):
                inside = row[label] - top > threshold
                total += row[label] - top if inside else 0
                count += inside
            if count == size:
                break
            size = count
            threshold = (total - 1) / count
        for label in range(labels):
            distance = row[label] - top - threshold
            below = leak * distance if leak > 0 else 0 * leak  # distance may be -infinity
            out[i, label] = distance if distance > 0 else below


@kernel
def project_gradient(
    grad: np.ndarray, projected: np.ndarray, leak: float, out: np.ndarray, start: int, stop: int
) -> None:
    """Gradient of the projection, whose support is where its result is positive."""
    labels = grad.shape[1]
    for i in range(start, stop):
        total = grad.dtype.type(0)
        size = 0
        for label in range(labels):
            inside = projected[i, label] > 0
            total += grad[i, label] if inside else leak * grad[i, label]
            size += inside
        mean = total / size
        for label in range(labels):
            out[i, label] = grad[i, label] - mean if projected[i, label] > 0 else leak * grad[i, label]
