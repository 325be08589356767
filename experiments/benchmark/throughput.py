"""How many images a folder's worth of work takes a second: several at a time, on some cores.

``python -m experiments.benchmark.throughput`` prints the seconds of each contestant for all images. Pools of
processes are made before torch has worked, as programs do that know of forks; starting them is not timed.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from experiments.benchmark import work
from experiments.benchmark.measure import Task, interleaved

FILES = 10
"""Different images, which take turns."""
PROCESSES = "{}, processes"
THREADS = "crfgrad, threads"
PEER = PROCESSES.format("pydensecrf2")


def refine(package: str, file: Path) -> np.ndarray:
    """Labels of one file, by a program for pydensecrf."""
    with np.load(file) as found:
        given = found["probabilities"], found["image"], work.Setting(80, 13, 10), package, work.MORE_ITERATIONS
        return work.pydensecrf_task(*given)().argmax(0).astype(np.uint8)


def refine_in_thread(file: Path) -> np.ndarray:
    """The same by ``DenseCRF``."""
    with np.load(file) as found:
        crf = work.dense_crf(work.Setting(80, 13, 10), iterations=work.MORE_ITERATIONS)
        return crf(found["probabilities"], found["image"]).argmax(0).astype(np.uint8)


def measure(count: int, height: int, width: int, labels: int, cores: int, repetitions: int) -> dict[str, list[float]]:
    """Seconds that each contestant takes for all images."""
    packages = {"crfgrad.pydensecrf": "crfgrad.pydensecrf"}
    if work.peer("pydensecrf") is not None:
        packages["pydensecrf2"] = "pydensecrf"
    with TemporaryDirectory() as folder, ThreadPoolExecutor(cores) as threads:
        pools = {name: multiprocessing.Pool(cores) for name in packages}
        files = [Path(folder) / f"{index}.npz" for index in range(FILES)]
        pixels = work.photograph(height, width)
        for index, file in enumerate(files):
            image = np.roll(pixels, 50 * index, axis=1)
            probabilities = work.softmax(work.scores(image, labels, seed=index))
            np.savez(file, image=image, probabilities=probabilities)
        turns = [files[index % FILES] for index in range(count)]
        tasks: dict[str, Task] = {
            PROCESSES.format(name): partial(pools[name].map, partial(refine, package), turns, chunksize=1)
            for name, package in packages.items()
        }
        tasks[THREADS] = lambda: list(threads.map(refine_in_thread, turns))
        torch.set_num_threads(1)  # each thread of the pool works for itself
        seconds = interleaved(tasks, repetitions)
        for pool in pools.values():
            pool.close()
            pool.join()
    return seconds


def in_a_process(**given: int) -> dict[str, list[float]]:
    """The same in a fresh process, in which torch has not worked yet."""
    command = [sys.executable, "-m", "experiments.benchmark.throughput"]
    command += [f"--{name}={value}" for name, value in given.items()]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds: dict[str, list[float]] = json.loads(printed.splitlines()[-1])
    return seconds


def parsed() -> dict[str, Any]:
    """The arguments of the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--height", type=int, default=375)
    parser.add_argument("--width", type=int, default=500)
    parser.add_argument("--labels", type=int, default=21)
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    parser.add_argument("--repetitions", type=int, default=3)
    return vars(parser.parse_args())


if __name__ == "__main__":
    print(json.dumps(measure(**parsed())))
