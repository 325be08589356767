"""Compiling kernels, and sharing their rows among threads.

The threads are a pool of our own and not those of numba, whose thread layers either crash when two
Python threads use them at once or hang in a forked process.
"""

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numba
import torch


def kernel(function: Callable[..., Any]) -> Any:
    """Compiles a kernel; sums may be reordered, NaN and infinity keep their meaning."""
    return _compiled(function, {"contract", "reassoc", "nsz"})


def exact(function: Callable[..., Any]) -> Any:
    """Compiles a kernel that must round as torch does."""
    return _compiled(function, set())


def _compiled(function: Callable[..., Any], fastmath: set[str]) -> Any:
    # by numpy's rules, for a division that may raise an exception is no vector's
    dispatcher = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=fastmath)(function)
    if dispatcher.stats.cache_path is not None:
        _discard_stale(dispatcher.stats.cache_path)
    return dispatcher


@lru_cache
def _discard_stale(folder: str) -> None:
    """Deletes code that was compiled from other sources: numba looks at the file of a kernel, not at what it calls."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    stamp = Path(folder) / "sources.sha256"
    if stamp.is_file() and stamp.read_text() == digest:
        return
    for path in Path(folder).glob("*.nb[ci]"):
        path.unlink(missing_ok=True)
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(digest)


_pool: ThreadPoolExecutor | None = None


def _forget_pool() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):  # where there is one: threads do not survive a fork
    os.register_at_fork(after_in_child=_forget_pool)


def ranges(size: int, grain: int) -> list[tuple[int, int]]:
    """Splits rows 0 to ``size`` among torch's number of threads, each part at least ``grain`` long."""
    parts = max(1, min(torch.get_num_threads(), size // grain))
    return [(size * part // parts, size * (part + 1) // parts) for part in range(parts)]


def run(function: Callable[..., Any], size: int, *arguments: Any, grain: int = 1024) -> list[Any]:
    """Calls ``function(*arguments, start, stop)`` for parts of the rows 0 to ``size``, at the same time."""
    return share(lambda start, stop: function(*arguments, start, stop), ranges(size, grain))


def share(task: Callable[[int, int], Any], parts: list[tuple[int, int]]) -> list[Any]:
    """Results of a task for each (start, stop), the first of them in this thread."""
    global _pool
    if len(parts) > 1 and _pool is None:
        _pool = ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="crfgrad")
    later = [_pool.submit(task, *part) for part in parts[1:]] if _pool is not None else []
    return [task(*parts[0]), *(future.result() for future in later)]
