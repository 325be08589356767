"""What is compared with what, and what is to be reached."""

from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from crfgrad.energy import labels_last
from crfgrad.geometry import gaussian_taps
from crfgrad.lattice import build_lattice
from crfgrad.operators import SpatialFilter
from crfgrad.ops.taps import filter_matrices
from experiments.benchmark import work
from experiments.benchmark.measure import Task

SIGMAS = ((80.0, 13.0), (67.0, 3.0))
SETTINGS = ((80, 13, 10), (67, 3, 4), (50, 5, 10), (83, 5, 3), (121, 5, 4), (23, 7, 20))
"""Widths and compatibilities of bilateral kernels in public repositories."""
OURS, TORCH, DROP_IN, PEER = "crfgrad", "crfgrad, plain torch", "crfgrad.pydensecrf", "pydensecrf2"


class Case(NamedTuple):
    """Contestants that do the same work, each a task; and the operations of a task, where they can be counted."""

    name: str
    contestants: dict[str, Task]
    operations: Mapping[str, float] = MappingProxyType({})


class Goal(NamedTuple):
    """How many times as fast one contestant is to be as another one; of one case or of two of one run."""

    what: str
    fast: tuple[str, str]
    slow: tuple[str, str]
    least: float


def cases(height: int, width: int, labels: int) -> Iterator[Case]:
    """All cases, for a photograph of this size."""
    pixels = work.photograph(height, width)
    image, logits = work.tensors(height, width, labels)
    probabilities = work.softmax(work.scores(pixels, labels))
    batch = torch.from_numpy(probabilities)[None].to(image.device)
    for sigma in SIGMAS:
        at = f" at ({sigma[0]:g}, {sigma[1]:g})"
        with_63 = work.without_gradients(work.lattice_with_neighbours, image, sigma)
        yield Case("lattice, 63 neighbours" + at, {OURS: with_63, TORCH: work.in_torch(with_63)})
        gaussian = work.without_gradients(work.gaussian_filter(image, sigma).matmul, labels_last(batch))
        contestants = {OURS: gaussian, TORCH: work.in_torch(gaussian)}
        if image.device.type == "cuda":
            if work.peer("warpconvnet") is not None:
                contestants["WarpConvNet"] = work.warpconvnet_filter(image, labels_last(batch), sigma)
            if work.peer("monai") is not None:
                contestants["MONAI, with its lattice"] = work.monai_filter(image, labels_last(batch), sigma)
        yield Case("Gaussian bilateral filter" + at, contestants)
        dense = work.dense_crf(sigma)
        forward = work.without_gradients(dense, batch, image)
        contestants = {OURS: forward, TORCH: work.in_torch(forward)}
        if work.peer("pydensecrf") is not None:
            contestants[PEER] = work.pydensecrf_task(probabilities, pixels, sigma)
        yield Case("dense mean field, forward" + at, contestants)
        yield Case("dense mean field, forward and backward" + at, {OURS: work.both_ways(dense, batch, image)})
        crf = work.free_crf(labels, sigma)
        yield Case("CRF-Grad, forward" + at, {OURS: work.without_gradients(crf, logits, image)})
        yield Case("CRF-Grad, forward and backward" + at, {OURS: work.both_ways(crf, logits, image)})
        yield _products(image, logits, sigma, at)
    yield from _settings(pixels, labels)
    contestants = {OURS: work.projection(logits), TORCH: work.in_torch(work.projection(logits))}
    if work.peer("entmax") is not None:
        contestants["entmax"] = work.sparsemax(logits)
    yield Case("simplex projection, forward and backward", contestants)


def _settings(pixels: np.ndarray, labels: int) -> Iterator[Case]:
    """One image by the settings of others, from the array to the labels; their package knows one thread."""
    for setting, count in [*((setting, labels) for setting in SETTINGS), ((50, 5, 10), 2), ((50, 5, 10), 81)]:
        probabilities = work.softmax(work.scores(pixels, count))
        given = probabilities, pixels, setting
        crf = work.dense_crf(setting, work.MORE_ITERATIONS)
        ours = partial(crf, probabilities, pixels)
        drop_in = work.pydensecrf_task(*given, DROP_IN, work.MORE_ITERATIONS)
        contestants: dict[str, Task] = {}
        for threads in (1, 2):
            contestants[_on(OURS, threads)] = work.on_threads(threads, ours)
            contestants[_on(DROP_IN, threads)] = work.on_threads(threads, drop_in)
        if work.peer("pydensecrf") is not None:
            contestants[PEER] = work.pydensecrf_task(*given, iterations=work.MORE_ITERATIONS)
        yield Case(_setting_name(setting, count), contestants)


def _on(name: str, threads: int) -> str:
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def _setting_name(setting: tuple[int, ...], labels: int) -> str:
    return f"dense CRF {setting}, {labels} labels, {work.MORE_ITERATIONS} iterations"


def profiled(height: int, width: int, labels: int) -> Iterator[tuple[str, Task]]:
    """What to look into more closely."""
    image, logits = work.tensors(height, width, labels)
    for sigma in SIGMAS:
        at = f" at ({sigma[0]:g}, {sigma[1]:g})"
        yield "dense mean field, forward" + at, work.without_gradients(work.dense_crf(sigma), logits.softmax(1), image)
        yield "CRF-Grad, forward and backward" + at, work.both_ways(work.free_crf(labels, sigma), logits, image)


def goals(labels: int) -> list[Goal]:
    """What is to be reached, as ratios within one run."""
    wanted = []
    for at, least in ((" at (80, 13)", 2.5), (" at (67, 3)", 2.0)):
        forward = "dense mean field, forward" + at
        wanted.append(Goal(f"{forward}: pydensecrf2 / ours", (forward, OURS), (forward, PEER), least))
        for name in ("dense mean field", "CRF-Grad"):
            one, both = f"{name}, forward{at}", f"{name}, forward and backward{at}"
            wanted.append(Goal(f"{name}{at}: forward / (forward and backward)", (both, OURS), (one, OURS), 1 / 2.5))
    for setting in SETTINGS:
        name = _setting_name(setting, labels)
        for threads in (1, 2):
            least = 2.0 if setting[1] == 3 else 2.5
            what = f"{name}, {threads} threads: pydensecrf2 / crfgrad.pydensecrf"
            wanted.append(Goal(what, (name, _on(DROP_IN, threads)), (name, PEER), least))
    projection = "simplex projection, forward and backward"
    wanted.append(Goal(f"{projection}: entmax / ours", (projection, OURS), (projection, "entmax"), 5.0))
    return wanted


RATES = {"free 9 x 9 filters": 0.6, "free lattice filters": 0.25}
"""Part of a plain matrix product's operations per second that is to be reached, at (80, 13)."""


def _products(image: Tensor, logits: Tensor, sigma: tuple[float, float], at: str) -> Case:
    """Operations per second of the free filters beside those of a plain matrix product.

    Counted as if each tap were multiplied; by spectra, the 9 x 9 filters need fewer.
    """
    labels = logits.shape[1]
    q = labels_last(logits.softmax(1))
    spatial = SpatialFilter(torch.randn(labels, labels, 9, 9, device=q.device), symmetric=False)
    lattice = build_lattice(gaussian_taps(5, 1)[0] * work.features(image, sigma))
    neighbours = lattice.neighbours(radius=1)
    vertex_values, matrices = (
        lattice.splat(q.flatten(0, -2)),
        torch.randn(len(neighbours), labels, labels, device=q.device),
    )
    links = float((neighbours < len(lattice.keys)).sum())
    square = torch.randn(1024, 1024, device=q.device)
    return Case(
        "operations per second" + at,
        {
            "matrix product": work.without_gradients(torch.mm, square, square),
            "free 9 x 9 filters": work.without_gradients(spatial.matmul, q),
            "free lattice filters": work.without_gradients(filter_matrices, vertex_values, matrices, neighbours),
        },
        {
            "matrix product": 2.0 * 1024**3,
            "free 9 x 9 filters": 2.0 * 81 * labels**2 * q[..., 0].numel(),
            "free lattice filters": 2.0 * links * labels**2,
        },
    )
