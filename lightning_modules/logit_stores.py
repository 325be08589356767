"""Where logits of images are kept."""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

Computed = Iterable[tuple[int, str, np.ndarray]]
"""Index and name of images, and their logits (L, H, W)."""


class InMemory:
    """Logits by the index of their images.

    Args:
        computed: The logits.
        dtype: How they are kept.
    """

    def __init__(self, computed: Computed, dtype: type[np.floating]) -> None:
        self.logits = {index: converted(name, logits, dtype) for index, name, logits in computed}

    def __call__(self, index: int, name: str) -> np.ndarray:
        """Logits (L, H, W)."""
        return self.logits[index]


class InFolder:
    """Logits in files, one for each image, and a description of where they come from.

    A file is there as a whole or not at all, so that a process may be killed at any time.

    Args:
        folder: The folder.
        count: How many images there are.
        pictures: What is done to an image before the network sees it.
        dtype: How logits are written.
    """

    def __init__(self, folder: Path, count: int, pictures: str, dtype: type[np.floating]) -> None:
        self.folder = folder
        self.count = count
        self.dtype = dtype
        self.pictures = {"count": count, "transforms": pictures}
        self.description = folder / "logits.json"

    def claim(self, source: dict[str, Any]) -> None:
        """Notes what the logits are of; refuses a folder that has others.

        Args:
            source: {"network": its fingerprint} or {"folds": how many networks have given them}, and the "precision"
                that they were computed with.
        """
        asked = self.pictures | {"dtype": np.dtype(self.dtype).name} | source
        if self.description.is_file():
            self._refuse_others(asked)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._replace(self.description, json.dumps(asked, indent=1).encode())

    def _refuse_others(self, asked: dict[str, Any]) -> None:
        found = json.loads(self.description.read_text())
        different = ", ".join(key for key, value in asked.items() if found.get(key) != value)
        if different:
            raise ValueError(
                f"{self.folder} has logits that differ from those asked for in: {different}; give another folder"
            )

    @property
    def out_of_fold(self) -> bool:
        """Whether the folder has logits of networks that have not seen their images."""
        return self.description.is_file() and "folds" in json.loads(self.description.read_text())

    def check_complete(self) -> None:
        """Refuses out-of-fold logits of other pictures, or of a part of them."""
        self._refuse_others(self.pictures)
        missing = [index for index in range(self.count) if not self.has(index)]
        if missing:
            raise ValueError(
                f"{self.folder} lacks the out-of-fold logits of {len(missing)} images: run experiments.folds to its end"
            )

    def has(self, index: int) -> bool:
        """Whether the logits of an image are there."""
        return self._path(index).is_file()

    def write(self, index: int, name: str, logits: np.ndarray) -> None:
        """Adds the logits (L, H, W) of an image."""
        logits = converted(name, logits, self.dtype)
        temporary = self._path(index).with_suffix(f".{os.getpid()}")
        with temporary.open("wb") as file:
            np.savez(file, logits=logits, name=name)
        temporary.replace(self._path(index))

    def __call__(self, index: int, name: str) -> np.ndarray:
        """Logits (L, H, W)."""
        with np.load(self._path(index)) as stored:
            if str(stored["name"]) != name:
                raise ValueError(
                    f"{self._path(index)} has logits of image {stored['name']} and not of {name}: give another folder"
                )
            logits: np.ndarray = stored["logits"]
        return logits

    def _path(self, index: int) -> Path:
        return self.folder / f"{index:06d}.npz"

    def _replace(self, path: Path, content: bytes) -> None:
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(content)
        temporary.replace(path)


def converted(name: str, logits: np.ndarray, dtype: type[np.floating]) -> np.ndarray:
    """The logits of an image in another type; refuses those that are not finite in it."""
    with np.errstate(over="ignore"):
        kept = logits.astype(dtype)
    if not np.isfinite(kept).all():
        raise ValueError(
            f"logits of image {name} reach {np.abs(logits).max():.3g}, which is not finite in {kept.dtype}: check the "
            "network, or keep them in float32 with kept_logits.half false"
        )
    return kept


def fingerprint(network: nn.Module) -> str:
    """A digest of the structure and of all values of a network."""
    digest = hashlib.sha256(repr(network).encode())
    for name, value in [*network.named_parameters(), *network.named_buffers()]:
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
