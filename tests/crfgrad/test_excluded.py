"""Logits of minus infinity: a label that a pixel must not take gets probability 0, everywhere and with gradients."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

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
    check_values,
    log_distribution,
    project_simplex,
    round_labels,
)
from tests.crfgrad.fields import random_image, random_q, randomise, small_bilateral, small_spatial
from tests.crfgrad.oracles import DenseOperator, all_labelings, simplex_by_bisection

SOLVERS = [ProjectedGradient, MeanField, MirrorDescent, FrankWolfe]
KINDS = {
    "no": [],
    "free": [small_spatial, small_bilateral],
    "gaussian": [GaussianSpatialPotential, GaussianBilateralPotential],
}


def random_mask(batch: int = 2, labels: int = 4, height: int = 6, width: int = 7) -> Tensor:
    """Labels to exclude, about half of them and never all of a pixel: (B, L, H, W)."""
    kept = torch.randint(labels, (batch, 1, height, width))
    return (torch.rand(batch, labels, height, width) < 0.5).scatter(1, kept, False)


def random_logits(excluded: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(excluded.shape, dtype=dtype).masked_fill(excluded, -torch.inf)


def random_crf(kind: str, labels: int = 4, solver: Solver | None = None) -> CRF:
    return CRF(labels, [randomise(build(labels)) for build in KINDS[kind]], solver, check_colour=False).double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_excluded_labels_are_exactly_0_and_all_gradients_are_finite(
    solver: type[Solver], kind: str, training: bool, dtype: torch.dtype
) -> None:
    crf = random_crf(kind, solver=solver(step_size=0.4, learn_step_size=True)).to(dtype).train(training)
    excluded, image = random_mask(), random_image(2, sizes=(6, 7)).to(dtype)
    logits = random_logits(excluded, dtype).requires_grad_()
    for q in crf.trajectory(logits, image):
        assert not q[excluded].any()
        assert (q.clamp_min(0).sum(1) - 1).abs().max() < 1e-6
        assert training or q.min() >= 0
    torch.nn.functional.nll_loss(log_distribution(crf(logits, image)), (~excluded).int().argmax(1)).backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert not logits.grad[excluded].any()
    assert logits.grad.any()
    for parameter in crf.parameters():
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.any()


@pytest.mark.parametrize("save_memory", [True, False])
@pytest.mark.parametrize("solver", SOLVERS)
def test_excluded_labels_are_those_of_a_huge_cost(solver: type[Solver], save_memory: bool) -> None:
    excluded, labels, size = random_mask(3, 4, 2, 3), 4, 6
    matrix = torch.randn(size, labels, size, labels, dtype=torch.float64)
    matrix = (matrix + matrix.permute(2, 3, 0, 1)) * (1 - torch.eye(size)[:, None, :, None])
    unary = torch.randn(excluded.shape, dtype=torch.float64, requires_grad=True)
    start = random_logits(excluded).softmax(1)
    minimise, weights = solver(iterations=4).eval(), torch.randn_like(start)
    results = []
    for energy in (
        Energy(unary, [DenseOperator(matrix)], excluded),
        Energy(unary + 1e5 * excluded, [DenseOperator(matrix)]),
    ):
        q = minimise(energy, start, save_memory)
        results.append([q, *torch.autograd.grad((weights * q).sum(), unary)])
    assert all(torch.allclose(*pair, rtol=0, atol=1e-9) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_step_without_potentials_is_that_of_the_remaining_labels(solver: type[Solver]) -> None:
    excluded = random_mask()
    logits = random_logits(excluded)
    crf = CRF(4, [], solver(iterations=1, step_size=0.3)).double().eval()
    q, weight = crf(logits, random_image(2, sizes=(6, 7))), crf.unary.unary_weight.detach()
    for pixel, out, scores in zip(*(each.movedim(1, -1).reshape(-1, 4) for each in (q, excluded, logits)), strict=True):
        start = scores[~out].softmax(0)
        cost = -weight * torch.log(start + 1e-6)
        expected = {
            ProjectedGradient: simplex_by_bisection(start - 0.3 * cost),
            MeanField: 0.7 * start + 0.3 * (-cost).softmax(0),
            FrankWolfe: 0.7 * start + 0.3 * (-cost / 0.5).softmax(0),
            MirrorDescent: (start.log() - 0.3 * cost).softmax(0),
        }[solver]
        assert torch.allclose(pixel[~out], expected, rtol=0, atol=1e-12)
        assert not pixel[out].any()


@pytest.mark.parametrize("symmetric", [True, False])
def test_rounding_picks_none_of_them_and_no_distribution_beats_the_best_labelling(symmetric: bool) -> None:
    excluded = random_mask(1, 3, 2, 3)
    potentials = [randomise(build(3, symmetric=symmetric)) for build in (small_spatial, small_bilateral)]
    crf = CRF(3, potentials, check_colour=False).double().eval()
    every = all_labelings(3, 2, 3)  # (729, 2, 3)
    logits, image = random_logits(excluded), random_image(1, 3, (2, 3))
    with torch.no_grad():
        energy = crf.energy(logits.expand(len(every), -1, -1, -1), image.expand(len(every), -1, -1, -1))
        costs = energy.of_labels(every)
        broken = excluded.expand(len(every), -1, -1, -1).gather(1, every[:, None]).any(dim=(1, 2, 3))
        assert broken.any()
        assert torch.equal(costs == torch.inf, broken)
        assert torch.isfinite(costs[~broken]).all()
        q = random_q(len(every), 3, (2, 3)).masked_fill(excluded, 0)
        q = q / q.sum(1, keepdim=True)
        labels = round_labels(energy, q)
        assert not excluded.expand(len(every), -1, -1, -1).gather(1, labels[:, None]).any()
        assert (energy.of_labels(labels) <= energy(q) + 1e-12).all()
        assert (energy(q) >= costs.min() - 1e-12).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_picks_none_of_them_whatever_q_is(dtype: torch.dtype, kind: str) -> None:
    crf, excluded = random_crf(kind).to(dtype).eval(), random_mask(3, 4, 12, 14)
    logits, image = random_logits(excluded, dtype), random_image(3, sizes=(12, 14)).to(dtype)
    energy = crf.energy(logits, image)
    corners = torch.nn.functional.one_hot(torch.randint(4, (3, 12, 14)), 4).movedim(-1, 1).to(dtype)
    with torch.no_grad():
        refined, even = crf(logits, image), torch.full_like(logits, 0.25)
        assert torch.isfinite(energy(refined)).all()
        for q in (refined, even, corners):
            assert (energy(q) == torch.inf).all() == (q is not refined)
            labels = round_labels(energy, q)
            assert not excluded.gather(1, labels[:, None]).any()
            assert torch.isfinite(energy.of_labels(labels)).all()
        rounding = 1e-9 if dtype == torch.float64 else 1e-4
        assert (energy.of_labels(round_labels(energy, refined)) <= energy(refined) + rounding).all()


def test_only_the_image_with_an_excluded_label_costs_infinity() -> None:
    excluded = torch.zeros(3, 2, 4, 4, dtype=torch.bool)
    excluded[1, 0, 2, 3] = True
    energy = CRF(2).eval().energy(torch.randn(3, 2, 4, 4).masked_fill(excluded, -torch.inf), torch.zeros(3, 3, 4, 4))
    assert (energy.of_labels(torch.zeros(3, 4, 4, dtype=torch.int64)) == torch.inf).tolist() == [False, True, False]
    assert torch.isfinite(energy.of_labels(torch.ones(3, 4, 4, dtype=torch.int64))).all()


@pytest.mark.parametrize("leak", [0.0, 0.1])
@pytest.mark.parametrize("labels", [2, 5, 21])
def test_projection_without_some_entries_is_that_of_the_others(labels: int, leak: float) -> None:
    excluded = random_mask(1, labels, 1, 30)[0, :, 0].T  # (30, L)
    x = (2 * torch.randn(30, labels, dtype=torch.float64)).masked_fill(excluded, -torch.inf).requires_grad_()
    weights = torch.randn(30, labels, dtype=torch.float64)
    projected = project_simplex(x, leak=leak)
    assert torch.allclose(project_simplex(x.detach().float(), leak=leak).double(), projected, atol=1e-6)
    (gradient,) = torch.autograd.grad((weights * projected).sum(), x)
    for row, out in enumerate(excluded):
        rest = x[row, ~out].detach().requires_grad_()
        assert torch.allclose(projected[row, ~out], simplex_by_bisection(rest, leak), rtol=0, atol=1e-11)
        assert not projected[row, out].any()
        others = (weights[row, ~out] * project_simplex(rest, dim=0, leak=leak)).sum()
        assert torch.allclose(gradient[row, ~out], torch.autograd.grad(others, rest)[0], rtol=0, atol=1e-12)
        assert not gradient[row, out].any()


@pytest.mark.parametrize("leak", [0.0, 0.1])
def test_gradients_of_the_projection_of_the_others(leak: float) -> None:
    excluded = random_mask(1, 5, 1, 4)[0, :, 0].T

    def apply(x: Tensor) -> Tensor:
        return project_simplex(x.masked_fill(excluded, -torch.inf), leak=leak)

    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert gradcheck(apply, x)
    assert gradgradcheck(apply, x)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_pixel_without_any_label_left_is_refused_or_becomes_nan(solver: type[Solver]) -> None:
    logits, image = torch.randn(2, 3, 4, 5), random_image(2, sizes=(4, 5)).float()
    logits[1, :, 2, 3] = -torch.inf
    empty = (logits == -torch.inf).all(1, keepdim=True).expand_as(logits)
    with pytest.raises(ValueError, match="all logits of 1 pixels are minus infinity, which leaves them no label"):
        CRF(3, solver=solver())(logits, image)
    with check_values(False):
        q = CRF(3, [], solver()).eval()(logits, image)
        assert torch.equal(q.isnan(), empty)
        assert CRF(3, solver=solver()).eval()(logits, image)[empty].isnan().all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_other_values_that_are_not_finite_are_refused_beside_excluded_labels(bad: float) -> None:
    logits = torch.randn(1, 3, 4, 5)
    logits[0, 0, 0, 0], logits[0, 0, 1, 1] = -torch.inf, bad
    with pytest.raises(ValueError, match=r"NaN or infinity in logits \(1 of 60 values\)"):
        CRF(3)(logits, random_image(sizes=(4, 5)).float())
