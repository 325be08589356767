"""The energy of learned potentials as a loss: against pairs of pixels, and against the CRF's own energy."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from crfgrad import CRF, BilateralPotential, EnergyLoss, GaussianBilateralPotential, GaussianSpatialPotential
from crfgrad import SpatialPotential as Spatial
from tests.crfgrad.oracles import operator_matrix, pairwise_energy

LABELS, HEIGHT, WIDTH = 3, 4, 5


def trained() -> CRF:
    """A CRF whose filters are no longer what they were at the start."""
    crf = CRF(LABELS, [partial(Spatial, radius=2), partial(BilateralPotential, sigma_xy=3, sigma_value=60)]).double()
    with torch.no_grad():
        for parameter in crf.potentials.parameters():
            parameter += torch.randn_like(parameter)
    return crf


def batch() -> tuple[Tensor, Tensor]:
    images = torch.randint(256, (2, 3, HEIGHT, WIDTH)).double()
    return images, torch.randn(2, LABELS, HEIGHT, WIDTH, dtype=torch.float64).softmax(1)


def test_is_the_sum_over_pairs_of_pixels() -> None:
    crf, (images, q) = trained(), batch()
    total = 0.0
    for image, one in zip(images, q, strict=True):
        for potential in crf.potentials:
            matrix = operator_matrix(potential.bind(image[None]), (LABELS, HEIGHT, WIDTH))  # type: ignore[operator]
            total += float(pairwise_energy(matrix.detach(), one[None]).detach())
    loss = EnergyLoss(crf.potentials, weight=0.3)(images, q)  # type: ignore[arg-type]
    assert loss.shape == ()
    assert float(loss) == pytest.approx(0.3 * total / (2 * HEIGHT * WIDTH), rel=1e-10)


def test_is_the_energy_of_the_crf_without_its_unary_term() -> None:
    crf, (images, q) = trained(), batch()
    energy = crf.energy(q.log(), images)
    pairwise = (energy(q) - (energy.unary * q).flatten(1).sum(1)).mean() / (HEIGHT * WIDTH)
    loss = EnergyLoss(crf.potentials)(images, q)  # type: ignore[arg-type]
    assert torch.allclose(loss, pairwise, rtol=1e-9)


@pytest.mark.parametrize("symmetric", [True, False])
def test_gradcheck(symmetric: bool) -> None:
    kinds = [Spatial, BilateralPotential, GaussianSpatialPotential, GaussianBilateralPotential]
    potentials = [kind(LABELS, symmetric=symmetric).double() for kind in kinds]
    with torch.no_grad():
        for potential in potentials:
            for parameter in potential.parameters():
                parameter += 0.3 * torch.randn_like(parameter)
    loss, (images, q) = EnergyLoss(potentials), batch()
    rois = torch.rand(2, HEIGHT, WIDTH) < 0.7
    assert gradcheck(lambda p: loss(images, p, rois), q.requires_grad_())


def test_a_region_is_the_image_cut_out() -> None:
    potentials = trained().potentials
    images, q = batch()
    rois = torch.zeros(2, HEIGHT, WIDTH)
    rois[:, :-1, :-2] = 1  # from the corner, so that positions stay
    loss = EnergyLoss(potentials)  # type: ignore[arg-type]
    cut = loss(images[..., :-1, :-2], q[..., :-1, :-2])
    assert torch.allclose(loss(images, q, rois), cut, rtol=1e-9)
    assert float(loss(images, q, torch.zeros_like(rois))) == 0


def test_the_copy_does_not_learn() -> None:
    crf, (images, q) = trained(), batch()
    loss = EnergyLoss(crf.potentials)  # type: ignore[arg-type]
    before = loss(images, q)
    assert not any(parameter.requires_grad for parameter in loss.parameters())
    assert all(parameter.requires_grad for parameter in crf.parameters())
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.zero_()
    assert torch.equal(loss(images, q), before)


def test_half_precision_and_certain_probabilities() -> None:
    crf = CRF(LABELS)
    images, q = batch()
    loss = EnergyLoss(crf.potentials)  # type: ignore[arg-type]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert loss(images.half(), q.half()).dtype == torch.float32
    certain = torch.zeros(2, LABELS, HEIGHT, WIDTH).index_fill_(1, torch.tensor([1]), 1).requires_grad_()
    value = loss(images.float(), certain)
    (gradient,) = torch.autograd.grad(value, certain)
    assert abs(float(value.detach())) < 1e-6  # Potts: equal labels cost nothing
    assert torch.isfinite(gradient).all()


def test_bad_input_gets_one_clear_sentence() -> None:
    with pytest.raises(ValueError, match=r"one number of classes, got \[2, 3\]"):
        EnergyLoss([Spatial(2), Spatial(3)])
    with pytest.raises(ValueError, match="one number of classes, got none of them"):
        EnergyLoss([])
    with pytest.raises(TypeError, match="must be pairwise potentials"):
        EnergyLoss([nn.Linear(1, 1)])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="probs have 3 channels, the potentials were built for 2 classes"):
        EnergyLoss([Spatial(2)])(*batch())
