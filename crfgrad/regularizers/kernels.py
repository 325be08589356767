"""Gaussian kernels as dictionaries: a weight, and the widths of position and colour."""

from collections.abc import Collection, Mapping, Sequence
from numbers import Real

from torch import Tensor

from crfgrad.checks import check_positive
from crfgrad.features import Widths, positions, positions_and_colours, spread_widths

Kernel = Mapping[str, float | Sequence[float]]
"""``{"weight": 1, "xy": 100, "rgb": 15}``; without "rgb" a kernel of positions, without "xy" one of colours."""


def check_kernels(kernels: Sequence[Kernel], others: Collection[str] = ("xy", "rgb")) -> None:
    """Raises a ValueError if there is no kernel, or one with something else than a weight and widths.

    Args:
        kernels: The kernels.
        others: What may have a width.
    """
    if not kernels:
        raise ValueError("kernels is empty: give at least one, such as {'weight': 1, 'xy': 100, 'rgb': 15}")
    for kernel in kernels:
        widths = [name for name in kernel if name != "weight"]
        wrong = [name for name in widths if name not in others]
        if "weight" not in kernel or not widths or wrong:
            raise ValueError(
                f"a kernel has a weight, and widths of {', '.join(others)}, such as {{'weight': 1, 'xy': 100, 'rgb': "
                f"15}}; got {dict(kernel)}"
            )
        for name in widths:
            for width in _listed(kernel[name]):
                check_positive(name, width)


def check_colour_widths(kernels: Sequence[Kernel], largest: int) -> None:
    """Raises a ValueError if widths seem to be of other colours than 0 to ``largest``, which is 1 or 255."""
    other = 256 - largest
    for kernel in kernels:
        for width in _listed(kernel.get("rgb", 1.0)):
            if (width < 1) if other == 1 else (width > 1):
                raise ValueError(
                    f"a kernel has the width {width:g} of colours, which are 0..{largest} here: give "
                    f"{width * largest / other:.3g} if you meant colours 0..{other} (for other channels, build the "
                    "loss with check_colour=False)"
                )


def _listed(widths: Widths) -> Sequence[float]:
    """One width for all features, or one for each."""
    return [float(widths)] if isinstance(widths, float | int | Real) else widths


def scaled_features(kernel: Kernel, images: Tensor, scale: float) -> Tensor:
    """Features of a kernel in units of its widths, with those of position scaled: (B, H, W, d)."""
    widths: list[float] = []
    if "xy" in kernel:
        widths += [scale * width for width in spread_widths("xy", kernel["xy"], 2)]
    if "rgb" in kernel:
        widths += spread_widths("rgb", kernel["rgb"], images.shape[1])
    if "xy" not in kernel:
        return images.movedim(1, -1) / images.new_tensor(widths)
    features = positions_and_colours(images) if "rgb" in kernel else positions(images)
    return features / images.new_tensor(widths)
