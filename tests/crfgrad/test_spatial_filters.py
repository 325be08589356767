"""Filters over the pixels, by spectra and by convolution: against torch's, with all gradients, and the transpose."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradgradcheck
from torch.nn.functional import conv1d, conv2d, conv3d

from crfgrad.ops import spatial
from crfgrad.ops.spatial import SpatialKernel

CASES = [
    ((50,), (3,)),
    ((300,), (41,)),
    ((200,), (151,)),  # wider than the widest tile that the kernels know
    ((20, 30), (5, 5)),
    ((70, 40), (9, 9)),
    ((20, 30), (13, 13)),
    ((20, 30), (15, 15)),
    ((7, 90), (3, 27)),
    ((33, 20), (29, 29)),
    ((3, 2), (11, 5)),  # wider than the image
    ((1, 1), (9, 9)),
    ((6, 7, 8), (3, 3, 3)),
    ((5, 20, 9), (5, 1, 7)),
    ((4, 5, 6), (7, 15, 3)),
]


@pytest.fixture(params=["spectra", "convolution"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How the filter is applied."""
    monkeypatch.setattr(spatial, "by_spectra", lambda kernel: request.param == "spectra")


def filtered(q: Tensor, kernel: Tensor, transposed: bool = False) -> Tensor:
    return SpatialKernel.of(kernel).apply(q, transposed)


def of_torch(q: Tensor, kernel: Tensor) -> Tensor:
    """The filter by torch, of q with the labels last."""
    groups = q.shape[-1] // kernel.shape[1]
    padding = [size // 2 for size in kernel.shape[2:]]
    convolution = (conv1d, conv2d, conv3d)[kernel.dim() - 3]
    weights = kernel.repeat(groups, *[1] * (kernel.dim() - 1))
    return convolution(q.movedim(-1, 1), weights, padding=padding, groups=groups).movedim(1, -1)


def close(own: Tensor, expected: Tensor, tolerance: float = 1e-12) -> bool:
    """Whether they differ by little, relative to the largest value."""
    return bool((own - expected).abs().max() <= tolerance * expected.abs().max())


def random_case(
    sizes: tuple[int, ...], kernel_size: tuple[int, ...], labels: int, alone: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """A field, a kernel and a cotangent."""
    generator = torch.Generator().manual_seed(sum(kernel_size))
    matrices = (1, 1) if alone else (labels, labels)
    shapes = (2, *sizes, labels), (*matrices, *kernel_size), (2, *sizes, labels)
    q, kernel, weights = (torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes)
    return q.requires_grad_(), kernel.requires_grad_(), weights.requires_grad_()


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("labels", [1, 18])
@pytest.mark.parametrize(("sizes", "kernel_size"), CASES)
def test_filters_and_their_gradients_are_those_of_torch(
    sizes: tuple[int, ...], kernel_size: tuple[int, ...], labels: int, alone: bool
) -> None:
    q, kernel, weights = random_case(sizes, kernel_size, labels, alone)
    outputs = [filtered(q, kernel), of_torch(q, kernel)]
    assert close(*outputs)
    gradients = [torch.autograd.grad((weights * output).sum(), (q, kernel)) for output in outputs]
    assert all(close(own, its) for own, its in zip(*gradients, strict=True))


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(("sizes", "kernel_size"), CASES)
def test_the_transpose_and_its_gradients_are_those_of_torch(
    sizes: tuple[int, ...], kernel_size: tuple[int, ...], alone: bool
) -> None:
    q, kernel, weights = random_case(sizes, kernel_size, 3, alone)
    product = (weights * of_torch(q, kernel)).sum()
    transposed = filtered(weights, kernel, transposed=True)
    (expected,) = torch.autograd.grad(product, q, retain_graph=True)
    assert close(transposed, expected)
    gradients = [torch.autograd.grad(each, (weights, kernel)) for each in ((q * transposed).sum(), product)]
    assert all(close(own, its) for own, its in zip(*gradients, strict=True))


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_gradients_of_gradients(alone: bool, transposed: bool) -> None:
    q, kernel, _ = random_case((3, 4), (3, 5), 2, alone)

    def apply(q: Tensor, kernel: Tensor) -> Tensor:
        return filtered(q, kernel, transposed)

    assert gradgradcheck(apply, (q[:1].detach().requires_grad_(), kernel))


@pytest.mark.usefixtures("_way")
def test_any_layout_in_memory() -> None:
    q, kernel, _ = random_case((20, 30), (9, 9), 5, alone=False)
    scattered = q.movedim(-1, 1).contiguous().movedim(1, -1)
    flipped = kernel.flip(2).transpose(0, 1)
    result = filtered(scattered, flipped)
    assert close(result, of_torch(q, flipped))


@pytest.mark.parametrize("size", [3, 9, 15])
def test_wide_filters_go_by_spectra_and_narrow_ones_do_not(size: int) -> None:
    kernel, q = torch.randn(4, 4, size, size), torch.randn(1, 40, 50, 4)
    assert SpatialKernel.of(kernel).spectral == (size >= 9)
    assert not SpatialKernel.of(kernel.to("meta")).spectral
    assert close(filtered(q, kernel), of_torch(q, kernel), 1e-5)
