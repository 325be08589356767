"""python -m experiments.benchmark.computed: what a training step of the CRF must move and compute, at the least.

Nothing here is measured: bytes and operations follow from shapes, and times from these and what the makers of GPUs
say of them. A kernel reads each of its tensors once at best, and writes its result.
"""

import argparse
from typing import NamedTuple

import torch

from crfgrad.geometry import gaussian_taps
from crfgrad.lattice import build_lattice
from experiments.benchmark import work

SIGMA = (40.0, 10.0)
GPUS = {"A100 (40 GB)": (1.555e12, 19.5e12), "H100 (SXM)": (3.35e12, 66.9e12)}
"""Bytes and, outside of tensor cores, operations in float32 per second."""
TAPS, AXES, SETS, CORNERS = 63, 5, 32, 6
PAIRS = 1 + CORNERS * (CORNERS - 1) // 2


class Sizes(NamedTuple):
    """Of a batch: pixels, vertices, links between neighbouring vertices, labels, and iterations T."""

    pixels: int
    vertices: int
    links: int
    labels: int
    iterations: int = 5


class Kernel(NamedTuple):
    """Calls in one step, and bytes and operations of a call."""

    name: str
    calls: int
    bytes: float
    operations: float

    def seconds(self, gpu: str) -> float:
        """Of all calls, at the least."""
        memory, arithmetic = GPUS[gpu]
        return self.calls * max(self.bytes / memory, self.operations / arithmetic)


def sizes(height: int, width: int, labels: int, batch: int = 1) -> Sizes:
    """Those of a photograph, as many times as the batch is large."""
    features = work.features(work.tensors(height, width, 2)[0], SIGMA)
    lattice = build_lattice(gaussian_taps(AXES, 1)[0] * features)
    links = int((lattice.neighbours(1) < len(lattice.keys)).sum())
    return Sizes(batch * height * width, batch * len(lattice.keys), batch * links, labels)


def kernels(of: Sizes) -> list[Kernel]:
    """All kernels of a training step, forward and backward."""
    n, v, links, labels, times = of
    corners, field, values, square = CORNERS * n, 4 * n * labels, 4 * v * labels, 2 * labels**2
    around, pairs = 4 * TAPS * v, 12 * PAIRS * n  # neighbours; coefficients and sets
    products = links * square
    return [
        Kernel("lattice: cells, keys, sort, numbers", 1, 4 * AXES * n + corners * (4 * 8 + 16) + 12 * v, 0),
        Kernel("neighbours", 1, 8 * v + around, 0),
        Kernel("splat", 2 * times, field + 12 * corners + 4 * v + values, 2 * corners * labels),
        Kernel("filter on vertices", 2 * times, 2 * values + around, products),
        Kernel(
            "slice, own part and what is added",
            2 * times,
            values + 8 * corners + 3.5 * field + pairs,  # two fields are added forward, and none backward
            2 * corners * labels + n * PAIRS * square,
        ),
        Kernel("gradient of the filters", times, 2 * values + around, products),
        Kernel("gradient of the own part", times, 2 * field + pairs, n * PAIRS * square),
        Kernel("step and projection", times, 3 * field, 0),
        Kernel("their gradients", times, 4 * field, 0),
        Kernel("costs, softmax and their gradients", 1, 2 * field + 3 * field + 2 * field + 3 * field, 0),
        Kernel("9 x 9 filters, both ways (cuDNN)", 3 * times, 2 * field, 81 * n * square),
    ]


def table(of: Sizes) -> str:
    """All kernels, and their sum, in Markdown."""
    found = kernels(of)
    lines = [
        f"Computed, not measured: {of.pixels} pixels, {of.vertices} vertices, {of.links} links, {of.labels} labels, "
        f"T = {of.iterations}; a training step, forward and backward.",
        "",
        f"| Kernel | calls | MB each | GFLOP each | {' | '.join(f'{gpu}, ms in all, at least' for gpu in GPUS)} |",
        f"| {' | '.join('---' for _ in range(4 + len(GPUS)))} |",
    ]
    for one in found:
        times = " | ".join(f"{1e3 * one.seconds(gpu):.2f}" for gpu in GPUS)
        lines.append(f"| {one.name} | {one.calls} | {one.bytes / 1e6:.0f} | {one.operations / 1e9:.1f} | {times} |")
    total = " | ".join(f"{1e3 * sum(one.seconds(gpu) for one in found):.2f}" for gpu in GPUS)
    return "\n".join([*lines, f"| all | {sum(one.calls for one in found)} | | | {total} |"])


def memory(of: Sizes) -> float:
    """Bytes that are kept from the forward for the backward pass, and those of the largest moment of the latter."""
    field, values = 4 * of.pixels * of.labels, 4 * of.vertices * of.labels
    lattice = of.pixels * (16 * CORNERS + 8 * AXES + 12 * PAIRS + 16) + of.vertices * (12 + 4 * TAPS)
    each = field + 2 * values  # q; what is splatted, and filtered
    return lattice + 4 * field + of.iterations * each + 4 * field + 2 * values


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--height", type=int, default=375)
    parser.add_argument("--width", type=int, default=500)
    parser.add_argument("--labels", type=int, default=21)
    chosen = parser.parse_args()
    with torch.no_grad():
        print(table(sizes(**vars(chosen))))
        print("\nMemory of a training step, computed, not measured:\n\n| Images | GB |\n| --- | --- |")
        for images, height, width, labels in ((8, 512, 512, 21), (2, 1024, 2048, 19)):
            needed = memory(sizes(height, width, labels, images)) / 1e9
            print(f"| {images} of {height} x {width}, {labels} labels | {needed:.1f} |")
