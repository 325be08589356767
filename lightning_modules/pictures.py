"""Pictures of predictions and of learned filters."""

from collections.abc import Sequence

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from crfgrad import SpatialPotential

Colour = tuple[int, int, int]


def blend(q: Tensor, colours: Sequence[Colour]) -> np.ndarray:
    """Distributions (L, H, W) as mixtures of the class colours: (H, W, 3) in 0..1."""
    palette = torch.tensor(colours, dtype=q.dtype, device=q.device) / 255
    return torch.einsum("lhw,lc->hwc", q, palette).clamp(0, 1).cpu().numpy()


def paint(labels: Tensor, colours: Sequence[Colour]) -> np.ndarray:
    """Labels (H, W) in the class colours: (H, W, 3) uint8; black where there is no such class."""
    palette = np.array([*colours, (0, 0, 0)], dtype=np.uint8)
    known = labels.clamp(-1, len(colours)).masked_fill(labels >= len(colours), len(colours))
    return palette[known.cpu().numpy()]


def draw_panel(rows: Sequence[dict[str, np.ndarray]]) -> Figure:
    """A row of titled pictures for each image."""
    height, width = next(iter(rows[0].values())).shape[:2]
    columns = len(rows[0])
    size = (2 * columns, 2 * len(rows) * height / width + 0.3)
    figure, axes = plt.subplots(len(rows), columns, figsize=size, squeeze=False, layout="constrained")
    for axes_row, row in zip(axes, rows, strict=True):
        for axis, (title, picture) in zip(axes_row, row.items(), strict=True):
            axis.imshow(picture)
            axis.set(xticks=[], yticks=[])
            axis.set_title(title if row is rows[0] else "", fontsize=9)
    return figure


def draw_filters(potential: SpatialPotential, names: Sequence[str], most: int = 8) -> Figure:
    """The learned cost of each pair of labels by relative position; red costs, blue rewards."""
    kernel = potential.kernel().detach().cpu().float()
    count = min(len(kernel), most)
    limit = float(kernel.abs().max()) or 1.0
    figure, axes = plt.subplots(
        count, count, figsize=(1.2 * count + 1, 1.2 * count), squeeze=False, layout="constrained"
    )
    for label, axes_row in enumerate(axes):
        for other, axis in enumerate(axes_row):
            drawn = axis.imshow(kernel[label, other], cmap="RdBu_r", vmin=-limit, vmax=limit)
            axis.set(xticks=[], yticks=[])
            if label == 0:
                axis.set_title(names[other], fontsize=8)
            if other == 0:
                axis.set_ylabel(names[label], fontsize=8)
    figure.colorbar(drawn, ax=axes, shrink=0.6)
    return figure
