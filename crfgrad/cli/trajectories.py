"""The labels of many settings after every iteration, on one image."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from crfgrad.cli.grid import Setting
from crfgrad.dense_crf import DenseCRF, initial
from crfgrad.energy import Energy
from crfgrad.operators import Operator
from crfgrad.solvers import MeanField


class Scaled(Operator):
    """An operator times a number: one kernel, and so one lattice, for all strengths."""

    def __init__(self, operator: Operator, factor: float) -> None:
        super().__init__(operator.symmetric, operator.excludes_self)
        self.operator, self.factor = operator, factor

    def matmul(self, q: Tensor) -> Tensor:
        """See ``Operator.matmul``."""
        return self.operator.matmul(q).mul_(self.factor)


@torch.no_grad()
def trajectories(
    probabilities: np.ndarray, image: np.ndarray, settings: Sequence[Setting], iterations: int
) -> Iterator[tuple[int, np.ndarray]]:
    """The place of each setting, and its labels after 0, ..., T iterations: (T + 1, H, W).

    The labels are those of ``DenseCRF`` with these settings. A lattice is built once for all settings of its widths.

    Args:
        probabilities: (L, H, W).
        image: (H, W, 3) uint8.
        settings: Widths and strengths.
        iterations: T.
    """
    maps = torch.from_numpy(probabilities)[None]
    pixels = torch.from_numpy(image).movedim(-1, 0)[None]
    kind = np.uint8 if len(probabilities) <= 256 else np.uint16
    solver = MeanField(iterations).eval()
    spatial: dict[float, Operator] = {}

    def widths(place: int) -> tuple[float, float]:
        return settings[place].bilateral_sxy, settings[place].bilateral_srgb

    for (sxy, srgb), same in itertools.groupby(sorted(range(len(settings)), key=widths), key=widths):
        crf = DenseCRF(gaussian_compat=0, bilateral_sxy=sxy, bilateral_srgb=srgb, bilateral_compat=1)
        bilateral = crf.energy(maps, pixels)
        start = initial(bilateral)
        for place in same:
            setting = settings[place]
            width = setting.gaussian_sxy
            if width not in spatial:
                crf = DenseCRF(gaussian_sxy=width, gaussian_compat=1, bilateral_compat=0)
                spatial[width] = crf.energy(maps, pixels).operator
            kernels = (spatial[width], setting.gaussian_compat), (bilateral.operator, setting.bilateral_compat)
            energy = Energy(bilateral.unary, [Scaled(kernel, strength) for kernel, strength in kernels if strength])
            states = solver.trajectory(energy, start)
            yield place, np.stack([state[0].movedim(0, -1).numpy().argmax(-1).astype(kind) for state in states])
