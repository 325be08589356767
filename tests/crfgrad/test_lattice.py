"""The lattice: against Adams' construction in dense matrices, its gradients, its bookkeeping."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from crfgrad import CRF, GaussianBilateralPotential, PermutohedralLattice
from crfgrad.geometry import embedding_matrix, subset_taps, tap_offsets
from crfgrad.ops.taps import opposite_taps
from experiments.scene import make_scene
from tests.crfgrad.fields import message
from tests.crfgrad.oracles import lattice_matrix

CASES = [(1, 1), (1, 3), (2, 1), (2, 2), (3, 1), (3, 2), (5, 1), (6, 1)]


def random_features(*shape: int, spread: float = 1.5, seed: int = 0) -> Tensor:
    return spread * torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def dense_apply(matrix: Tensor, values: Tensor) -> Tensor:
    return torch.einsum("iljm,jm->il", matrix, values[0].T).T[None]


@pytest.mark.parametrize(("dimension", "radius"), CASES)
def test_taps(dimension: int, radius: int) -> None:
    offsets = tap_offsets(dimension, radius)
    assert len(offsets) == (radius + 1) ** (dimension + 1) - radius ** (dimension + 1)
    assert len({tuple(offset) for offset in offsets.tolist()}) == len(offsets)
    assert not offsets[0].any()
    assert torch.equal(opposite_taps(offsets), -offsets)


@pytest.mark.parametrize(("dimension", "radius"), CASES)
def test_full_filter_is_the_dense_matrix(dimension: int, radius: int) -> None:
    features = random_features(1, dimension, 12)
    lattice = PermutohedralLattice(features, radius)
    weights = torch.randn(lattice.taps, 2, 3, dtype=torch.float64)
    values = torch.randn(1, 3, 12, dtype=torch.float64)
    matrix = lattice_matrix(features[0], tap_offsets(dimension, radius), weights)
    filtered = lattice.slice(lattice.filter(lattice.splat(values), weights))
    assert torch.allclose(filtered, dense_apply(matrix, values), atol=1e-12)
    own = torch.einsum("ilim,im->li", matrix, values[0].T)[None]
    assert torch.allclose(lattice.own_part(values, weights), own, atol=1e-12)


@pytest.mark.parametrize(("dimension", "radius"), CASES)
def test_number_taps_act_as_multiples_of_the_identity(dimension: int, radius: int) -> None:
    lattice = PermutohedralLattice(random_features(2, dimension, 3, 5), radius)
    numbers = torch.randn(lattice.taps, dtype=torch.float64)
    matrices = numbers[:, None, None] * torch.eye(2, dtype=torch.float64)
    values = torch.randn(2, 2, 3, 5, dtype=torch.float64)
    splatted = lattice.splat(values)
    assert torch.allclose(lattice.filter(splatted, numbers), lattice.filter(splatted, matrices), atol=1e-12)
    assert torch.allclose(lattice.own_part(values, numbers), lattice.own_part(values, matrices), atol=1e-12)


def test_one_pixel_keeps_its_mass() -> None:
    lattice = PermutohedralLattice(random_features(3, 5, 1))
    ones = torch.ones(3, 1, 1, dtype=torch.float64)
    assert lattice.vertices == 3 * 6  # three images of one pixel each, which never meet
    assert torch.allclose(lattice.splat(ones).sum(), torch.tensor(3.0, dtype=torch.float64))
    assert torch.allclose(lattice.tensors.barycentric.sum(1), torch.ones(3, dtype=torch.float64))
    assert lattice.tensors.barycentric.min() >= 0


def test_splat_and_slice_are_adjoint() -> None:
    lattice = PermutohedralLattice(random_features(2, 4, 20))
    values = torch.randn(2, 3, 20, dtype=torch.float64)
    vertex_values = torch.randn(lattice.vertices, 3, dtype=torch.float64)
    left = (lattice.splat(values) * vertex_values).sum()
    assert torch.allclose(left, (values * lattice.slice(vertex_values)).sum())


def test_missing_vertices_contribute_zero() -> None:
    # two points, so far apart that no tap connects their simplices
    features = torch.tensor([[[0.3, 50.3], [0.4, 50.2]]], dtype=torch.float64)
    lattice = PermutohedralLattice(features)
    weights = torch.ones(lattice.taps, dtype=torch.float64)
    values = torch.tensor([[[1.0, 0.0]]], dtype=torch.float64)
    filtered = lattice.slice(lattice.filter(lattice.splat(values), weights))
    assert filtered[0, 0, 1] == 0
    assert torch.allclose(filtered, lattice.own_part(values, weights))
    assert lattice.gaussian(values)[0, 0, 1] == 0


@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_gradients(dimension: int) -> None:
    features = random_features(2, dimension, 4, seed=1).requires_grad_()
    taps = len(tap_offsets(dimension, 1))
    values = torch.randn(2, 2, 4, dtype=torch.float64, requires_grad=True)
    matrices = torch.randn(taps, 3, 2, dtype=torch.float64, requires_grad=True)
    numbers = torch.randn(taps, dtype=torch.float64, requires_grad=True)

    def full(features: Tensor, values: Tensor, weights: Tensor) -> Tensor:
        lattice = PermutohedralLattice(features)
        filtered = lattice.slice(lattice.filter(lattice.splat(values), weights))
        return filtered - lattice.own_part(values, weights)

    def gaussian(features: Tensor, values: Tensor) -> Tensor:
        return PermutohedralLattice(features).gaussian(values)

    assert gradcheck(full, (features, values, matrices), fast_mode=dimension == 5)
    assert gradcheck(full, (features, values, numbers))
    assert gradcheck(gaussian, (features, values))
    assert gradgradcheck(full, (features, values, numbers), fast_mode=True)
    assert gradgradcheck(full, (features, values, matrices), fast_mode=True)


def test_gradient_reaches_features_after_a_call_without_gradients() -> None:
    lattice = PermutohedralLattice(random_features(1, 2, 5).requires_grad_())
    values, weights = torch.ones(1, 1, 5, dtype=torch.float64), torch.ones(7, dtype=torch.float64)
    with torch.no_grad():
        lattice.own_part(values, weights)
    assert lattice.own_part(values, weights).requires_grad


def test_adjoint_of_the_blur() -> None:
    lattice = PermutohedralLattice(random_features(1, 4, 30, spread=3.0))  # sparse: the axes do not commute
    x, y = torch.randn(2, 1, 1, 30, dtype=torch.float64)
    forward, backward = (y * lattice.gaussian(x)).sum(), (x * lattice.gaussian(y, transposed=True)).sum()
    assert torch.allclose(forward, backward)
    assert not torch.allclose(forward, (x * lattice.gaussian(y)).sum())


def gaussian_error(
    image: Tensor, sigma_xy: float, sigma_value: float, radii: tuple[int, ...] = (1,)
) -> dict[str, float]:
    """Relative error of the Gaussian filters against exact sums over all pairs of pixels.

    ``blur`` is the lattice's separable filter, ``radius`` the Gaussian potential. Both are normalised
    as in the potentials; the values are a step, a ramp and noise.
    """
    height, width = image.shape[1:]
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    features = torch.cat([torch.stack([x, y]) / sigma_xy, image / sigma_value]).double()[None]
    noise = torch.rand(height, width, generator=torch.Generator().manual_seed(0))
    values = torch.stack([(image[0] > image[0].median()), x / width, noise]).double()[None]
    values = values - values.mean(dim=(2, 3), keepdim=True)  # or their mean would hide the error
    ones = torch.ones_like(values[:, :1])

    points = features.flatten(2)[0].T  # (N, 5)
    exact = torch.exp(-torch.cdist(points, points).square() / 2)

    def dense(values: Tensor) -> Tensor:
        return (exact @ values.flatten(2)[0].T).T.reshape(values.shape)

    def normalised(gaussian: Callable[[Tensor], Tensor]) -> Tensor:
        norm = gaussian(ones).rsqrt()
        return norm * gaussian(norm * values)

    def by_potential(radius: int) -> Tensor:
        potential = GaussianBilateralPotential(
            2, sigma_xy, sigma_value, strength=1.0, radius=radius, exclude_self=False
        )
        operator = potential.double().bind(image[None].double())
        pairs = [message(operator, torch.stack([value, 0 * value])[None])[:, 1] for value in values[0]]  # Potts swaps
        return torch.stack(pairs, dim=1).detach()

    reference = normalised(dense)
    results = {"blur": normalised(PermutohedralLattice(features).gaussian)}
    results |= {f"radius {radius}": by_potential(radius) for radius in radii}
    return {name: float((result - reference).norm() / reference.norm()) for name, result in results.items()}


@pytest.mark.parametrize(
    ("sigma_xy", "sigma_value", "bound"), [(40, 10, 0.06), (80, 13, 0.06), (8, 30, 0.06), (67, 3, 0.12)]
)
@pytest.mark.parametrize("source", ["generated", "photograph"])
def test_gaussian_filter_against_the_exact_one(
    source: str, sigma_xy: float, sigma_value: float, bound: float, request: pytest.FixtureRequest
) -> None:
    image = make_scene(60, 80, seed=3)[0] if source == "generated" else request.getfixturevalue("photograph")
    error = gaussian_error(image, sigma_xy, sigma_value)
    print(f"relative error on the {source} image at ({sigma_xy}, {sigma_value}): {error}")
    assert error["blur"] < bound
    assert error["radius 1"] < 0.08


def test_a_larger_radius_is_closer_to_the_gaussian() -> None:
    error = gaussian_error(make_scene(60, 80, seed=3)[0], 40, 10, radii=(1, 2))
    print(error)
    assert error["radius 2"] < 0.8 * error["radius 1"]


def test_batch_and_single_images_agree() -> None:
    features = random_features(3, 5, 6, 7, seed=4).double()
    values = torch.randn(3, 2, 6, 7, dtype=torch.float64)
    weights = torch.randn(63, 2, 2, dtype=torch.float64)

    def apply(features: Tensor, values: Tensor) -> Tensor:
        lattice = PermutohedralLattice(features)
        return lattice.slice(lattice.filter(lattice.splat(values), weights)) + lattice.gaussian(values)

    single = torch.cat([apply(features[i : i + 1], values[i : i + 1]) for i in range(3)])
    # not bit by bit: the order in which a matrix product adds depends on its size and on the processor
    assert torch.allclose(apply(features, values), single, rtol=0, atol=1e-12)


def test_a_translation_by_a_lattice_vector_changes_nothing() -> None:
    features = random_features(1, 2, 30)
    lattice_vectors = torch.linalg.inv(embedding_matrix(2))  # as columns
    shifted = features + 1000 * lattice_vectors[:, :1]
    values = torch.randn(1, 1, 30, dtype=torch.float64)
    expected = PermutohedralLattice(features).gaussian(values)
    assert torch.allclose(PermutohedralLattice(shifted).gaussian(values), expected, atol=1e-9)


def test_refuses_features_that_do_not_fit_the_key() -> None:
    with pytest.raises(ValueError, match="62-bit keys"):
        PermutohedralLattice(1e4 * torch.randn(1, 5, 50))
    with pytest.raises(ValueError, match="62-bit keys"):
        PermutohedralLattice(1e30 * torch.randn(1, 1, 50))
    with pytest.raises(ValueError, match="62-bit keys"):
        PermutohedralLattice(3 * torch.randn(2, 25, 50))


def test_large_features_that_fit_do_not_collide() -> None:
    # isolated points at coordinates up to 1e5: a hash of few bits would merge some of them
    features = 1e5 * torch.rand(1, 3, 5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    lattice = PermutohedralLattice(features)
    assert lattice.vertices == 4 * 5000


@pytest.mark.parametrize("shape", [(0, 5, 4), (1, 0, 4), (1, 5, 0), (5, 4)])
def test_refuses_empty_features(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="not empty"):
        PermutohedralLattice(torch.zeros(shape))


def test_refuses_other_bad_input() -> None:
    lattice = PermutohedralLattice(torch.zeros(1, 2, 3, 4))
    with pytest.raises(ValueError, match=r"built for \(1, C, 3, 4\)"):
        lattice.splat(torch.zeros(1, 5, 4, 3))
    with pytest.raises(ValueError, match="has 7"):
        lattice.filter(torch.zeros(lattice.vertices, 1), torch.zeros(63))
    with pytest.raises(ValueError, match="radius must be 1 or more"):
        PermutohedralLattice(torch.zeros(1, 2, 3), radius=0)
    with pytest.raises(ValueError, match="NaN or infinity"):
        PermutohedralLattice(torch.full((1, 2, 3), torch.nan))


def test_refuses_values_that_do_not_fit() -> None:
    lattice = PermutohedralLattice(torch.randn(1, 2, 30))
    values, vertices = torch.randn(1, 3, 30), torch.randn(lattice.vertices, 3)
    for call in (lattice.slice, lattice.blur, lambda x: lattice.filter(x, torch.randn(7))):
        with pytest.raises(ValueError, match=rf"values of vertices must be \({lattice.vertices}, C\)"):
            call(vertices[:3])
    with pytest.raises(ValueError, match=r"must be \(taps,\) or \(taps, C_out, 3\)"):
        lattice.filter(vertices, torch.randn(7, 3, 4))
    with pytest.raises(ValueError, match=r"must be \(taps,\) or \(taps, C_out, 3\)"):
        lattice.own_part(values, torch.randn(7, 3, 4))
    with pytest.raises(ValueError, match="filters are for 9 taps"):
        lattice.own_part(values, torch.randn(9))
    with pytest.raises(TypeError, match="features must be floating-point"):
        PermutohedralLattice(torch.randint(9, (1, 2, 30)))


def test_the_first_caller_spoils_nothing_for_others() -> None:
    """Tables are kept: neither an inference mode nor a device of the first caller may stay in them."""
    for function in (tap_offsets, subset_taps):
        function.cache_clear()  # type: ignore[attr-defined]
    with torch.inference_mode():
        CRF(2)
    for function in (tap_offsets, subset_taps):
        function.cache_clear()  # type: ignore[attr-defined]
    with torch.device("meta"):
        CRF(2)
    crf = CRF(2)
    crf(torch.randn(1, 2, 4, 5), torch.zeros(1, 3, 4, 5)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in crf.parameters())
