"""How time and memory grow with pixels, labels and images; each point in a process of its own."""

import json
import statistics
import subprocess
import sys
from typing import Any

import torch

from experiments.benchmark import work
from experiments.benchmark.losses import energy_loss, window_loss
from experiments.benchmark.measure import Task, interleaved, peak_memory

SIGMA = (80.0, 13.0)
PIXELS = [{"height": height, "width": 4 * height // 3, "labels": 21} for height in (150, 300, 600, 1225)]
LABELS = [{"height": 240, "width": 320, "labels": labels} for labels in (2, 4, 8, 16, 32, 64)]
BATCH = [{"height": 240, "width": 320, "labels": 21, "batch": batch} for batch in (1, 2, 4, 8)]
SERIES = {"pixels": PIXELS, "labels": LABELS, "images": BATCH}
TRAINING = {
    "375 x 500, 21 labels": {"height": 375, "width": 500, "labels": 21},
    "375 x 500, 21 labels, T = 20": {"height": 375, "width": 500, "labels": 21, "iterations": 20},
    "1024 x 2048, 19 labels": {"height": 1024, "width": 2048, "labels": 19},
}


def size(series: str, point: dict[str, int]) -> int:
    """Where a point lies on the axis of its series."""
    batch = point.get("batch", 1)
    return {"pixels": point["height"] * point["width"], "labels": point["labels"], "images": batch}[series]


def task(kind: str, height: int, width: int, labels: int, batch: int = 1, iterations: int = work.ITERATIONS) -> Task:
    """Inference of a "dense" or a "free" CRF, or "train": forward and backward of the free one, or of a loss."""
    image, logits = work.tensors(height, width, labels, batch)
    if kind == "energy loss":
        return energy_loss(image, logits)
    if kind == "window loss":
        return window_loss(image, logits)
    if kind == "dense":
        return work.without_gradients(work.dense_crf(SIGMA), logits.softmax(1), image)
    if kind == "free":
        return work.without_gradients(work.free_crf(labels, SIGMA).eval(), logits, image)
    crf = work.free_crf(labels, SIGMA, save_memory=kind == "train, save_memory")
    crf.solver.iterations = iterations
    return work.both_ways(crf, logits, image)


def point(kind: str, repetitions: int = 3, **sizes: int) -> dict[str, float]:
    """Seconds of a task, and how many MB its memory rises by."""
    task(kind, height=30, width=40, labels=3)()  # loads the kernels
    measured = task(kind, **sizes)
    memory = peak_memory(measured)
    seconds = interleaved({kind: measured}, repetitions, warm_up=0)[kind]
    return {"seconds": statistics.median(seconds), "memory": memory}


def in_a_process(kind: str, **sizes: int) -> dict[str, float]:
    """The same, measured in a fresh process, whose memory holds nothing else."""
    request = json.dumps({"kind": kind, "threads": torch.get_num_threads(), **sizes})
    command = [sys.executable, "-m", "experiments.benchmark.growth", request]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    answer: dict[str, float] = json.loads(printed.splitlines()[-1])
    return answer


def answer(request: dict[str, Any]) -> None:
    """What a fresh process does."""
    torch.set_num_threads(request.pop("threads"))
    print(json.dumps(point(**request)))


if __name__ == "__main__":
    answer(json.loads(sys.argv[1]))
