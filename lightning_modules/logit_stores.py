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
        self.logits = {index: logits.astype(dtype) for index, _, logits in computed}

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
    """

    def __init__(self, folder: Path, count: int, pictures: str) -> None:
        self.folder = folder
        self.count = count
        self.pictures = {"count": count, "transforms": pictures}
        self.description = folder / "logits.json"

    def claim(self, source: dict[str, Any]) -> None:
        """Notes what the logits are of; refuses a folder that has others.

        Args:
            source: {"network": its fingerprint}, or {"folds": how many networks have given them}.
        """
        asked = self.pictures | source
        if self.description.is_file():
            found = json.loads(self.description.read_text())
            if found != asked:
                different = ", ".join(key for key in {**found, **asked} if found.get(key) != asked.get(key))
                raise ValueError(
                    f"{self.folder} has logits that differ from those asked for in: {different}; give another folder"
                )
        self.folder.mkdir(parents=True, exist_ok=True)
        self._replace(self.description, json.dumps(asked, indent=1).encode())

    @property
    def out_of_fold(self) -> bool:
        """Whether the folder has logits of networks that have not seen their images."""
        return self.description.is_file() and "folds" in json.loads(self.description.read_text())

    def check_complete(self) -> None:
        """Refuses out-of-fold logits of other pictures, or of a part of them."""
        self.claim({"folds": json.loads(self.description.read_text())["folds"]})
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


def fingerprint(network: nn.Module) -> str:
    """A digest of the structure and of all values of a network."""
    digest = hashlib.sha256(repr(network).encode())
    for name, value in [*network.named_parameters(), *network.named_buffers()]:
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
