"""Proposition 1: against the enumeration of all labellings, and its guarantee on larger images."""

import pytest
import torch
from torch import Tensor

from crfgrad import (
    CRF,
    BilateralPotential,
    Energy,
    GaussianBilateralPotential,
    GaussianSpatialPotential,
    MeanField,
    round_labels,
)
from experiments.scene import make_logits, make_scene
from tests.crfgrad.fields import random_image, random_q, randomise, small_bilateral, small_spatial
from tests.crfgrad.oracles import all_labelings


def random_crf(labels: int, symmetric: bool) -> CRF:
    potentials = [build(labels, symmetric=symmetric) for build in (small_spatial, small_bilateral)]
    return CRF(labels, [randomise(potential) for potential in potentials], check_colour=False).double()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_no_distribution_beats_the_best_labelling(seed: int, symmetric: bool) -> None:
    torch.manual_seed(seed)
    crf, logits, image = (
        random_crf(3, symmetric),
        torch.randn(1, 3, 2, 3, dtype=torch.float64),
        random_image(1, 3, (2, 3)),
    )
    every = all_labelings(3, 2, 3)  # (729, 2, 3)
    with torch.no_grad():
        energy = crf.energy(logits.expand(len(every), -1, -1, -1), image.expand(len(every), -1, -1, -1))
        best = energy.of_labels(every).min()
        q = random_q(len(every), 3, (2, 3))
        labels = round_labels(energy, q)
        assert (energy.of_labels(labels) <= energy(q) + 1e-12).all()
        assert (energy.of_labels(labels) >= best - 1e-12).all()
        assert (energy(q) >= best - 1e-12).all()
        for _ in range(100):  # as far down as it goes: local minima of the relaxation
            q = torch.softmax(torch.log(q.clamp_min(1e-30)) - 0.5 * energy.derivative(q), 1)
        assert (energy(q) >= best - 1e-12).all()
        assert (energy.of_labels(round_labels(energy, q)) <= energy(q) + 1e-12).all()
        assert energy(q).min() == pytest.approx(float(best), abs=1e-3)  # and min E(q) is E(x*)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("strength", [0.3, 3.0, 30.0])
def test_never_raises_the_energy_of_random_fields(strength: float, symmetric: bool) -> None:
    crf = random_crf(4, symmetric)
    with torch.no_grad():
        for potential in crf.potentials:
            potential.filters *= strength
    energy = crf.energy(torch.randn(3, 4, 24, 32, dtype=torch.float64), random_image(3, 3, (24, 32)))
    q = random_q(3, 4, (24, 32))
    assert (energy.of_labels(round_labels(energy, q)) <= energy(q) + 1e-9).all()


def test_a_field_of_repulsion_where_moving_all_pixels_at_once_would_raise_the_energy() -> None:
    potentials = [GaussianSpatialPotential(2, strength=-5.0)]
    potentials += [GaussianBilateralPotential(2, sigma_xy=2.0, strength=-3.0)]
    energy = CRF(2, potentials).double().energy(torch.zeros(1, 2, 24, 24).double(), torch.zeros(1, 3, 24, 24))
    q = torch.full((1, 2, 24, 24), 0.5, dtype=torch.float64)
    q[:, 0, ::2] += 0.01
    q[:, 1, ::2] -= 0.01
    assert energy.of_labels(energy.derivative(q).argmin(1)) > energy(q) + 100
    evaluations = 0
    derivative = energy.derivative

    def counted(q: Tensor) -> Tensor:
        nonlocal evaluations
        evaluations += 1
        return derivative(q)

    energy.derivative = counted  # type: ignore[method-assign]
    labels = round_labels(energy, q)
    assert energy.of_labels(labels) <= energy(q)
    assert 5 < evaluations < 100


def test_refuses_self_interaction() -> None:
    energy = CRF(2, [BilateralPotential(2, exclude_self=False)]).energy(
        torch.zeros(1, 2, 3, 3), torch.zeros(1, 3, 3, 3)
    )
    with pytest.raises(ValueError, match="exclude_self=True"):
        round_labels(energy, torch.full((1, 2, 3, 3), 0.5))


def test_refuses_nan() -> None:
    with pytest.raises(ValueError, match="NaN or infinity in q"):
        round_labels(Energy(torch.zeros(1, 2, 1, 1), []), torch.full((1, 2, 1, 1), torch.nan))


def test_a_picture_after_mean_field() -> None:
    image, labels = make_scene(90, 120)
    logits = make_logits(labels)[None]
    crf = CRF(4, solver=MeanField()).eval()
    with torch.no_grad():
        q, energy = crf(logits, image[None]), crf.energy(logits, image[None])
        assert energy.of_labels(round_labels(energy, q)) <= energy(q)


def test_corners_stay_and_a_tie_is_decided() -> None:
    energy = Energy(torch.zeros(1, 2, 1, 3), [])
    q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]).T.reshape(1, 2, 1, 3)
    assert round_labels(energy, q).tolist() == [[[0, 1, 0]]]


def test_refuses_q_off_the_simplex() -> None:
    with pytest.raises(ValueError, match="leak 0"):
        round_labels(Energy(torch.zeros(1, 2, 1, 1), []), torch.tensor([1.1, -0.1]).reshape(1, 2, 1, 1))
