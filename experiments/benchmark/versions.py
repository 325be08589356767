"""python -m experiments.benchmark.versions BEFORE: times this version beside another checkout of the project.

BEFORE is a folder with another version, made by `git worktree add BEFORE COMMIT`. Each version runs in a process of
its own, which waits while the other one works, so that all calls are interleaved; pydensecrf2, if it is installed,
takes its turns too. Every number of threads is measured as torch's threads are by default, and with passive ones.
Writes versions.json and versions.md.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import IO, Any, cast

ROOT = Path(__file__).parents[2]
SIGMAS = ((80.0, 13.0), (67.0, 3.0))
PEER = "pydensecrf2"


def serve(size: tuple[int, int, int], threads: int) -> None:
    """Answers each name of a task on the standard input with the seconds of one call."""
    import torch

    from experiments.benchmark import work  # of the version that is served

    torch.set_num_threads(threads)
    height, width, labels = size
    image, logits = work.tensors(height, width, labels)
    pixels = work.photograph(height, width)
    tasks = {}
    for sigma in SIGMAS:
        at = f" at ({sigma[0]:g}, {sigma[1]:g})"
        crf, dense = work.free_crf(labels, sigma), work.dense_crf(sigma)
        tasks["CRF-Grad, forward" + at] = work.without_gradients(crf, logits, image)
        tasks["CRF-Grad, forward and backward" + at] = work.both_ways(crf, logits, image)
        tasks["dense mean field, forward" + at] = work.without_gradients(dense, logits.softmax(1), image)
        if work.peer("pydensecrf") is not None:
            probabilities = work.softmax(work.scores(pixels, labels))
            tasks[PEER + at] = work.pydensecrf_task(probabilities, pixels, sigma)
    tasks["CRF-Grad by plain torch, forward and backward"] = work.in_torch(
        work.both_ways(work.free_crf(labels, SIGMAS[0]), logits, image)
    )
    print(json.dumps(list(tasks)), flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        tasks[line.strip()]()
        print(time.perf_counter() - started, flush=True)


class Version:
    """A version of the project at work in a process of its own."""

    def __init__(self, checkout: Path, size: tuple[int, int, int], threads: int, passive: bool) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
        if passive:
            environment["OMP_WAIT_POLICY"] = "passive"
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE, str(checkout), __file__, json.dumps([size, threads])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.tasks: list[str] = json.loads(self._read())

    def seconds(self, task: str) -> float:
        """Of one call."""
        sender = cast(IO[str], self.process.stdin)
        sender.write(task + "\n")
        sender.flush()
        return float(self._read())

    def close(self) -> None:
        """Ends the process."""
        cast(IO[str], self.process.stdin).close()
        self.process.wait()

    def _read(self) -> str:
        line = cast(IO[str], self.process.stdout).readline()
        if not line:
            raise RuntimeError("a version ended before its time: its error is above")
        return line


CODE = """
import json, runpy, sys
checkout, file, given = sys.argv[1:]
sys.path.insert(0, checkout)
runpy.run_path(file)["serve"](*json.loads(given))
"""


def measure(before: Path, size: tuple[int, int, int], threads: int, passive: bool, repetitions: int) -> dict[str, Any]:
    """Seconds of every call: by task, of this version and of the one before."""
    versions = {"before": Version(before, size, threads, passive), "now": Version(ROOT, size, threads, passive)}
    seconds: dict[str, dict[str, list[float]]] = {}
    for task in versions["now"].tasks:
        runs = {"now": versions["now"]} if task.startswith(PEER) else versions
        seconds[task] = {name: [] for name in runs}
        for repetition in range(repetitions + 1):
            for name, version in runs.items():
                taken = version.seconds(task)
                if repetition:  # the first call is to warm up
                    seconds[task][name].append(taken)
        medians = ", ".join(f"{name} {1e3 * median(times):.0f} ms" for name, times in seconds[task].items())
        print(f"{threads} threads, {'passive' if passive else 'default'}, {task}: {medians}", flush=True)
    for version in versions.values():
        version.close()
    return {"threads": threads, "passive": passive, "seconds": seconds}


def markdown(measured: dict[str, Any]) -> str:
    """The table."""
    lines = ["# This version beside the one before", "", f"{measured['machine']}. {measured['size']}. Milliseconds are"]
    lines += ["medians of interleaved calls; the ratio is the median of those of neighbouring calls.", ""]
    lines += ["| Threads | Work | before | now | times as fast |", "| --- | --- | --- | --- | --- |"]
    for run in measured["runs"]:
        how = f"{run['threads']}{', passive' if run['passive'] else ''}"
        for task, times in run["seconds"].items():
            now = f"{1e3 * median(times['now']):.0f}"
            if task.startswith(PEER):
                ours = run["seconds"][task.replace(PEER, "dense mean field, forward")]["now"]
                ratio = median(peer / our for peer, our in zip(times["now"], ours, strict=True))
                lines.append(f"| {how} | {task} | {now} | | {ratio:.2f} (dense mean field now) |")
                continue
            ratio = median(old / new for old, new in zip(times["before"], times["now"], strict=True))
            lines.append(f"| {how} | {task} | {1e3 * median(times['before']):.0f} | {now} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


def main(before: Path, output: Path, size: tuple[int, int, int], repetitions: int, threads: list[int]) -> None:
    """Measures all, and writes what there is after each run."""
    from experiments.benchmark.__main__ import machine

    output.mkdir(parents=True, exist_ok=True)
    found = " · ".join(f"{key} {value}" for key, value in machine().items() if key != "threads")
    measured: dict[str, Any] = {"machine": found, "size": "{} x {}, {} labels".format(*size), "runs": []}
    for count in threads:
        for passive in (True, False):
            measured["runs"].append(measure(before, size, count, passive, repetitions))
            (output / "versions.json").write_text(json.dumps(measured, indent=1))
            (output / "versions.md").write_text(markdown(measured))
    print(markdown(measured))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("--output", type=Path, default=Path("outputs/benchmark"))
    parser.add_argument("--size", type=int, nargs=3, default=(375, 500, 21), help="height, width and labels")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    main(**vars(parser.parse_args()))
