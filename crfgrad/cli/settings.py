"""Settings of ``DenseCRF`` from options and YAML files."""

import argparse
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from crfgrad.cli.errors import CommandError
from crfgrad.dense_crf import DenseCRF
from crfgrad.features import spread_widths

Settings = dict[str, Any]

OPTIONS = ("gaussian_sxy", "gaussian_compat", "bilateral_sxy", "bilateral_srgb", "bilateral_compat", "iterations")
# a class cannot be written in YAML, and images are always colours here
DEFAULTS: Settings = {
    name: parameter.default
    for name, parameter in inspect.signature(DenseCRF).parameters.items()
    if name not in ("solver", "check_colour")
}


def read_settings(path: Path) -> Settings:
    """Settings from a YAML file, as ``write_settings`` writes them."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CommandError(f"--config {path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise CommandError(f"--config {path} holds no settings: write lines such as bilateral_sxy: 80")
    unknown = [str(name) for name in content if name not in DEFAULTS]
    if unknown:
        raise CommandError(f"--config {path} holds {', '.join(unknown)}: settings are {', '.join(DEFAULTS)}")
    return content


def write_settings(settings: Settings) -> str:
    """Settings as YAML."""
    return yaml.safe_dump(settings, sort_keys=False)


def chosen_settings(arguments: argparse.Namespace) -> Settings:
    """All settings: defaults, then the YAML file, then options."""
    settings = DEFAULTS | (read_settings(arguments.config) if arguments.config else {})
    for name in OPTIONS:
        value = getattr(arguments, name)
        if value is not None:
            settings[name] = value[0] if isinstance(value, list) and len(value) == 1 else value
    build(settings)
    return settings


def build(settings: Settings) -> DenseCRF:
    """A dense CRF, or a sentence on what is wrong with its settings."""
    try:
        crf = DenseCRF(**settings)
        spread_widths("bilateral_srgb", crf.bilateral_srgb, 3)
        for name in ("gaussian_compat", "bilateral_compat"):
            _check_compat(name, getattr(crf, name))
    except (TypeError, ValueError) as error:
        raise CommandError(f"wrong settings: {error}") from None
    return crf


def _check_compat(name: str, compat: Any) -> None:
    wrong = f"{name} must be a number, a vector or a square matrix, all of finite numbers, got {compat!r}"
    try:
        costs = np.asarray(compat)
    except ValueError:  # rows of several lengths
        raise ValueError(wrong) from None
    square = costs.ndim < 2 or (costs.ndim == 2 and costs.shape[0] == costs.shape[1])
    if costs.dtype.kind not in "iuf" or costs.size == 0 or not square or not np.isfinite(costs).all():
        raise ValueError(wrong)
