"""A mask of valid pixels: images of different sizes in one padded batch, each as if it were alone."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from crfgrad import (
    CRF,
    BilateralPotential,
    FrankWolfe,
    GaussianBilateralPotential,
    GaussianSpatialPotential,
    MeanField,
    MirrorDescent,
    PairwisePotential,
    ProjectedGradient,
    Solver,
    SpatialPotential,
    check_values,
    round_labels,
)
from crfgrad.geometry import gaussian_taps, tap_offsets
from tests.crfgrad.fields import randomise, small_bilateral, small_spatial
from tests.crfgrad.oracles import lattice_matrix, operator_matrix, spatial_matrix, without_self

SOLVERS = [ProjectedGradient, MeanField, MirrorDescent, FrankWolfe]
KINDS: dict[str, list[Callable[..., PairwisePotential]]] = {
    "free": [SpatialPotential, BilateralPotential],
    "gaussian": [GaussianSpatialPotential, GaussianBilateralPotential],
    "mixed": [GaussianSpatialPotential, BilateralPotential],
    "blocks": [partial(SpatialPotential, stride=4), partial(GaussianSpatialPotential, stride=3)],
}
SIZES = [(9, 14), (16, 5), (1, 1), (12, 12)]
LABELS = 4
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def padded_batch(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Logits and an image with random values in the padding too, and the mask."""
    height, width = (2 + max(sizes) for sizes in zip(*SIZES, strict=True))
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(len(SIZES), LABELS, height, width, dtype=dtype, generator=generator)
    image = 255 * torch.rand(len(SIZES), 3, height, width, dtype=dtype, generator=generator)
    valid = torch.zeros(len(SIZES), height, width, dtype=torch.bool)
    for n, (rows, columns) in enumerate(SIZES):
        valid[n, :rows, :columns] = True
        image[n, :, :rows, :columns] = 100 + image[n, :, :rows, :columns] / 10  # colours that meet on the lattice
    return logits, image, valid


def crops(batch: Tensor) -> list[Tensor]:
    return [batch[n : n + 1, ..., :rows, :columns] for n, (rows, columns) in enumerate(SIZES)]


def random_crf(kind: str, dtype: torch.dtype, solver: Solver | None = None) -> CRF:
    """With potentials that are not strong, so that rounding errors do not grow from iteration to iteration."""
    crf = CRF(LABELS, KINDS[kind], solver)
    with torch.no_grad():
        for parameter in crf.potentials.parameters():
            parameter += 0.3 * torch.randn(parameter.shape)
    return crf.to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_padding_changes_no_image_and_no_gradient(
    solver: type[Solver], kind: str, training: bool, dtype: torch.dtype
) -> None:
    crf = random_crf(kind, dtype, solver(learn_step_size=True)).train(training)
    logits, image, valid = padded_batch(dtype)
    weights = torch.randn(logits.shape, dtype=dtype) * valid[:, None]
    leaf = logits.clone().requires_grad_()
    together = crf(leaf, image, valid)
    (weights * together).sum().backward()
    gradients = [parameter.grad.clone() for parameter in crf.parameters()]
    crf.zero_grad()
    for q, scores, colours, factors, gradient in zip(
        *map(crops, (together, logits, image, weights, leaf.grad)), strict=True
    ):
        single_leaf = scores.clone().requires_grad_()
        single = crf(single_leaf, colours)
        assert torch.allclose(q, single, rtol=0, atol=TOLERANCE[dtype])
        (factors * single).sum().backward()  # gradients of the parameters add up
        assert torch.allclose(gradient, single_leaf.grad, rtol=0, atol=10 * TOLERANCE[dtype])
    assert not leaf.grad[~valid[:, None].expand_as(leaf)].any()
    for parameter, gradient in zip(crf.parameters(), gradients, strict=True):
        assert (gradient - parameter.grad).abs().max() <= 10 * TOLERANCE[dtype] * parameter.grad.abs().max()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_no_energy_and_no_rounding(kind: str, dtype: torch.dtype) -> None:
    crf = random_crf(kind, dtype).eval()
    logits, image, valid = padded_batch(dtype)
    energy, q = crf.energy(logits, image, valid), torch.randn_like(logits).softmax(1)
    with torch.no_grad():
        labels, gradients = round_labels(energy, q), energy.gradient(q)
        for n, (single_q, scores, colours) in enumerate(zip(*map(crops, (q, logits, image)), strict=True)):
            single, precise = crf.energy(scores, colours), 10 * TOLERANCE[dtype]
            assert float(energy(q)[n]) == pytest.approx(float(single(single_q)), rel=precise)
            own = crops(labels)[n]
            assert float(energy.of_labels(labels)[n]) == pytest.approx(float(single.of_labels(own)), rel=precise)
            assert single.of_labels(own) <= single(single_q) + precise * single(single_q).abs()
            assert torch.allclose(crops(gradients)[n], single.gradient(single_q), rtol=0, atol=precise)


@pytest.mark.parametrize("symmetric", [True, False])
def test_holes_are_as_if_these_pixels_were_not_there(symmetric: bool) -> None:
    """Against matrices that are built pair by pair of the pixels that are left."""
    height, width, labels = 4, 5, 2
    spatial, bilateral = (randomise(build(labels, symmetric=symmetric)) for build in (small_spatial, small_bilateral))
    crf = CRF(labels, [spatial, bilateral], check_colour=False).double()
    image, valid = 40 * torch.rand(1, 3, height, width, dtype=torch.float64), torch.rand(1, height, width) < 0.6
    kept = valid.flatten()
    y, x = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
    scale, taps = gaussian_taps(5, 1)
    features = torch.cat([torch.stack([x, y]), image[0]]) * scale / bilateral.widths()[:, None, None]
    left, offsets = features.flatten(1)[:, kept], tap_offsets(5, 1)
    norm = lattice_matrix(left, offsets, torch.tensor(taps).double()[:, None, None])[:, 0, :, 0].sum(1).rsqrt()
    expected = norm[:, None, None, None] * lattice_matrix(left, offsets, bilateral.kernel()) * norm[:, None]
    expected = without_self(expected) + spatial_matrix(spatial.kernel(), (height, width))[kept][:, :, kept]
    logits = torch.randn(1, labels, height, width, dtype=torch.float64)
    matrix = operator_matrix(crf.energy(logits, image, valid).operator, (labels, height, width))
    assert torch.allclose(matrix[kept][:, :, kept], expected, rtol=0, atol=1e-12)
    assert not matrix[~kept].any()
    assert not matrix[:, :, ~kept].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_mask_of_all_pixels_changes_nothing(solver: type[Solver], kind: str) -> None:
    crf = random_crf(kind, torch.float64, solver()).eval()
    logits, image, valid = padded_batch(torch.float64)
    everywhere = torch.ones_like(valid)
    assert torch.allclose(crf(logits, image, everywhere), crf(logits, image), rtol=0, atol=1e-12)
    for state, other in zip(crf.trajectory(logits, image, valid), crf.trajectory(logits, image, valid), strict=True):
        assert torch.equal(state, other)
    assert torch.equal(state, crf(logits, image, valid))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_what_is_in_the_padding_may_be_anything(solver: type[Solver], kind: str, bad: float) -> None:
    crf = random_crf(kind, torch.float64, solver()).train()
    logits, image, valid = padded_batch(torch.float64)
    gradients = []
    for padding in (0.0, bad):
        crf.zero_grad()
        given = [channels.masked_fill(~valid[:, None], padding) for channels in (logits, image)]
        q = crf(*given, valid).masked_fill(~valid[:, None], 0)
        q.square().sum().backward()
        gradients.append([q.detach(), *(parameter.grad.clone() for parameter in crf.parameters())])
    assert all(torch.allclose(*pair, rtol=0, atol=1e-12) for pair in zip(*gradients, strict=True))


@pytest.mark.parametrize("values_are_checked", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_an_image_without_valid_pixels_changes_no_other(
    solver: type[Solver], kind: str, values_are_checked: bool
) -> None:
    crf = random_crf(kind, torch.float64, solver()).train()
    logits, image, valid = padded_batch(torch.float64)
    valid[1] = False
    gradients = []
    with check_values(values_are_checked):
        for which in (slice(None), torch.tensor([0, 2, 3])):
            crf.zero_grad()
            q = crf(logits[which], image[which], valid[which])[valid[which][:, None].expand_as(logits[which])]
            q.square().sum().backward()
            gradients.append([q.detach(), *(parameter.grad.clone() for parameter in crf.parameters())])
    assert all(torch.allclose(*pair, rtol=0, atol=1e-12) for pair in zip(*gradients, strict=True))


def test_excluded_labels_and_valid_pixels_together() -> None:
    crf = random_crf("free", torch.float64).eval()
    logits, image, valid = padded_batch(torch.float64)
    kept = torch.randint(LABELS, (len(SIZES), 1, *logits.shape[2:]))
    excluded = (torch.rand(logits.shape) < 0.5).scatter(1, kept, False)
    excluded[0, :, -1] = True  # all labels, in the padding
    logits = logits.masked_fill(excluded, -torch.inf)
    together = crf(logits, image, valid)
    for q, scores, colours, out in zip(*map(crops, (together, logits, image, excluded)), strict=True):
        assert torch.allclose(q, crf(scores, colours), rtol=0, atol=1e-12)
        assert not q[out].any()


def test_a_bad_mask_gets_one_clear_sentence() -> None:
    crf = CRF(LABELS)
    logits, image, valid = padded_batch(torch.float32)
    with pytest.raises(TypeError, match=r"valid must be a torch tensor of type bool, got torch\.float32"):
        crf(logits, image, valid.float())
    with pytest.raises(TypeError, match="valid must be a torch tensor of type bool, got ndarray"):
        crf(logits, image, valid.numpy())
    for bad in (valid[:1], valid[:, None], valid[:, :-1], valid.mT):
        with pytest.raises(ValueError, match=r"valid has shape .*, but for these logits it must be \(4, 18, 16\)"):
            crf(logits, image, bad)
    with pytest.raises(ValueError, match="valid is on meta but the logits are on cpu: move one to the other"):
        crf(logits, image, valid.to("meta"))
    broken = logits.clone()
    broken[0, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"NaN or infinity in logits \(1 of"):
        crf(broken, image, valid)
