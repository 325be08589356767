"""What a run was asked for, so that results of other settings are not taken for it."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

NO_MATTER = ("name", "output")  # where it is written changes no result


def effective(arguments: Sequence[str]) -> dict[str, Any]:
    """Arguments of main.py, with what is in their configurations, by dotted name; later ones override."""
    found: dict[str, Any] = {}
    for key, value in _pairs(arguments):
        if key in ("config", "c"):
            path = Path(value)
            if not path.is_file():
                raise SystemExit(
                    f"there is no file {value}: give the path of a configuration, such as those in experiments/"
                )
            _override(found, _flat(yaml.safe_load(path.read_text()) or {}))
        else:
            _override(found, _flat({key: _parsed(value)}))
    return {key: value for key, value in found.items() if key not in NO_MATTER}


def differences(stored: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    """Where the settings of a run differ from those asked for."""
    unset = "not given"
    pairs = [(name, stored.get(name, unset), asked.get(name, unset)) for name in {**stored, **asked}]
    return [f"{name} is {there} there and {here} here" for name, there, here in pairs if there != here]


def _override(found: dict[str, Any], later: dict[str, Any]) -> None:
    """Adds later settings; null takes a block away, and a block takes the place of null."""
    for name, value in later.items():
        parts = name.split(".")
        above = {".".join(parts[:length]) for length in range(1, len(parts))}
        gone = [old for old in found if (value is None and old.startswith(f"{name}."))]
        gone += [old for old in above if old in found and found[old] is None]
        for old in gone:
            del found[old]
        found[name] = value


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """--name=value, --name value and --name, in order."""
    name: str | None = None  # of an argument that may still get its value
    for argument in arguments:
        if re.match(r"--?[A-Za-z]", argument):
            if name is not None:
                yield name, "true"
            name, given, value = argument.lstrip("-").partition("=")
            if given:
                yield name, value
                name = None
        elif name is None:
            raise SystemExit(f"{argument} is no argument of main.py fit: after --, write --NAME VALUE or --NAME=VALUE")
        else:
            yield name, argument
            name = None
    if name is not None:
        yield name, "true"


def _parsed(value: str) -> Any:
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError:
        return value  # a file name, for instance


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict) or not tree:
        return {prefix: _number(tree)}
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return found


def _number(value: Any) -> Any:
    """1e-3 is text for YAML, and a number for the parser of main.py; 1 and 1.0 are one number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value
