"""The dense CRF: against mean field with dense matrices, its kinds of input, its gradients."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from crfgrad import DenseCRF, GaussianTerm, MeanField, PermutohedralLattice, ProjectedGradient, check_values
from crfgrad.gaussian import Normalization, gaussian_kernel
from experiments.scene import make_logits, make_scene


def dense_kernel(features: Tensor, normalization: Normalization = "symmetric") -> Tensor:
    """The kernel of features (1, d, *) as an (N, N) matrix."""
    lattice = PermutohedralLattice(features)
    size = lattice.shape.numel()
    columns = torch.eye(size, dtype=features.dtype).reshape(1, size, *lattice.shape)
    kernel = lattice.gaussian(columns).reshape(size, size).T
    sums = kernel.sum(1)
    dimension = features.shape[1]
    return {
        "none": kernel * 2 ** (dimension + 1) / (1 + 2**-dimension),
        "before": kernel / sums,
        "after": kernel / sums[:, None],
        "symmetric": kernel / (sums.sqrt() * sums.sqrt()[:, None]),
    }[normalization]


def scene(height: int = 12, width: int = 16) -> tuple[Tensor, Tensor]:
    image, labels = make_scene(height, width)
    return make_logits(labels, stride=4).softmax(0), image.round()


@pytest.mark.parametrize("normalization", ["none", "before", "after", "symmetric"])
@pytest.mark.parametrize("kind", ["number", "vector", "matrix"])
def test_is_mean_field_with_dense_matrices(kind: str, normalization: Normalization) -> None:
    probabilities, image = scene()
    raw = 0.05 if normalization == "none" else 1  # those kernels sum to more than 1
    compat = {"number": 4.0, "vector": -torch.rand(4) * 4, "matrix": torch.randn(4, 4)}[kind]
    compat = compat * raw
    crf = DenseCRF(3, 3 * raw, (7, 9), 30, compat, iterations=4, normalization=normalization)
    y, x = torch.meshgrid(torch.arange(12.0), torch.arange(16.0), indexing="ij")
    near = dense_kernel(torch.stack([x / 3, y / 3])[None].double(), normalization)
    alike = dense_kernel(torch.cat([torch.stack([x / 7, y / 9]), image / 30])[None].double(), normalization)
    cost = compat if kind == "matrix" else torch.diag(compat if kind == "vector" else torch.full((4,), -compat))
    unary = -probabilities.flatten(1).clamp_min(1e-5).log().double()  # (L, N)
    q = (-unary).softmax(0)
    for _ in range(4):
        q = (-unary + 3 * raw * q @ near.T - cost.double() @ q @ alike.T).softmax(0)
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


@pytest.mark.parametrize("dimension", [1, 2, 3, 5, 7])
def test_scale_of_the_raw_kernel(dimension: int) -> None:
    points = 2 * torch.randn(1, dimension, 40, dtype=torch.float64)
    q = torch.rand(1, 3, 40, dtype=torch.float64)
    raw = gaussian_kernel(points.mT.contiguous(), "none").matmul(q.mT.contiguous()).mT
    scale = 2 ** (dimension + 1) / (1 + 2**-dimension)
    assert torch.allclose(raw, scale * PermutohedralLattice(points).gaussian(q), rtol=1e-6)


def test_adding_onto_a_field_is_the_sum_with_and_without_gradients() -> None:
    kernel = gaussian_kernel(torch.randn(2, 40, 3))
    q, base = torch.rand(2, 40, 5), torch.randn(2, 40, 5)
    expected = base + kernel.matmul(q)
    assert torch.equal(kernel.add_to([base], q), expected)
    with torch.no_grad():
        assert torch.allclose(kernel.add_to([base], q), expected, atol=1e-6)
        assert torch.allclose(kernel.transpose().add_to([base], q), base + kernel.transpose().matmul(q), atol=1e-6)


def test_points_in_any_space_are_mean_field_with_dense_matrices() -> None:
    unary, points, others = torch.randn(3, 30), torch.randn(30, 7) / 2, torch.randn(30, 1)
    matrix = torch.randn(3, 3)
    terms = [GaussianTerm(points, matrix), GaussianTerm(others, 2, "after")]
    near, far = dense_kernel(points.T[None].double()), dense_kernel(others.T[None].double(), "after")
    q = (-unary.double()).softmax(0)
    for _ in range(5):
        q = (-unary - matrix.double() @ q @ near.T + 2 * q @ far.T).softmax(0)
    assert torch.allclose(DenseCRF()(unary=unary, terms=terms).double(), q, atol=1e-5)
    array = DenseCRF()(unary=unary.numpy(), terms=[term._replace(features=term.features.numpy()) for term in terms])
    assert np.allclose(array, q, atol=1e-5)
    batch = [term._replace(features=torch.stack([term.features] * 2)) for term in terms]
    assert torch.allclose(DenseCRF()(unary=torch.stack([unary, 0 * unary]), terms=batch)[0].double(), q, atol=1e-5)


def test_energies_in_place_of_probabilities_and_terms_beside_an_image() -> None:
    probabilities, image = scene()
    crf = DenseCRF(bilateral_sxy=8, bilateral_compat=2)
    expected = crf(probabilities, image)
    assert torch.allclose(crf(unary=-probabilities.clamp_min(1e-5).log(), image=image), expected, atol=1e-6)
    y, x = torch.meshgrid(torch.arange(12.0), torch.arange(16.0), indexing="ij")
    positions = torch.stack([x / 3, y / 3], dim=-1)
    without = DenseCRF(gaussian_compat=0, bilateral_sxy=8, bilateral_compat=2)
    term = GaussianTerm(positions, 3)
    assert torch.allclose(without(probabilities, image, terms=[term]), expected, atol=1e-6)
    two = without(probabilities[None], image[None], terms=[term._replace(features=positions[None])])
    assert torch.allclose(two[0], expected, atol=1e-6)
    read_only = np.broadcast_to(positions.double().numpy(), positions.shape)
    arrays = without(probabilities.numpy(), image.movedim(0, -1).numpy(), terms=[GaussianTerm(read_only, 3)])
    assert np.allclose(arrays, expected, atol=1e-5)


@pytest.mark.parametrize("solver", [MeanField, ProjectedGradient])
@pytest.mark.parametrize("checked", [True, False])
def test_infinite_energies_exclude_labels(solver: type, checked: bool) -> None:
    probabilities, image = scene()
    unary = -probabilities.log().double()
    unary[1, :6] = torch.inf
    unary.requires_grad_()
    with check_values(checked):
        q = DenseCRF(bilateral_sxy=8, bilateral_compat=2, solver=solver)(unary=unary, image=image.double())
    assert (q[1, :6] == 0).all()
    assert torch.allclose(q.sum(0), torch.ones(12, 16, dtype=torch.float64))
    (q**2).sum().backward()
    assert torch.isfinite(unary.grad).all()


def test_gradient_reaches_energies_and_features() -> None:
    unary, features = torch.randn(3, 6).double(), torch.randn(6, 2).double()
    crf = DenseCRF(iterations=2)
    given = unary.requires_grad_(), features.requires_grad_()
    assert gradcheck(lambda u, f: crf(unary=u, terms=[GaussianTerm(f, 2)]), given)


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
    for compat in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="compat must be finite"):
            DenseCRF(bilateral_compat=compat)(probabilities, image)
    with pytest.raises(ValueError, match="bilateral_srgb must be positive, got 0"):
        DenseCRF(bilateral_srgb=0)
    with pytest.raises(ValueError, match="bilateral_srgb has 2 numbers for 3 channels"):
        DenseCRF(bilateral_srgb=(13, 13))(probabilities, image)
    with pytest.raises(TypeError, match="give either probabilities or unary"):
        DenseCRF()(image=image)
    with pytest.raises(TypeError, match="give an image, or terms"):
        DenseCRF()(probabilities)
    with pytest.raises(ValueError, match=r"probabilities must be \(L, N\) or \(B, L, N\) where there is no image"):
        DenseCRF()(probabilities[None], terms=[GaussianTerm(image, 3)])
    with pytest.raises(ValueError, match=r"features of term 0 have shape \(1, 5, 2\), but must be \(1, 12, 16, d\)"):
        DenseCRF()(probabilities, image, terms=[GaussianTerm(torch.zeros(5, 2), 3)])
    with pytest.raises(TypeError, match="terms must be a list of GaussianTerm"):
        DenseCRF()(probabilities, image, terms=GaussianTerm(image, 3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="all unary energies of 192 pixels are plus infinity"):
        DenseCRF()(unary=probabilities * torch.inf, image=image)
    with pytest.raises(ValueError, match='there is no normalization "both"'):
        DenseCRF(normalization="both")  # type: ignore[arg-type]
