"""The dense CRF: against mean field with dense matrices, its kinds of input, its gradients."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from crfgrad import DenseCRF, MeanField, PermutohedralLattice, ProjectedGradient
from experiments.scene import make_logits, make_scene


def dense_kernel(features: Tensor) -> Tensor:
    """D^-1/2 K D^-1/2 as an (N, N) matrix, for features (1, d, H, W)."""
    lattice = PermutohedralLattice(features)
    size = lattice.shape.numel()
    columns = torch.eye(size, dtype=features.dtype).reshape(1, size, *lattice.shape)
    kernel = lattice.gaussian(columns).reshape(size, size).T
    return kernel.sum(1).rsqrt()[:, None] * kernel * kernel.sum(1).rsqrt()


def scene(height: int = 12, width: int = 16) -> tuple[Tensor, Tensor]:
    image, labels = make_scene(height, width)
    return make_logits(labels, stride=4).softmax(0), image.round()


@pytest.mark.parametrize("kind", ["number", "vector", "matrix"])
def test_is_mean_field_with_dense_matrices(kind: str) -> None:
    probabilities, image = scene()
    compat = {"number": 4.0, "vector": -torch.rand(4) * 4, "matrix": torch.randn(4, 4)}[kind]
    crf = DenseCRF(bilateral_sxy=(7, 9), bilateral_srgb=30, bilateral_compat=compat, iterations=4)
    y, x = torch.meshgrid(torch.arange(12.0), torch.arange(16.0), indexing="ij")
    near = dense_kernel(torch.stack([x / 3, y / 3])[None].double())
    alike = dense_kernel(torch.cat([torch.stack([x / 7, y / 9]), image / 30])[None].double())
    cost = {"number": lambda: -4 * torch.eye(4), "vector": lambda: torch.diag(compat), "matrix": lambda: compat}[kind]()
    unary = -probabilities.flatten(1).clamp_min(1e-5).log().double()  # (L, N)
    q = (-unary).softmax(0)
    for _ in range(4):
        q = (-unary + 3 * q @ near.T - cost.double() @ q @ alike.T).softmax(0)
    assert torch.allclose(crf(probabilities, image).double(), q.reshape(4, 12, 16), atol=1e-4)


def test_numpy_torch_single_and_batch_agree() -> None:
    probabilities, image = scene(30, 40)
    crf = DenseCRF(bilateral_sxy=20)
    expected = crf(probabilities, image)
    assert expected.shape == probabilities.shape
    assert (expected.sum(0) - 1).abs().max() < 1e-5
    array = crf(probabilities.numpy(), image.movedim(0, -1).to(torch.uint8).numpy())
    assert isinstance(array, np.ndarray)
    assert np.allclose(array, expected.numpy(), atol=1e-6)
    batch = crf(probabilities.expand(2, -1, -1, -1), image.expand(2, -1, -1, -1))
    assert torch.allclose(batch, expected.expand(2, -1, -1, -1), atol=1e-5)


@pytest.mark.parametrize("solver", [MeanField, ProjectedGradient])
def test_refines_a_picture(solver: type) -> None:
    image, labels = make_scene(90, 120)
    probabilities = make_logits(labels).softmax(0)
    crf = DenseCRF(bilateral_sxy=40, bilateral_compat=3, gaussian_compat=1, solver=solver)
    wrong = (probabilities.argmax(0) != labels).float().mean()
    assert (crf(probabilities, image).argmax(0) != labels).float().mean() < 0.25 * wrong


def test_a_kernel_can_be_left_out() -> None:
    probabilities, image = scene()
    without = DenseCRF(gaussian_compat=0, bilateral_compat=0)(probabilities, image)
    assert torch.allclose(without, probabilities, atol=1e-4)


def test_gradient_reaches_the_probabilities() -> None:
    probabilities, image = scene(4, 4)
    crf = DenseCRF(iterations=2)
    assert gradcheck(lambda p: crf(p, image), probabilities.double().requires_grad_())


def test_bad_input_gets_one_clear_sentence() -> None:
    probabilities, image = scene()
    with pytest.raises(ValueError, match=r"give softmax\(logits\)"):
        DenseCRF()(probabilities.log(), image)
    with pytest.raises(ValueError, match="probabilities are 12 x 16 but the image is 16 x 12"):
        DenseCRF()(probabilities, image.mT)
    with pytest.raises(ValueError, match=r"sum to 0\.5 up to 0\.5, not to 1"):
        DenseCRF()(0.5 * probabilities, image)
    with pytest.raises(TypeError, match="solver must be a class, such as MeanField"):
        DenseCRF(solver=MeanField())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must all be numpy arrays or all be torch"):
        DenseCRF()(probabilities.numpy(), image)
    with pytest.raises(ValueError, match=r"must be \(L, H, W\)"):
        DenseCRF()(probabilities.flatten(1), image)
    with pytest.raises(ValueError, match="looks normalised"):
        DenseCRF()(probabilities, image / 255)
    with pytest.raises(ValueError, match="compat has shape"):
        DenseCRF(gaussian_compat=[1.0, 2.0])(probabilities, image)
    with pytest.raises(ValueError, match="bilateral_srgb has 2 widths for 3 channels"):
        DenseCRF(bilateral_srgb=(13, 13))(probabilities, image)
