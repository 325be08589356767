"""Settings to try: a coarse grid, then ever closer neighbours of the best."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from crfgrad.cli.errors import CommandError


class Setting(NamedTuple):
    """Widths and strengths; iterations are no part of it, since a trajectory shows them all."""

    gaussian_sxy: float
    gaussian_compat: float
    bilateral_sxy: float
    bilateral_srgb: float
    bilateral_compat: float


Values = Mapping[str, Sequence[float]]


def checked_values(values: Values) -> dict[str, list[float]]:
    """The values of each setting in ascending order, or a sentence on those that cannot be."""
    for name, tried in values.items():
        low, option = min(tried), "--" + name.replace("_", "-")
        for value in tried:
            if not math.isfinite(value):
                raise CommandError(f"{option} {value:g} is no finite number: give others to try")
        if name.endswith("compat") and low < 0:
            raise CommandError(f"{option} {low:g} must not be negative: 0 leaves the kernel out")
        if not name.endswith("compat") and low <= 0:
            raise CommandError(f"{option} {low:g} must be positive: it is a width")
    return {name: sorted(set(tried)) for name, tried in values.items()}


def coarse_grid(values: Values) -> list[Setting]:
    """Every combination."""
    return [Setting(*combination) for combination in itertools.product(*(values[name] for name in Setting._fields))]


def neighbours(best: Setting, values: Values, level: int) -> list[Setting]:
    """Settings around the best: in the first round half the way to the next values, then a quarter, and so on.

    The ways are those of logarithms. Each value changes alone, and the two strengths together as well. At the end of a
    grid this goes on beyond it. What has one value only stays.
    """
    near = {name: _near(getattr(best, name), values[name], level) for name in Setting._fields}
    alone = [best._replace(**{name: value}) for name in Setting._fields for value in near[name]]
    strengths = itertools.product(near["gaussian_compat"], near["bilateral_compat"])
    return list(dict.fromkeys([*alone, *(best._replace(gaussian_compat=a, bilateral_compat=b) for a, b in strengths)]))


def _near(value: float, values: Sequence[float], level: int) -> list[float]:
    positive = [other for other in values if other > 0]
    if len(values) < 2:
        return [value]
    ratio = (positive[-1] / positive[0]) ** (1 / (len(positive) - 1)) if len(positive) > 1 else 2.0
    if value == 0:
        return [0.0, _rounded(positive[0] / 2**level)]
    factor = ratio ** (0.5**level)
    return [_rounded(value / factor), value, _rounded(value * factor)]


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
