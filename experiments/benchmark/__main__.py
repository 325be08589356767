"""python -m experiments.benchmark: measures, and writes results.json, results.md and growth.png."""

import argparse
import json
import os
import platform
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from experiments.benchmark import throughput, work
from experiments.benchmark.cases import cases, profiled
from experiments.benchmark.growth import SERIES, TRAINING, in_a_process
from experiments.benchmark.losses import SIZES, loss_cases
from experiments.benchmark.measure import interleaved, profile, summary
from experiments.benchmark.report import markdown, plot

PACKAGES = ("torch", "triton", "numpy", "numba", "pydensecrf2", "entmax", "warpconvnet", "monai")


def machine() -> dict[str, str]:
    """What was measured with."""
    found = {"GPU": _gpu(), "CPU": _processor(), "cores": str(os.cpu_count()), "threads": str(torch.get_num_threads())}
    found["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "not set")
    found["Python"] = platform.python_version()
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _gpu() -> str:
    device = work.DEVICE.type
    return "none" if device == "cpu" else str(getattr(torch, device).get_device_name())


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main(
    output: Path,
    height: int,
    width: int,
    labels: int,
    repetitions: int,
    growth: bool,
    resume: bool = False,
    images: int = 100,
) -> dict[str, Any]:
    """Measures everything; what is already measured is on the disk after each step."""
    output.mkdir(parents=True, exist_ok=True)
    measured: dict[str, Any] = {"machine": machine(), "size": f"{height} x {width}, {labels} labels", "cases": {}}
    if resume:
        measured = json.loads((output / "results.json").read_text())

    def save() -> None:
        (output / "results.json").write_text(json.dumps(measured, indent=1))

    for case in chain(cases(height, width, labels), loss_cases(**SIZES)):
        if case.name in measured["cases"]:
            continue
        seconds = interleaved(case.contestants, repetitions)
        measured["cases"][case.name] = {"seconds": seconds, "operations": dict(case.operations)}
        medians = ", ".join(f"{name} {summary(times)['median']:.1f} ms" for name, times in seconds.items())
        print(f"{case.name}: {medians}", flush=True)
        save()
    if images and not measured.get("throughput"):
        cores = os.cpu_count() or 1
        seconds = throughput.in_a_process(
            height=height, width=width, labels=labels, count=images, cores=cores, repetitions=min(repetitions, 3)
        )
        measured["throughput"] = {f"{images} images on {cores} cores": seconds}
        save()
    measured["profiles"] = {name: profile(task) for name, task in profiled(height, width, labels)}
    save()
    if growth:
        measured["growth"] = {series: {"dense": [], "free": []} for series in SERIES}
        for series, points in SERIES.items():
            for kind in ("dense", "free"):
                for sizes in points:
                    result = {**sizes, **in_a_process(kind, **sizes)}
                    measured["growth"][series][kind].append(result)
                    print(f"{kind} by {series}: {result}", flush=True)
                    save()
        measured["training"] = {}
        for name, sizes in TRAINING.items():
            for kind in ("train", "train, save_memory"):
                measured["training"][f"{name}, {kind}"] = in_a_process(kind, repetitions=1, **sizes)
                save()
        size = f"{SIZES['batch']} x {SIZES['height']} x {SIZES['width']}, {SIZES['labels']} labels"
        for kind in ("energy loss", "window loss"):
            measured["training"][f"{size}, {kind}"] = in_a_process(kind, repetitions=1, **SIZES)
            save()
        plot(measured, output / "growth.png")
    (output / "results.md").write_text(markdown(measured))
    print(markdown(measured))
    return measured


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("outputs/benchmark"))
    parser.add_argument("--height", type=int, default=375)
    parser.add_argument("--width", type=int, default=500)
    parser.add_argument("--labels", type=int, default=21)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--no-growth", dest="growth", action="store_false", help="only the cases")
    parser.add_argument("--resume", action="store_true", help="keep the cases that results.json in the output has")
    parser.add_argument("--images", type=int, default=100, help="how many to refine at a stretch; 0 for none")
    arguments = parser.parse_args()
    main(**vars(arguments))
