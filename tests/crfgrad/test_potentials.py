"""Each potential: against O(N^2) sums over pairs, its gradients, its initial values."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.func import functional_call

from crfgrad import (
    BilateralPotential,
    Energy,
    GaussianBilateralPotential,
    GaussianSpatialPotential,
    Operator,
    PairwisePotential,
    SpatialPotential,
    UnaryPotential,
    round_labels,
)
from crfgrad.geometry import gaussian_taps, tap_offsets
from crfgrad.ops import spatial
from tests.crfgrad.fields import (
    LABELS,
    SIZES,
    message,
    random_image,
    random_q,
    randomise,
    small_bilateral,
    small_spatial,
)
from tests.crfgrad.oracles import (
    apply_matrix,
    lattice_matrix,
    operator_matrix,
    pairwise_energy,
    spatial_matrix,
    without_self,
)


class PotentialTester:
    """What holds for every potential; a subclass names it and its dense matrix."""

    build: ClassVar[Callable[..., PairwisePotential]]
    channels: ClassVar[int] = 3
    sizes: ClassVar[tuple[int, ...]] = SIZES[2]
    few: ClassVar[tuple[int, ...]] = (2, 3)
    """For what takes long."""
    spacing: ClassVar[Sequence[float] | None] = None

    def bind(self, potential: PairwisePotential, image: Tensor) -> Operator:
        return potential.bind(image, None, self.spacing)

    def image(self, batch: int = 1) -> Tensor:
        return random_image(batch, self.channels, self.sizes)

    def q(self, batch: int = 1, labels: int = LABELS) -> Tensor:
        return random_q(batch, labels, self.sizes)

    def matrix(self, potential: PairwisePotential, image: Tensor) -> Tensor:
        """K of one image as (N, L, N, L), built pair by pair."""
        raise NotImplementedError

    @pytest.mark.parametrize("symmetric", [True, False])
    def test_message_energy_and_gradient_are_sums_over_pairs(self, symmetric: bool) -> None:
        potential = randomise(self.build(LABELS, symmetric=symmetric))
        image, q, unary = self.image(), self.q(), torch.randn(1, LABELS, *self.sizes, dtype=torch.float64)
        matrix = self.matrix(potential, image)
        energy = Energy(unary, [self.bind(potential, image)])
        assert energy.symmetric is symmetric
        assert torch.allclose(energy.pairwise(q), apply_matrix(matrix, q), atol=1e-12)
        assert torch.allclose(energy.gradient(q), unary + apply_matrix(matrix, q), atol=1e-12)
        assert torch.allclose(energy(q), (unary * q).sum() + pairwise_energy(matrix, q), atol=1e-12)
        transposed = matrix.permute(2, 3, 0, 1)
        assert torch.allclose(energy.pairwise(q, transposed=True), apply_matrix(transposed, q), atol=1e-12)
        both = (matrix + transposed) / 2
        assert torch.allclose(energy.derivative(q), unary + apply_matrix(both, q), atol=1e-12)

    @pytest.mark.parametrize("symmetric", [True, False])
    def test_symmetry_and_no_self_interaction(self, symmetric: bool) -> None:
        potential = randomise(self.build(LABELS, symmetric=symmetric))
        matrix = operator_matrix(self.bind(potential, self.image()), (LABELS, *self.sizes))
        assert matrix.diagonal(dim1=0, dim2=2).abs().max() < 1e-14
        assert torch.allclose(matrix, matrix.permute(2, 3, 0, 1), atol=1e-12) is symmetric

    @pytest.mark.parametrize("symmetric", [True, False])
    def test_the_transpose_is_an_operator_too(self, symmetric: bool) -> None:
        operator = self.bind(randomise(self.build(LABELS, symmetric=symmetric)), self.image())
        assert operator.symmetric is symmetric
        assert operator.excludes_self
        shape = (LABELS, *self.sizes)
        matrix = operator_matrix(operator, shape)
        transposed = operator.transpose()
        assert torch.allclose(operator_matrix(transposed, shape), matrix.permute(2, 3, 0, 1), rtol=0, atol=1e-12)
        assert torch.allclose(operator_matrix(transposed.transpose(), shape), matrix, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("symmetric", [True, False])
    def test_gradients(self, symmetric: bool) -> None:
        potential = randomise(self.build(2, symmetric=symmetric))
        image, q = (
            random_image(1, self.channels, self.few).requires_grad_(),
            random_q(labels=2, sizes=self.few).requires_grad_(),
        )
        names = [name for name, _ in potential.named_parameters()]

        bind = self.bind

        class Bound(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.potential = potential

            def forward(self, q: Tensor, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
                energy = Energy(torch.zeros_like(q), [bind(self.potential, image)])
                return energy.pairwise(q), energy.pairwise(q, transposed=True), energy(q)

        def apply(q: Tensor, image: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            values = {f"potential.{name}": value for name, value in zip(names, parameters, strict=True)}
            return functional_call(Bound(), values, (q, image))

        parameters = [parameter.detach().clone().requires_grad_() for parameter in potential.parameters()]
        assert gradcheck(apply, (q, image, *parameters), atol=1e-7)  # gradients of filters are small

    def test_a_batch_is_its_images(self) -> None:
        potential = randomise(self.build(LABELS)).float()
        image, q = self.image(batch=3).float(), self.q(batch=3).float()
        single = [message(self.bind(potential, image[i : i + 1]), q[i : i + 1]) for i in range(3)]
        assert torch.allclose(message(self.bind(potential, image), q), torch.cat(single), atol=1e-6)

    def test_works_in_inference_mode(self) -> None:
        potential = randomise(self.build(2, symmetric=False))
        with torch.inference_mode():
            energy = Energy(torch.zeros(1, 2, *self.sizes, dtype=torch.float64), [self.bind(potential, self.image())])
            q = self.q(labels=2)
            assert energy.of_labels(round_labels(energy, q)) <= energy(q)

    def test_refuses_a_single_label(self) -> None:
        with pytest.raises(ValueError, match="num_classes must be a whole number, 2 or more"):
            self.build(1)

    def test_refuses_half_a_pixel(self) -> None:
        with pytest.raises(ValueError, match="radius must be a whole number, 1 or more"):
            self.build(2, radius=0.5)


class SpatialTester(PotentialTester):
    """Filters as spectra and as convolutions."""

    @pytest.fixture(autouse=True, params=["spectra", "convolution"])
    def _way(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spatial, "by_spectra", lambda kernel: request.param == "spectra")


class TestSpatial(SpatialTester):
    build = small_spatial

    def matrix(self, potential: PairwisePotential, image: Tensor) -> Tensor:
        assert isinstance(potential, SpatialPotential)
        return spatial_matrix(potential.kernel(), image.shape[2:], side=potential.stride)

    def test_all_entries_but_the_centre_act(self) -> None:
        kernel = randomise(self.build(LABELS)).kernel()[0, 1]
        centre = tuple(size // 2 for size in kernel.shape)
        assert kernel[centre] == 0
        assert (kernel == 0).sum() == 1


class TestSpatialOnBlocks(TestSpatial):
    build = partial(SpatialPotential, radius=1, stride=2)


class TestGaussianSpatial(SpatialTester):
    build = partial(GaussianSpatialPotential, radius=2, sigma=1.3)

    def matrix(self, potential: PairwisePotential, image: Tensor) -> Tensor:
        assert isinstance(potential, GaussianSpatialPotential)
        mu = potential.compatibility
        mu = (mu + mu.T) / 2 if potential.symmetric else mu
        reach, steps = torch.arange(-2, 3).double(), self.spacing or [1.0] * len(self.sizes)
        squared = sum(
            (step * one) ** 2
            for step, one in zip(steps, torch.meshgrid(*[reach] * len(steps), indexing="ij"), strict=True)
        )
        gaussian = torch.where(squared > 0, torch.exp(-squared / (2 * potential.sigma**2)), 0)
        kernel = torch.einsum("lm,...->lm...", mu, gaussian / gaussian.sum())
        return spatial_matrix(kernel, image.shape[2:], side=potential.stride)


class TestGaussianSpatialOnBlocks(TestGaussianSpatial):
    build = partial(GaussianSpatialPotential, radius=2, sigma=1.3, stride=2)


class LatticeTester(PotentialTester):
    """Free filters on a lattice."""

    def matrix(self, potential: PairwisePotential, image: Tensor) -> Tensor:
        assert isinstance(potential, BilateralPotential)
        return self.dense(potential.radius, potential.kernel(), image, potential.widths())

    def dense(self, radius: int, kernel: Tensor, image: Tensor, widths: Tensor) -> Tensor:
        """D^-1/2 (S^T F S) D^-1/2 without its diagonal, from Adams' construction."""
        _, channels, *sizes = image.shape
        offsets = tap_offsets(len(sizes) + channels, radius)
        scale, taps = gaussian_taps(len(sizes) + channels, radius)
        steps = self.spacing or [1.0] * len(sizes)
        along = [step * torch.arange(size).double() for step, size in zip(steps, sizes, strict=True)]
        positions = torch.stack(torch.meshgrid(*along, indexing="ij")[::-1])  # x, y, ...
        features = torch.cat([positions, image[0]]).flatten(1) * scale / widths[:, None]
        gaussian = torch.tensor(taps).double()[:, None, None]  # float32, as the potential keeps it
        norm = lattice_matrix(features.detach(), offsets, gaussian)[:, 0, :, 0].sum(1).rsqrt()
        dense = lattice_matrix(features.detach(), offsets, kernel)
        return without_self(norm[:, None, None, None] * dense * norm[None, None, :, None])


class GaussianLatticeTester(LatticeTester):
    """A Gaussian on a lattice."""

    def matrix(self, potential: PairwisePotential, image: Tensor) -> Tensor:
        assert isinstance(potential, GaussianBilateralPotential)
        mu = potential.compatibility
        mu = (mu + mu.T) / 2 if potential.symmetric else mu
        kernel = potential.gaussian[:, None, None] * mu
        return self.dense(potential.radius, kernel, image, potential.widths())


class TestBilateral(LatticeTester):
    build = small_bilateral

    def test_self_interaction_can_stay(self) -> None:
        image = random_image()
        with_self = self.build(2, exclude_self=False).double().bind(image)
        without = self.build(2).double().bind(image)
        assert (with_self.excludes_self, without.excludes_self) == (False, True)
        matrix = operator_matrix(with_self, (2, *SIZES[2]))
        assert matrix.diagonal(dim1=0, dim2=2).abs().max() > 0.1
        assert torch.allclose(without_self(matrix), operator_matrix(without, (2, *SIZES[2])), atol=1e-12)

    @pytest.mark.parametrize("channels", [0, 1, 2, 4])
    def test_any_number_of_channels(self, channels: int) -> None:
        potential = randomise(self.build(2, image_channels=channels))
        image, q = random_image(channels=channels or 3), random_q(labels=2)
        matrix = self.matrix(potential, image[:, :channels])
        assert torch.allclose(message(potential.bind(image), q), apply_matrix(matrix, q), atol=1e-12)

    def test_a_constant_image_and_a_single_pixel(self) -> None:
        potential = randomise(self.build(2))
        image, q = torch.zeros(1, 3, *SIZES[2], dtype=torch.float64), random_q(labels=2)
        matrix = self.matrix(potential, image)
        assert torch.allclose(message(potential.bind(image), q), apply_matrix(matrix, q), atol=1e-12)
        assert message(potential.bind(image[..., :1, :1]), q[..., :1, :1]).abs().max() < 1e-12

    def test_larger_radius(self) -> None:
        potential = randomise(self.build(2, image_channels=1, radius=2))
        image, q = random_image(channels=1), random_q(labels=2)
        matrix = self.matrix(potential, image)
        assert torch.allclose(message(potential.bind(image), q), apply_matrix(matrix, q), atol=1e-12)

    def test_a_width_for_each_channel(self) -> None:
        potential = self.build(2, sigma_xy=(3.0, 4.0), sigma_value=[5.0, 10.0, 20.0])
        assert potential.widths().tolist() == pytest.approx([3.0, 4.0, 5.0, 10.0, 20.0])
        with pytest.raises(ValueError, match="sigma_value has 2 numbers for 3 channels"):
            self.build(2, sigma_value=[5.0, 10.0])

    def test_refuses_an_image_with_other_channels(self) -> None:
        with pytest.raises(ValueError, match="image_channels=4"):
            self.build(2).double().bind(random_image(channels=4))

    def test_message_does_not_grow_with_the_image(self) -> None:
        for size in (8, 16, 32):
            operator = self.build(2, sigma_xy=100.0).bind(torch.full((1, 3, size, size), 100.0))
            q = torch.stack([torch.zeros(size, size), torch.ones(size, size)])[None]
            assert float(message(operator, q)[0, 0].mean().detach()) == pytest.approx(3.0, rel=0.1)


class TestGaussianBilateral(GaussianLatticeTester, TestBilateral):
    build = partial(GaussianBilateralPotential, sigma_xy=3.0, sigma_value=20.0)


def test_free_filters_start_as_the_gaussian_ones() -> None:
    image, q = random_image(), random_q()
    free, gaussian = BilateralPotential(LABELS).double(), GaussianBilateralPotential(LABELS).double()
    assert torch.allclose(message(free.bind(image), q), message(gaussian.bind(image), q), atol=1e-6)
    assert not SpatialPotential(LABELS).filters.any()
    assert SpatialPotential(LABELS).filters.shape == (LABELS, LABELS, 9, 9)
    assert BilateralPotential(LABELS).filters.shape == (63, LABELS, LABELS)
    assert not BilateralPotential(LABELS).filters.diagonal(dim1=1, dim2=2).any()


def test_filters_are_in_units_of_the_message() -> None:
    """When all entries of the parameter move by 1, what a pixel receives moves by about 1."""
    image, q = torch.full((1, 3, 24, 24), 100.0), torch.full((1, 2, 24, 24), 0.5)
    for potential in (SpatialPotential(2), BilateralPotential(2, sigma_xy=4.0)):
        before = message(potential.bind(image), q)
        with torch.no_grad():
            potential.filters += 1
        change = (message(potential.bind(image), q) - before)[:, :, 8:-8, 8:-8]
        assert float(change.mean().detach()) == pytest.approx(1.0, rel=0.3)
        assert torch.allclose(potential.kernel()[..., 0], potential.filters[..., 0] / potential.unit)


@pytest.mark.parametrize("build", [SpatialPotential, BilateralPotential])
def test_reads_filters_that_were_saved_without_a_unit(build: type[SpatialPotential | BilateralPotential]) -> None:
    saved = randomise(build(LABELS, symmetric=False))
    state = saved.state_dict()
    state["weight"] = state.pop("filters") / saved.unit  # where the kernel itself was the parameter
    read = build(LABELS, symmetric=False).double()
    read.load_state_dict(state)
    assert torch.allclose(read.kernel(), saved.kernel(), rtol=0, atol=1e-12)
    assert "weight" not in read.state_dict()
    read.load_state_dict(saved.state_dict())  # and what is saved now comes back as it is
    assert torch.equal(read.filters, saved.filters)


def test_total_energy_is_the_sum_of_all_terms() -> None:
    image, q, logits = random_image(), random_q(), torch.randn(1, LABELS, *SIZES[2], dtype=torch.float64)
    spatial, bilateral = randomise(small_spatial(LABELS)), randomise(small_bilateral(LABELS))
    matrix = TestSpatial().matrix(spatial, image) + TestBilateral().matrix(bilateral, image)
    psi = -0.5 * torch.log(logits.softmax(1) + 1e-6)
    energy = Energy(UnaryPotential().double()(logits), [spatial.bind(image), bilateral.bind(image)])
    assert torch.allclose(energy(q), (psi * q).sum() + pairwise_energy(matrix, q), atol=1e-12)
    assert torch.allclose(energy.gradient(q), psi + apply_matrix(matrix, q), atol=1e-12)
    labels = torch.randint(LABELS, (1, *SIZES[2]))
    corner = torch.nn.functional.one_hot(labels, LABELS).movedim(-1, 1).double()
    assert torch.allclose(energy.of_labels(labels), (psi * corner).sum() + pairwise_energy(matrix, corner), atol=1e-12)


def test_tiny_and_huge_widths_stay_finite() -> None:
    q = random_q().float()
    for sigma in (0.01, 1e3):
        spatial = GaussianSpatialPotential(LABELS, sigma=sigma)
        bilateral = GaussianBilateralPotential(LABELS, sigma_xy=sigma, sigma_value=20 * sigma)
        for potential in (spatial, bilateral):
            assert torch.isfinite(message(potential.bind(random_image().float()), q)).all()


class TestUnary:
    def test_formula_and_stability(self) -> None:
        logits = torch.tensor([[2.0, -1.0, 0.5]], dtype=torch.float64)[:, :, None, None]
        expected = -0.5 * torch.log(logits.softmax(1) + 1e-6)
        assert torch.allclose(UnaryPotential().double()(logits), expected)
        extreme = torch.tensor([[500.0, -500.0]])[:, :, None, None].requires_grad_()
        cost = UnaryPotential(unary_weight=1.0, eps=1e-30)(extreme)
        assert cost.flatten().tolist() == pytest.approx([0.0, 69.0776], abs=1e-3)
        assert torch.isfinite(torch.autograd.grad(cost.sum(), extreme)[0]).all()

    def test_gradients(self) -> None:
        unary = UnaryPotential().double()
        logits = torch.randn(1, 3, 2, 2, dtype=torch.float64, requires_grad=True)

        def apply(logits: Tensor, weight: Tensor) -> Tensor:
            return functional_call(unary, {"largest_cost": weight * unary.unit}, (logits,))

        assert gradcheck(apply, (logits, unary.unary_weight.detach().requires_grad_()))

    def test_the_parameter_is_the_cost_of_an_excluded_label(self) -> None:
        unary = UnaryPotential(unary_weight=0.7, eps=1e-4)
        assert float(unary.unary_weight.detach()) == pytest.approx(0.7)
        sure = torch.tensor([100.0, 0.0]).reshape(1, 2, 1, 1)
        assert float(unary(sure)[0, 1].detach()) == pytest.approx(float(unary.largest_cost.detach()))
        assert float(unary.largest_cost.detach()) == pytest.approx(-0.7 * math.log(1e-4))

    def test_reads_what_was_saved_as_its_weight(self) -> None:
        unary = UnaryPotential()
        unary.load_state_dict({"unary_weight": torch.tensor(0.3)})
        assert float(unary.unary_weight.detach()) == pytest.approx(0.3)
        assert set(unary.state_dict()) == {"largest_cost"}

    def test_refuses_eps_zero(self) -> None:
        with pytest.raises(ValueError, match="eps must be positive"):
            UnaryPotential(eps=0.0)
