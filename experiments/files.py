"""Files that are there whole or not at all, so that a killed process leaves nothing half written; times to read."""

import json
import math
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Writes to a file beside it first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text)
    beside.replace(path)


def write_json(path: Path, content: Any) -> None:
    """The same for JSON; numbers that are none become null."""
    write_text(path, json.dumps(plain(content), indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The content of a file, None if there is no such file."""
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise SystemExit(f"{path} is no JSON ({error}): delete it, and what it is about is computed again") from None


def plain(content: Any) -> Any:
    """What JSON can hold, as it comes back from a file."""
    if isinstance(content, dict):
        return {str(key): plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain(value) for value in content]
    if isinstance(content, str | int | None):
        return content
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    return str(content)  # dates in YAML


def duration(seconds: float) -> str:
    """A time to read."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
