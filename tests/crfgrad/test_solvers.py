"""Each solver: gradients through the unrolled loop, descent, the simplex, its options."""

from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.func import functional_call

from crfgrad import (
    CRF,
    Energy,
    FrankWolfe,
    GaussianBilateralPotential,
    GaussianSpatialPotential,
    MeanField,
    MirrorDescent,
    ProjectedGradient,
    Solver,
    SpatialPotential,
)
from tests.crfgrad.fields import random_image, random_q, randomise, small_bilateral, small_spatial
from tests.crfgrad.oracles import DenseOperator


def dense_energy(seed: int, batch: int = 1, labels: int = 3, height: int = 2, width: int = 3) -> Energy:
    """An energy with a random symmetric K without self-interaction, given as a plain matrix."""
    generator = torch.Generator().manual_seed(seed)
    size = height * width
    matrix = torch.randn(size, labels, size, labels, dtype=torch.float64, generator=generator)
    matrix = (matrix + matrix.permute(2, 3, 0, 1)) * (1 - torch.eye(size, dtype=torch.float64))[:, None, :, None]
    unary = torch.randn(batch, labels, height, width, dtype=torch.float64, generator=generator)
    return Energy(unary, [DenseOperator(matrix)])


class SolverTester:
    """What holds for every solver; a subclass names it."""

    solver: ClassVar[type[Solver]]

    def test_gradients_through_all_iterations(self) -> None:
        energy, q = dense_energy(0), random_q(sizes=(2, 3))
        solver = self.solver(step_size=0.3, learn_step_size=True).double()

        def apply(unary: Tensor, q: Tensor, log_step_size: Tensor) -> Tensor:
            bound = Energy(unary, [energy.operator])
            return functional_call(solver, {"log_step_size": log_step_size}, (bound, q))

        inputs = (energy.unary, q, torch.tensor(-1.0, dtype=torch.float64))
        assert gradcheck(apply, [x.clone().requires_grad_() for x in inputs])

    def test_stays_on_the_simplex_in_evaluation(self) -> None:
        solver = self.solver(iterations=20).eval()
        for seed in range(5):
            energy = dense_energy(seed, batch=4, height=5, width=6)
            single = Energy(energy.unary.float(), [energy.operator])
            for q in solver.trajectory(single, random_q(batch=4, sizes=(5, 6)).float()):
                assert q.min() >= 0
                assert (q.sum(1) - 1).abs().max() < 1e-6

    def test_trajectory_energies_and_result_belong_together(self) -> None:
        energy, q = dense_energy(1, batch=2), random_q(batch=2, sizes=(2, 3))
        solver = self.solver(iterations=3).eval()
        states = list(solver.trajectory(energy, q))
        assert len(states) == 4
        assert torch.equal(states[0], q)
        assert torch.equal(states[-1], solver(energy, q))
        assert torch.equal(solver.energies(energy, q), torch.stack([energy(state) for state in states]))
        assert solver.energies(energy, q).shape == (4, 2)
        assert torch.equal(self.solver(iterations=0)(energy, q), q)

    def test_finite_where_labels_have_probability_zero(self) -> None:
        q = torch.tensor([0.0, 1.0, 0.0]).reshape(1, 3, 1, 1).requires_grad_()
        flip = DenseOperator(0.1 * torch.eye(3).flip(1).reshape(1, 3, 1, 3))
        result = self.solver()(Energy(torch.randn(1, 3, 1, 1), [flip]), q)
        (gradient,) = torch.autograd.grad(result[0, 0].sum(), q)
        assert torch.isfinite(result).all()
        assert torch.isfinite(gradient).all()

    def test_step_size_is_a_parameter_only_if_learned(self) -> None:
        assert not list(self.solver(step_size=0.3).parameters())
        learned = self.solver(step_size=0.3, learn_step_size=True)
        assert float(learned.log_step_size.detach().exp()) == pytest.approx(0.3)
        assert set(learned.state_dict()) == {"log_step_size"}
        for solver in (learned, self.solver()):
            solver.step_size = 0.2
            assert float(torch.as_tensor(solver.step_size).detach()) == pytest.approx(0.2)

    def test_refuses_bad_settings(self) -> None:
        with pytest.raises(ValueError, match="iterations must be a whole number, 0 or more"):
            self.solver(iterations=-1)
        with pytest.raises(ValueError, match="step_size must be positive"):
            self.solver(step_size=0.0)


class TestProjectedGradient(SolverTester):
    solver = ProjectedGradient

    def test_one_step_is_the_formula(self) -> None:
        energy = Energy(torch.tensor([1.0, 0.0, 4.0]).reshape(1, 3, 1, 1), [])
        q = torch.tensor([0.5, 0.3, 0.2]).reshape(1, 3, 1, 1)
        solver = ProjectedGradient(iterations=1, step_size=0.1, leak=0.5)
        # q - 0.1 psi = (0.4, 0.3, -0.2), threshold -0.15
        assert torch.allclose(solver(energy, q).flatten(), torch.tensor([0.55, 0.45, -0.025]))
        assert torch.allclose(solver.eval()(energy, q).flatten(), torch.tensor([0.55, 0.45, 0.0]))

    @pytest.mark.parametrize("leak", [0.0, 0.1, 0.5])
    def test_gradients_with_any_leak(self, leak: float) -> None:
        energy, q = dense_energy(2), random_q(sizes=(2, 3)).requires_grad_()
        assert gradcheck(lambda q: ProjectedGradient(leak=leak)(energy, q), q)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("gaussian", [False, True])
    @pytest.mark.parametrize("seed", range(5))
    def test_energy_falls_at_every_iteration_below_the_step_bound(
        self, seed: int, gaussian: bool, dtype: torch.dtype
    ) -> None:
        torch.manual_seed(seed)
        kinds = [GaussianSpatialPotential, GaussianBilateralPotential] if gaussian else [small_spatial, small_bilateral]
        crf = CRF(3, [randomise(kind(3)) for kind in kinds]).eval()
        logits, image = 2 * torch.randn(6, 3, 7, 9, dtype=dtype), random_image(batch=6, sizes=(7, 9))
        energy = crf.energy(logits, image)
        solver = ProjectedGradient(iterations=30, step_size=1.8 / float(energy.operator_norm().max())).eval()
        energies = solver.energies(energy, crf.initial(logits)).detach()
        rounding = 1e-9 if dtype == torch.float64 else 1e-5 * energies.abs().max()
        assert (energies[1:] <= energies[:-1] + rounding).all()
        assert (energies[-1] < energies[0] - 1e-3).all()

    def test_energy_may_rise_above_the_step_bound(self) -> None:
        energy, q = dense_energy(0), random_q(sizes=(2, 3))
        bound = 2 / float(energy.operator_norm(200))
        energies = ProjectedGradient(iterations=30, step_size=20 * bound).eval().energies(energy, q)
        assert (energies[1:] > energies[:-1] + 1e-6).any()

    def test_refuses_a_bad_leak(self) -> None:
        with pytest.raises(ValueError, match="eval_leak must be between 0 and 1"):
            ProjectedGradient(eval_leak=2.0)


class TestMeanField(SolverTester):
    solver = MeanField

    def test_one_step_is_the_softmax(self) -> None:
        energy, q = dense_energy(3), random_q(sizes=(2, 3))
        expected = (-energy.gradient(q)).softmax(1)
        assert torch.allclose(MeanField(iterations=1)(energy, q), expected)
        assert torch.allclose(FrankWolfe(iterations=1, step_size=1.0, temperature=1.0)(energy, q), expected)

    def test_keeps_small_probabilities(self) -> None:
        energy = Energy(torch.tensor([0.0, 25.0]).reshape(1, 2, 1, 1), [])
        q = MeanField(iterations=1)(energy, torch.tensor([0.7, 0.3]).reshape(1, 2, 1, 1))
        assert float(q[0, 1]) == pytest.approx(1.39e-11, rel=1e-2)

    def test_a_learned_step_beyond_one_stays_on_the_simplex(self) -> None:
        solver = MeanField(learn_step_size=True)
        with torch.no_grad():
            solver.log_step_size += 0.5
            q = solver(dense_energy(3), random_q(sizes=(2, 3)))
        assert q.min() >= 0
        assert torch.allclose(q.sum(1), torch.ones_like(q[:, 0]))


class TestFrankWolfe(SolverTester):
    solver = FrankWolfe

    def test_cold_steps_go_to_the_best_corner(self) -> None:
        energy, q = dense_energy(4), random_q(sizes=(2, 3))
        step = FrankWolfe(iterations=1, step_size=1.0, temperature=1e-4)(energy, q)
        assert torch.equal(step.argmax(1), energy.gradient(q).argmin(1))
        assert step.amax(1).min() > 0.999

    def test_refuses_bad_settings_of_its_own(self) -> None:
        with pytest.raises(ValueError, match="step_size must be between 0 and 1"):
            FrankWolfe(step_size=1.5)
        with pytest.raises(ValueError, match="temperature must be positive"):
            FrankWolfe(temperature=0.0)


class TestMirrorDescent(SolverTester):
    solver = MirrorDescent

    def test_one_step_is_multiplicative(self) -> None:
        energy, q = dense_energy(5), random_q(sizes=(2, 3))
        expected = q * torch.exp(-0.5 * energy.gradient(q))
        assert torch.allclose(MirrorDescent(iterations=1)(energy, q), expected / expected.sum(1, keepdim=True))


def test_operator_norm_is_the_largest_singular_value() -> None:
    energy = dense_energy(6, height=2, width=2)
    centre = torch.eye(3, dtype=torch.float64) - 1 / 3
    columns = []
    for column in torch.eye(12, dtype=torch.float64).reshape(12, 1, 3, 2, 2):
        centred = torch.einsum("lm,bmhw->blhw", centre, column)
        columns.append(torch.einsum("lm,bmhw->blhw", centre, energy.pairwise(centred)).flatten())
    expected = torch.linalg.matrix_norm(torch.stack(columns), ord=2)
    assert float(energy.operator_norm(2000)) == pytest.approx(float(expected), rel=1e-3)
    assert float(Energy(torch.zeros(1, 2, 3, 3), []).operator_norm()) == 0


def test_of_labels_refuses_labels_outside_the_classes() -> None:
    energy = Energy(torch.zeros(1, 2, 3, 3), [SpatialPotential(2).bind(torch.zeros(1, 3, 3, 3))])
    with pytest.raises(ValueError, match="labels run from 0 to 255"):
        energy.of_labels(torch.tensor([0, 255, 1]).expand(1, 3, 3))
    with pytest.raises(ValueError, match="integers"):
        energy.of_labels(torch.zeros(1, 3, 3))
