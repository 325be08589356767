"""Rates of single potentials of a head."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from crfgrad import Potential


def check_potential_rates(rates: Mapping[str, float]) -> None:
    """Refuses names of no potential, and rates that are none.

    A potential that this head lacks is allowed: a file of rates serves several heads.
    """
    known = sorted({kind.__name__ for kind in _subclasses(Potential)})
    for name, rate in rates.items():
        if name not in known:
            raise ValueError(f"potential_learning_rates: {name} is no potential: give one of {', '.join(known)}")
        if not rate >= 0:
            raise ValueError(f"potential_learning_rates: {name} has the rate {rate}: give 0 or more")


def head_groups(head: nn.Module, rate: float, potential_rates: Mapping[str, float]) -> list[dict[str, Any]]:
    """Groups of parameters of a head: first those that learn at its rate, then one for each potential's own.

    A rate is for potentials of the class that it names, not for those of subclasses.
    """
    kinds = {
        parameter: type(module).__name__
        for module in head.modules()
        if isinstance(module, Potential)
        for parameter in module.parameters()
    }
    groups: dict[str | None, dict[str, Any]] = {None: {"params": [], "lr": rate}}
    for parameter in head.parameters():
        kind = kinds.get(parameter)
        if kind is not None and kind in potential_rates:
            groups.setdefault(kind, {"params": [], "lr": potential_rates[kind]})["params"].append(parameter)
        else:
            groups[None]["params"].append(parameter)
    return list(groups.values())


def _subclasses(kind: type[object]) -> Iterator[type[object]]:
    """All classes below one, however deep; those whose name starts with an underscore are nobody's to name."""
    for below in kind.__subclasses__():
        if not below.__name__.startswith("_"):
            yield below
        yield from _subclasses(below)
