"""Timing contestants side by side, and the peak memory of a call."""

import cProfile
import pstats
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

Task = Callable[[], Any]


def interleaved(contestants: Mapping[str, Task], repetitions: int, warm_up: int = 1) -> dict[str, list[float]]:
    """Seconds of each call: every contestant once, then every contestant again, and so on.

    What slows the machine for a while then slows all of them, and leaves their ratios alone. Without
    OMP_WAIT_POLICY=passive threads of torch go on spinning after its operations, and take a core from the next
    contestant.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for repetition in range(warm_up + repetitions):
        for name, task in contestants.items():
            synchronise()
            started = time.perf_counter()
            task()
            synchronise()
            if repetition >= warm_up:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def synchronise() -> None:
    """Waits for what a GPU still has to do."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def summary(seconds: list[float]) -> dict[str, float]:
    """Median and quartiles, in milliseconds."""
    low, high = np.quantile(seconds, (0.25, 0.75))
    return {"median": 1e3 * statistics.median(seconds), "low": 1e3 * float(low), "high": 1e3 * float(high)}


def ratio(seconds: list[float], others: list[float]) -> float:
    """Median over the repetitions of how many times as fast as another contestant."""
    return statistics.median(other / own for own, other in zip(seconds, others, strict=True))


def profile(task: Task, most: int = 10) -> list[tuple[str, float]]:
    """Where the time of a task goes on one thread: functions, each without those that it calls, and milliseconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    task()
    profiler = cProfile.Profile()
    profiler.runcall(task)
    torch.set_num_threads(threads)
    rows = pstats.Stats(profiler).stats.items()  # type: ignore[attr-defined]
    spent = sorted(((_function_name(*where), 1e3 * own) for where, (_, _, own, _, _) in rows), key=lambda row: -row[1])
    return spent[:most]


def _function_name(file: str, line: int, function: str) -> str:
    return function if file == "~" else f"{Path(file).stem}.{function}"


def peak_memory(task: Task) -> float:
    """How far memory rises during a task, in MB: that of a GPU if there is one, else Linux knows it."""
    if torch.accelerator.is_available():
        torch.accelerator.reset_peak_memory_stats()
        allocated = torch.accelerator.memory_allocated()
        task()
        return (torch.accelerator.max_memory_allocated() - allocated) / 2**20
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = _status("VmRSS")
    task()
    return (_status("VmHWM") - before) / 1024


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{field}:")))


def fitted_exponent(sizes: list[float], values: list[float]) -> float:
    """The k of values ~ sizes^k, by least squares on logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
