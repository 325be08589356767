"""Geometry of the permutohedral lattice in integer coordinates.

The lattice A*_d of Adams et al. (2010) is spanned by d of the d + 1 vectors along which it is
blurred; the last one is minus their sum. In that basis a lattice point is an integer vector a in
Z^d and the Delaunay simplices are those of the Kuhn triangulation: the simplex around a point y
starts at floor(y) and adds the basis vectors in order of decreasing fraction. So embedding is
floor and sort, a vertex is a short integer vector without redundant coordinates, and a neighbour
is that vector plus a constant.
"""

import itertools
import math
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor


def embedding_matrix(dimension: int) -> Tensor:
    """The (d, d) float64 matrix A with y = A f, lattice coordinates of a feature vector f.

    Scaled as in Adams et al.: splat, [1 2 1]/4 along every axis, and slice together have unit
    variance in feature space. Oriented as there too, so that results carry over.
    """
    elevate = torch.zeros(dimension + 1, dimension, dtype=torch.float64, device="cpu")  # whatever the default
    for column in range(dimension):
        length = math.sqrt((column + 1) * (column + 2))
        elevate[: column + 1, column] = 1 / length
        elevate[column + 1, column] = -(column + 1) / length
    return math.sqrt(2 / 3) * (elevate[:-1] - elevate[-1:])


Function = TypeVar("Function", bound=Callable[..., Any])


def kept(function: Function) -> Function:
    """A function of numbers that is called once for each; its tensors serve all callers, on the CPU.

    So they must not be of the inference mode, or of the default device, of the first of them.
    """

    @lru_cache(maxsize=64)
    @wraps(function)
    def call(*arguments: Any) -> Any:
        with torch.inference_mode(False), torch.device("cpu"):
            return function(*arguments)

    return cast(Function, call)


@lru_cache(maxsize=256)
def table(function: Callable[..., Tensor], *arguments: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A function of numbers as a tensor on a device, copied there once: a copy waits for the device."""
    with torch.inference_mode(False), torch.device("cpu"):
        return function(*arguments).to(device, dtype)


def taps_of(dimension: int, radius: int) -> int:
    """How many taps a full filter has: (s+1)^(d+1) - s^(d+1)."""
    return (radius + 1) ** (dimension + 1) - radius ** (dimension + 1)


@kept
def tap_offsets(dimension: int, radius: int) -> Tensor:
    """Offsets of the taps of a full filter, as integer vectors: (taps, d).

    Tap 0 is the centre; taps 2i + 1 and 2i + 2 are opposite to each other.
    """
    steps = itertools.product(range(radius + 1), repeat=dimension + 1)
    offsets = {tuple(n - step[-1] for n in step[:-1]) for step in steps if min(step) == 0}
    zero = (0,) * dimension
    half = sorted((offset for offset in offsets if offset > zero), key=lambda offset: (squared_length(offset), offset))
    ordered = [zero]
    for offset in half:
        ordered += [offset, tuple(-a for a in offset)]
    return torch.tensor(ordered, dtype=torch.int64).reshape(len(ordered), dimension)


@kept
def subset_taps(dimension: int, radius: int) -> Tensor:
    """The taps from a corner of a simplex to a later one, by the set of axes between them as bits: (2^d - 1,)."""
    index = {tuple(offset): tap for tap, offset in enumerate(tap_offsets(dimension, radius).tolist())}
    subsets = range(1, 2**dimension)
    return torch.tensor([index[tuple(subset >> axis & 1 for axis in range(dimension))] for subset in subsets])


def squared_length(offset: tuple[int, ...]) -> float:
    """Squared length of a lattice vector in feature space."""
    return 1.5 * (sum(a * a for a in offset) - sum(offset) ** 2 / (len(offset) + 1))


@kept
def gaussian_taps(dimension: int, radius: int) -> tuple[float, tuple[float, ...]]:
    """A Gaussian as a full filter: the factor to put on the features, and the weight of each tap.

    A filter of few taps is narrower than the Gaussian it samples. Features multiplied by the factor
    make the lattice coarse enough that splat, taps exp(-r^2 / 2) (r: distance of the tap) and slice
    together have unit variance, as splat and slice alone have 1/4 at factor 1.
    """
    squared = [squared_length(tuple(offset)) for offset in tap_offsets(dimension, radius).tolist()]

    def weights(factor: float) -> list[float]:
        return [math.exp(-0.5 * r2 / factor**2) for r2 in squared]

    def variance(factor: float) -> float:
        gauss = weights(factor)
        taps = sum(g * r2 for g, r2 in zip(gauss, squared, strict=True)) / sum(gauss) / dimension
        return (0.25 + taps) / factor**2

    low, high = 0.25, 8.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if variance(middle) > 1 else (low, middle)
    return high, tuple(weights(high))


def axis_offsets(dimension: int) -> Tensor:
    """Steps along the d + 1 axes of the separable blur: (d + 1, d)."""
    return torch.cat([torch.eye(dimension, dtype=torch.int64), -torch.ones(dimension, dtype=torch.int64)[None]])


def embed(points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The simplices around points (N, d), in float64 where the device has it.

    Returns:
        First corners (N, d); the axes in order of decreasing fraction (N, d); and the weights of the d + 1 corners
        (N, d + 1).
    """
    precise = torch.float32 if points.device.type == "mps" else torch.float64
    matrix = table(embedding_matrix, points.shape[1], device=points.device, dtype=precise)
    points = points.to(precise)
    position = points[:, :1] * matrix[:, 0]
    for k in range(1, points.shape[1]):  # one term after the other, so that the kernels round alike
        position = position + points[:, k : k + 1] * matrix[:, k]
    base = position.floor()
    fraction, order = (position - base).sort(dim=1, descending=True, stable=True)
    ends = torch.ones_like(fraction[:, :1])
    return base, order, torch.cat([ends, fraction], 1) - torch.cat([fraction, ends - 1], 1)


def key_strides(largest: list[float], batch: int, radius: int) -> list[int]:
    """Strides that pack coordinates, and then the image, into one integer, with room for neighbours.

    Args:
        largest: Largest value of each coordinate of a first corner, where the smallest is 0.
        batch: Number of images.
        radius: Reach of the filter.
    """
    if not all(math.isfinite(size) for size in largest):
        raise ValueError("features hold NaN or infinity: check the image and the widths they are divided by")
    sizes = [int(size) + 2 + radius for size in largest]
    strides = [1]
    for size in sizes:
        strides.append(strides[-1] * size)
    if strides[-1] * batch >= 2**62:
        raise ValueError(
            f"features span {' x '.join(map(str, sizes))} lattice cells in a batch of {batch}, more than "
            "62-bit keys can tell apart: use larger widths, smaller features or fewer feature channels"
        )
    return strides
