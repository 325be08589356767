"""Pictures of predictions and of learned filters."""

from collections.abc import Sequence
from textwrap import fill

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn

from crfgrad import (
    BilateralPotential,
    GaussianBilateralPotential,
    GaussianSpatialPotential,
    PermutohedralLattice,
    SpatialPotential,
)
from crfgrad.ops.taps import opposite_taps
from datamodules.colours import Colour


def picture(image: Tensor, size: Sequence[int]) -> np.ndarray:
    """An image (3, H, W) of 8-bit colours at another height and width: (height, width, 3) uint8."""
    pixels = Image.fromarray(image.movedim(0, -1).cpu().numpy())
    return np.array(pixels.resize((size[1], size[0]), Image.Resampling.BICUBIC))


def blend(q: Tensor, colours: Sequence[Colour]) -> np.ndarray:
    """Distributions (L, H, W) as mixtures of the class colours: (H, W, 3) in 0..1."""
    palette = torch.tensor(colours, dtype=q.dtype, device=q.device) / 255
    return torch.einsum("lhw,lc->hwc", q, palette).clamp(0, 1).cpu().numpy()


def paint(labels: Tensor, colours: Sequence[Colour]) -> np.ndarray:
    """Labels (H, W) in the class colours: (H, W, 3) uint8; grey stripes where there is no such class."""
    palette = np.array([*colours, (90, 90, 90), (165, 165, 165)], dtype=np.uint8)
    indices = labels.cpu().numpy()
    y, x = np.indices(indices.shape)
    stripes = len(colours) + (x + y) // 3 % 2
    return palette[np.where((indices >= 0) & (indices < len(colours)), indices, stripes)]


def draw_panel(rows: Sequence[dict[str, np.ndarray]]) -> Figure:
    """A row of titled pictures for each image."""
    ratios = [row["image"].shape[0] / row["image"].shape[1] for row in rows]
    columns = len(rows[0])
    size = (2 * columns, 2 * sum(ratios) + 0.3)
    figure, axes = plt.subplots(
        len(rows), columns, figsize=size, squeeze=False, layout="constrained", height_ratios=ratios
    )
    for axes_row, row in zip(axes, rows, strict=True):
        for axis, (title, picture) in zip(axes_row, row.items(), strict=True):
            axis.imshow(picture)
            axis.set(xticks=[], yticks=[])
            axis.set_title(title if row is rows[0] else "", fontsize=9)
    return figure


def draw_filters(kernel: Tensor, names: Sequence[str], title: str, most: int = 8) -> Figure:
    """The cost that a label (row) pays for another one (column), by relative position; red costs, blue rewards.

    Args:
        kernel: (L, L, height, width), relative position 0 in the middle.
        names: Names of the labels.
        title: What the axes of each small picture are.
        most: Draws the first so many labels.
    """
    kernel = kernel[:most, :most].detach().cpu().float()
    count = len(kernel)
    limit = float(kernel.abs().max()) or 1.0
    figure, axes = plt.subplots(
        count, count, figsize=(1.2 * count + 1, 1.2 * count + 0.4), squeeze=False, layout="constrained"
    )
    for label, axes_row in enumerate(axes):
        for other, axis in enumerate(axes_row):
            drawn = axis.imshow(kernel[label, other], cmap="RdBu_r", vmin=-limit, vmax=limit)
            axis.set(xticks=[], yticks=[])
            if label == 0:
                axis.set_title(names[other], fontsize=8)
            if other == 0:
                axis.set_ylabel(names[label], fontsize=8)
    bar = figure.colorbar(drawn, ax=axes, shrink=0.6)
    bar.set_label("cost", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    told = f"Cost that the row's label, in the middle, pays for the column's, {title}"
    figure.suptitle(fill(told, round(14 * (1.2 * count + 1))), fontsize=9)  # about 14 letters to the inch
    return figure


def filters_of(potential: nn.Module) -> tuple[Tensor, str] | None:
    """Filters to draw (L, L, height, width) and what their axes are; None of a potential that has none."""
    if isinstance(potential, SpatialPotential | GaussianSpatialPotential):
        return potential.kernel().detach().cpu(), f"by position, {potential.radius} pixels each way"
    if isinstance(potential, BilateralPotential | GaussianBilateralPotential):
        return lattice_filter_slice(potential), "by position (x) and brightness (y, darker above), 3 widths each way"
    return None


@torch.no_grad()
def lattice_filter_slice(
    potential: BilateralPotential | GaussianBilateralPotential, size: int = 25, reach: float = 3.0
) -> Tensor:
    """A plane through the filters on the lattice: (L, L, size, size).

    Along x lies the difference in position, along y the difference in brightness (of all channels alike;
    without channels, the position y), up to ``reach`` widths either way.

    Args:
        potential: The potential.
        size: Samples along each axis, odd.
        reach: How far the plane goes, in widths.
    """
    labels = potential.num_classes
    step = torch.linspace(-reach, reach, size)
    brightness, position = torch.meshgrid(step, step, indexing="ij")
    features = torch.zeros(labels, 2 + potential.image_channels, size, size)
    features[:, 0] = position
    features[:, 2 if potential.image_channels else 1 :] = brightness
    lattice = PermutohedralLattice(features * potential.feature_scale, potential.radius)
    impulse = torch.zeros(labels, labels, size, size)
    impulse[range(labels), range(labels), size // 2, size // 2] = 1  # image l holds label l in its middle
    weights = opposite_taps(potential.kernel()).mT.cpu()  # at v: what the middle pays for a label at v
    return lattice.slice(lattice.filter(lattice.splat(impulse), weights))
