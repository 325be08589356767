"""The work that is timed: a photograph, scores for it, and what each contestant does with them."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from crfgrad import CRF, BilateralPotential, DenseCRF, SpatialPotential, project_simplex, use_backend
from crfgrad.features import positions_and_colours
from crfgrad.lattice import Lattice, build_lattice
from crfgrad.operators import LatticeBlur, Operator
from experiments.benchmark.measure import Task

ITERATIONS, MORE_ITERATIONS = 5, 10
_FOUND = torch.accelerator.current_accelerator(check_available=True)
DEVICE = _FOUND if _FOUND is not None and _FOUND.type in ("cuda", "xpu") else torch.device("cpu")
"""Where the work is done: on a GPU, if torch finds one."""
SPATIAL = {"sxy": 3.0, "compat": 3.0}
BILATERAL_COMPAT = 10.0


class Setting(NamedTuple):
    """Of the bilateral kernel of a dense CRF."""

    sxy: float
    srgb: float
    compat: float = BILATERAL_COMPAT


def photograph(height: int, width: int) -> np.ndarray:
    """A photograph that scikit-learn ships, resized: (H, W, 3) uint8."""
    from PIL import Image
    from sklearn.datasets import load_sample_image

    return np.array(Image.fromarray(load_sample_image("china.jpg")).resize((width, height), Image.Resampling.LANCZOS))


def scores(image: np.ndarray, labels: int, seed: int = 0) -> np.ndarray:
    """Logits of a network that knows colours and is often wrong: (L, H, W) float32."""
    generator = np.random.default_rng(seed)
    centres = generator.permutation(image.reshape(-1, 3))[:labels].astype(np.float32)
    distance = np.linalg.norm(image[None].astype(np.float32) - centres[:, None, None], axis=-1)
    return (-distance / 15 + generator.normal(0, 1, distance.shape)).astype(np.float32)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities (L, H, W)."""
    exponential = np.exp(logits - logits.max(0))
    return np.ascontiguousarray(exponential / exponential.sum(0))


def tensors(height: int, width: int, labels: int, batch: int = 1) -> tuple[Tensor, Tensor]:
    """The photograph (B, 3, H, W) and logits (B, L, H, W)."""
    pixels = photograph(height, width)
    image = torch.from_numpy(pixels).movedim(-1, 0).float().expand(batch, -1, -1, -1)
    logits = torch.stack([torch.from_numpy(scores(pixels, labels, seed)) for seed in range(batch)])
    return image.contiguous().to(DEVICE), logits.to(DEVICE)


def features(image: Tensor, sigma: tuple[float, float]) -> Tensor:
    """Position and colour in units of their widths: (B, H, W, 5)."""
    return positions_and_colours(image) / torch.tensor([sigma[0]] * 2 + [sigma[1]] * 3, device=image.device)


def dense_crf(setting: tuple[float, ...], iterations: int = ITERATIONS) -> DenseCRF:
    """Our dense CRF with the parameters of the benchmark."""
    return DenseCRF(SPATIAL["sxy"], SPATIAL["compat"], *Setting(*setting), iterations=iterations).to(DEVICE)


def free_crf(labels: int, sigma: tuple[float, float], **options: Any) -> CRF:
    """Our CRF with free 9 x 9 filters and free filters on the lattice."""
    bilateral = partial(BilateralPotential, sigma_xy=sigma[0], sigma_value=sigma[1])
    return CRF(labels, [SpatialPotential, bilateral], **options).to(DEVICE)


def both_ways(module: Callable[..., Tensor], logits: Tensor, *inputs: Tensor) -> Task:
    """Forward and backward: gradients of the logits and of all parameters."""
    leaf = logits.clone().requires_grad_()
    cotangent = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0)).to(logits.device)

    def task() -> None:
        leaf.grad = None
        module(leaf, *inputs).backward(cotangent)

    return task


def without_gradients(function: Callable[..., Any], *inputs: Any) -> Task:
    """Forward alone."""

    def task() -> None:
        with torch.no_grad():
            function(*inputs)

    return task


def in_torch(task: Task) -> Task:
    """The same by plain torch, without compiled kernels."""

    def reference() -> None:
        with use_backend("torch"):
            task()

    return reference


def peer(name: str) -> ModuleType | None:
    """A package to compare with, if it is installed."""
    try:
        return import_module(name)
    except ImportError:
        return None


def pydensecrf_task(
    probabilities: np.ndarray,
    pixels: np.ndarray,
    setting: tuple[float, ...],
    package: str = "pydensecrf",
    iterations: int = ITERATIONS,
) -> Callable[[], np.ndarray]:
    """The same dense CRF by pydensecrf, or by ours of that interface: probabilities of each label."""
    module = import_module(f"{package}.densecrf")
    labels, height, width = probabilities.shape
    unary = np.ascontiguousarray(-np.log(np.maximum(probabilities, 1e-5)).reshape(labels, -1))
    bilateral = Setting(*setting)

    def task() -> np.ndarray:
        crf = module.DenseCRF2D(width, height, labels)
        crf.setUnaryEnergy(unary)
        crf.addPairwiseGaussian(sxy=SPATIAL["sxy"], compat=SPATIAL["compat"])
        crf.addPairwiseBilateral(sxy=bilateral.sxy, srgb=bilateral.srgb, rgbim=pixels, compat=bilateral.compat)
        return np.array(crf.inference(iterations)).reshape(labels, height, width)

    return task


def on_threads(count: int, task: Task) -> Task:
    """The same with another number of torch's threads."""

    def changed() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        task()
        torch.set_num_threads(before)

    return changed


def lattice_with_neighbours(image: Tensor, sigma: tuple[float, float]) -> tuple[Lattice, Tensor]:
    """Builds a lattice and finds the 63 neighbours of its vertices."""
    lattice = build_lattice(features(image, sigma))
    return lattice, lattice.neighbours(radius=1)


def gaussian_filter(image: Tensor, sigma: tuple[float, float]) -> Operator:
    """The Gaussian bilateral filter, prepared."""
    lattice = build_lattice(features(image, sigma))
    return LatticeBlur(lattice, lattice, lattice.axes())


def warpconvnet_filter(image: Tensor, values: Tensor, sigma: tuple[float, float]) -> Task:
    """The same by WarpConvNet, prepared."""
    networks = import_module("warpconvnet.nn")
    prepared = networks.BilateralPermutohedralFilterCached(sigma_xyz=sigma[0], sigma_feat=sigma[1]).to(DEVICE)
    pixels = positions_and_colours(image).flatten(0, -2)  # (N, 5)
    prepared.build_lattice(pixels[:, :2].contiguous(), pixels[:, 2:].contiguous())
    rows = values.flatten(0, -2)
    return without_gradients(prepared, rows)


def monai_filter(image: Tensor, values: Tensor, sigma: tuple[float, float]) -> Task:
    """The same by MONAI, which builds its lattice at each call and takes 16 channels at most."""
    layer = import_module("monai.networks.layers").PHLFilter
    guide = features(image, sigma).movedim(-1, 1).contiguous()  # (B, 5, H, W)
    parts = [part.contiguous() for part in values.movedim(-1, 1).split(16, dim=1)]
    return without_gradients(lambda: [layer.apply(part, guide) for part in parts])


def projection(logits: Tensor) -> Task:
    """Projects the labels of each pixel onto the simplex, and back-propagates."""
    rows = logits.movedim(1, -1).reshape(-1, logits.shape[1]).contiguous()
    return both_ways(partial(project_simplex, dim=1), rows)


def sparsemax(logits: Tensor) -> Task:
    """The same by entmax."""
    rows = logits.movedim(1, -1).reshape(-1, logits.shape[1]).contiguous()
    return both_ways(partial(import_module("entmax").sparsemax, dim=1), rows)
