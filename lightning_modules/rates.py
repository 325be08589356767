"""Rates of single potentials of a head."""

from collections.abc import Iterator, Mapping
from inspect import isabstract
from typing import Any

from torch import nn

from crfgrad import PairwisePotential


def check_potential_rates(rates: Mapping[str, float]) -> None:
    """Refuses names of no potential, and rates that are none.

    A potential that this head lacks is allowed: a file of rates serves several heads.
    """
    known = sorted({kind.__name__ for kind in _subclasses(PairwisePotential)})
    for name, rate in rates.items():
        if name not in known:
            raise ValueError(f"potential_learning_rates: {name} is no potential: give one of {', '.join(known)}")
        if not rate >= 0:
            raise ValueError(f"potential_learning_rates: {name} has the rate {rate}: give 0 or more")


def head_groups(
    head: nn.Module, rate: float, decay: float, potential_rates: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Groups of parameters of a head: first those that learn at its rate, then one for each potential's own.

    A rate is for potentials of the class that it names, not for those of subclasses.
    """

    def group(own: float) -> dict[str, Any]:
        # a step of SGD or AdamW multiplies the decay by the rate
        return {"params": [], "lr": own, "weight_decay": decay * rate / own if own else 0.0}

    kinds = {
        parameter: type(module).__name__
        for module in head.modules()
        if isinstance(module, PairwisePotential)
        for parameter in module.parameters()
    }
    groups: dict[str | None, dict[str, Any]] = {None: group(rate)}
    for parameter in head.parameters():
        kind = kinds.get(parameter)
        if kind is not None and kind in potential_rates:
            groups.setdefault(kind, group(potential_rates[kind]))["params"].append(parameter)
        else:
            groups[None]["params"].append(parameter)
    return list(groups.values())


def _subclasses(kind: type[object]) -> Iterator[type[object]]:
    """All classes below one, however deep, but those that only others are made of."""
    for below in kind.__subclasses__():
        if not isabstract(below):
            yield below
        yield from _subclasses(below)
