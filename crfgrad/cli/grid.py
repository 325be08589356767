"""Settings to try: a coarse grid, then ever closer neighbours of the best."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
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
        low = min(tried)
        option = "--" + name.replace("_", "-")
        if low < 0 or (low == 0 and not name.endswith("compat")):
            raise CommandError(f"{option} {low:g} cannot be: {'a strength is 0 or more' if low < 0 else 'a width is'} ")
    return {name: sorted(set(tried)) for name, tried in values.items()}


def coarse_grid(values: Values) -> list[Setting]:
    """Every combination."""
    return [Setting(*combination) for combination in itertools.product(*(values[name] for name in Setting._fields))]


def neighbours(best: Setting, values: Values, level: int) -> list[Setting]:
    """Settings around the best: in the first round half the way to the next values, then a quarter, and so on.

    The ways are those of logarithms. Strengths vary all together, since they share a lattice; each width alone. At
    the end of a grid this goes on beyond it. What has one value only stays.
    """
    near = {name: _near(getattr(best, name), values[name], level) for name in Setting._fields}
    strengths = list(itertools.product(near["gaussian_compat"], near["bilateral_compat"]))
    widths = {(best.gaussian_sxy, best.bilateral_sxy, best.bilateral_srgb)}
    for place, name in enumerate(("gaussian_sxy", "bilateral_sxy", "bilateral_srgb")):
        for value in near[name]:
            changed = [best.gaussian_sxy, best.bilateral_sxy, best.bilateral_srgb]
            changed[place] = value
            widths.add((changed[0], changed[1], changed[2]))
    return _distinct(Setting(s, a, xy, rgb, b) for s, xy, rgb in sorted(widths) for a, b in strengths)


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


def _distinct(settings: Iterable[Setting]) -> list[Setting]:
    return list(dict.fromkeys(settings))
