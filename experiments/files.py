"""Files that are there whole or not at all, so that a killed process leaves nothing half written; locks; times."""

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any


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


def check_arguments(path: Path, arguments: Sequence[str], results: str) -> None:
    """Results of other arguments are no use: refuses them, or notes the arguments of new ones."""
    if read_json(path) not in (None, list(arguments)):
        raise SystemExit(f"{path.parent} has {results} for other arguments ({path}): give another --output")
    write_json(path, list(arguments))


def try_lock(path: Path) -> IO[str] | None:
    """A file that this process alone has, until it is closed or the process ends; None if another one has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Waits until no other process has the file, and has it meanwhile."""
    file = try_lock(path)
    if file is None:
        print(f"another process is at work in {path.parent}: waiting for it", flush=True)
        file = path.open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
    with file:
        yield


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
