"""Several images at a time, each by one thread of a process of its own: the best throughput of a folder.

On two cores, two images at a time finish twice as early as one after the other on two threads. Processes rather than
threads, since what Python itself does between kernels holds its lock.
"""

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import numpy as np
import torch

from crfgrad.cli.errors import CommandError
from crfgrad.dense_crf import DenseCRF

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
Item = TypeVar("Item")
Result = TypeVar("Result")


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def checked_jobs(jobs: int | None) -> int:
    """The number of images at a time, or a sentence if that is no number of images."""
    if jobs is not None and jobs < 1:
        raise CommandError(f"--jobs must be 1 or more, got {jobs}")
    return jobs or processors()


def each(
    function: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> Iterator[tuple[Item, Result | Exception]]:
    """Items with what the function returns or raises, in the order in which they are ready."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    _keep_memory()
    try:
        if min(jobs, len(items)) > 1:
            yield from _each_in_pool(function, items, jobs)
        else:
            for item in items:
                yield item, _caught(function, item)
    finally:
        torch.set_num_threads(threads)


def _each_in_pool(
    function: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> Iterator[tuple[Item, Result | Exception]]:
    # a fork starts at once, with all that is imported and compiled by then; elsewhere it is not safe
    forked = sys.platform == "linux"
    if forked:
        DenseCRF(iterations=1)(np.full((2, 2, 2), 0.5, dtype=np.float32), np.zeros((2, 2, 3), dtype=np.uint8))
    context = multiprocessing.get_context("fork" if forked else "spawn")
    with ProcessPoolExecutor(min(jobs, len(items)), context, _start) as pool:
        futures = {pool.submit(_caught, function, item): item for item in items}
        try:
            for future in as_completed(futures):
                result = future.result()
                yield futures.pop(future), result
        except BrokenProcessPool:
            unfinished = [str(item) for future, item in futures.items() if not future.done() or future.exception()]
            # they are taken in their order, so that those at work were the first
            raise CommandError(
                f"a process of {jobs} was ended from outside, perhaps since the memory was full, at work on "
                f"{' or '.join(unfinished[:jobs])}: give fewer --jobs; the same command goes on from here"
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _caught(function: Callable[[Item], Result], item: Item) -> Result | Exception:
    try:
        return function(item)
    except Exception as error:  # any file can be broken in any way: it is named, and the rest goes on
        return error


def _start() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends the work
    torch.set_num_threads(1)
    _keep_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _keep_memory() -> None:
    """Keeps what is freed for the next image: to give arrays back and fetch them anew takes a fifth of the time."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most that glibc takes
        libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def _end_with_parent() -> None:
    """Or a killed command would leave processes that wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
