"""How far a command is: a bar on a terminal, elsewhere a line now and then."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINES = 10


class Step(Protocol):
    """What to call after each image, with a sentence if it failed."""

    def __call__(self, failure: str | None = None) -> None:
        """One image more."""


@contextmanager
def progress(what: str, total: int) -> Iterator[Step]:
    """Shows how many images of a total are done."""
    console = Console(stderr=True, highlight=False)
    started, done, failed = time.monotonic(), 0, 0

    def step(failure: str | None = None) -> None:
        nonlocal done, failed
        done += 1
        if failure is not None:
            failed += 1
            console.print(failure, style="red", markup=False, soft_wrap=True)
        if console.is_terminal:
            bar.advance(task)
        elif done == total or done * LINES // total > (done - 1) * LINES // total:
            rate = done / max(time.monotonic() - started, 1e-9)
            print(f"{what}: {done} of {total} images, {rate:.3g} per second, {failed} failed", flush=True)

    if not console.is_terminal:
        yield step
        return
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("left")
    with Progress(TextColumn("{task.description}"), *columns, console=console) as bar:
        task = bar.add_task(what, total=total)
        yield step
    sys.stderr.flush()


def duration(seconds: float) -> str:
    """A time to read."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
