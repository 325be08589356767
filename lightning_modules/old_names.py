"""What earlier versions called things: read in a checkpoint, refused in a configuration."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

RENAMED = {
    "BilateralPotential": {"scale": "strength", "sigma_rgb": "sigma_value"},
    "GaussianBilateralPotential": {"sigma_rgb": "sigma_value"},
    "crfgrad": {"Potential": "PairwisePotential"},
}
"""By class or package, the old names in it and what they are now."""
UNKNOWN = (  # how the parser says it
    r"class_path '\S*?(?P<owner>\w+)':\s+Option '(?P<name>\w+)' is not accepted",
    r"cannot import name '(?P<name>\w+)' from '(?P<owner>\w+)'",
    r"module '(?P<owner>\w+)' has no attribute '(?P<name>\w+)'",
)


def refusal(message: str) -> str | None:
    """One sentence in place of what the parser says of an old name; None if there is none in its message."""
    for pattern in UNKNOWN:
        for found in re.finditer(pattern, message):
            owner, name = found["owner"], found["name"]
            if name in RENAMED.get(owner, {}):
                return f"{name} of {owner} is an old name: write {RENAMED[owner][name]}"
    return None


def with_new_names(settings: Any) -> Any:
    """A tree of settings in which arguments have their new names."""
    if isinstance(settings, list):
        return [with_new_names(each) for each in settings]
    if not isinstance(settings, dict):
        return settings
    found = {key: with_new_names(value) for key, value in settings.items()}
    renamed = RENAMED.get(str(found.get("class_path")).split(".")[-1], {})
    for block in ("init_args", "dict_kwargs"):
        if renamed and isinstance(found.get(block), dict):
            found[block] = {renamed.get(name, name): value for name, value in found[block].items()}
    return found


def refuse_old_units(state: Mapping[str, Tensor]) -> None:
    """Refuses to go on with a training of a CRF whose parameters had other units.

    Filters and w_u are converted when they are loaded; moments and rates of an optimiser are not.
    """
    if any(name.endswith(".unary_weight") for name in state):
        raise ValueError(
            "this training cannot go on: the checkpoint is of a version whose parameters had other units, which its "
            "optimiser's state and rates still have; start the second stage again, or give the checkpoint as "
            "unary_checkpoint, which takes the network from it"
        )
