"""Volumes and sequences: all that holds for images, by the same tests; spacing; symmetries of space; best paths."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.func import functional_call

from crfgrad import (
    CRF,
    BilateralPotential,
    Energy,
    GaussianBilateralPotential,
    GaussianSpatialPotential,
    MeanField,
    ProjectedGradient,
    SpatialPotential,
    round_labels,
)
from experiments.scene import make_scene
from tests.crfgrad import test_potentials
from tests.crfgrad.fields import LABELS, SIZES, randomise
from tests.crfgrad.oracles import DenseOperator
from tests.crfgrad.test_tracing import needs_compiler


class Volume:
    """Voxels that are no cubes, of one channel."""

    channels, sizes, few, spacing = 1, SIZES[3], (2, 1, 2), (2.0, 1.0, 0.7)


class Sequence:
    """Two channels along time."""

    channels, sizes, few, spacing = 2, SIZES[1], (4,), None


class TestSpatialOfVolumes(Volume, test_potentials.TestSpatial):
    build = partial(SpatialPotential, radius=1, dimensions=3)


class TestSpatialOnBlocksOfVolumes(Volume, test_potentials.TestSpatial):
    build = partial(SpatialPotential, radius=1, stride=2, dimensions=3)
    sizes = (2, 3, 3)


class TestGaussianSpatialOfVolumes(Volume, test_potentials.TestGaussianSpatial):
    build = partial(GaussianSpatialPotential, radius=2, sigma=1.3, dimensions=3)


class TestBilateralOfVolumes(Volume, test_potentials.LatticeTester):
    build = partial(BilateralPotential, sigma_xy=3.0, sigma_value=20.0, dimensions=3)


class TestGaussianBilateralOfVolumes(Volume, test_potentials.GaussianLatticeTester):
    build = partial(GaussianBilateralPotential, sigma_xy=(3.0, 2.0, 4.0), sigma_value=20.0, dimensions=3)


class TestSpatialOfSequences(Sequence, test_potentials.TestSpatial):
    build = partial(SpatialPotential, radius=2, dimensions=1)


class TestGaussianSpatialOfSequences(Sequence, test_potentials.TestGaussianSpatial):
    build = partial(GaussianSpatialPotential, radius=2, sigma=1.3, dimensions=1)


class TestBilateralOfSequences(Sequence, test_potentials.LatticeTester):
    build = partial(BilateralPotential, sigma_xy=3.0, sigma_value=20.0, image_channels=2, dimensions=1)


class TestGaussianBilateralOfSequences(Sequence, test_potentials.GaussianLatticeTester):
    build = partial(GaussianBilateralPotential, sigma_xy=3.0, sigma_value=20.0, image_channels=2, dimensions=1)


def random_crf(dimensions: int, symmetric: bool = True, gaussian: bool = False, **options: object) -> CRF:
    """With potentials of all kinds, in float64."""
    reach = {"symmetric": symmetric, "dimensions": dimensions}
    lattice = {**reach, "sigma_xy": 3.0, "sigma_value": 20.0, "image_channels": 1}
    if gaussian:
        potentials = [
            GaussianSpatialPotential(LABELS, radius=2, **reach),
            GaussianBilateralPotential(LABELS, **lattice),
        ]
    else:
        potentials = [SpatialPotential(LABELS, radius=1, **reach), BilateralPotential(LABELS, **lattice)]
    return CRF(LABELS, [randomise(one) for one in potentials], dimensions=dimensions, **options).double()


def random_input(dimensions: int, batch: int = 2, sizes: tuple[int, ...] | None = None) -> tuple[Tensor, Tensor]:
    sizes = SIZES[dimensions] if sizes is None else sizes
    return torch.randn(batch, LABELS, *sizes).double(), 40 * torch.rand(batch, 1, *sizes).double()


@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("dimensions", [1, 3])
def test_gradients_end_to_end(dimensions: int, gaussian: bool) -> None:
    crf = random_crf(dimensions, gaussian=gaussian, solver=ProjectedGradient(2))
    parameters = dict(crf.named_parameters())

    def apply(logits: Tensor, image: Tensor, *values: Tensor) -> Tensor:
        return functional_call(crf, dict(zip(parameters, values, strict=True)), (logits, image))

    inputs = [one.requires_grad_() for one in random_input(dimensions, 1, (4,) if dimensions == 1 else (2, 1, 2))]
    leaves = [parameter.detach().requires_grad_() for parameter in parameters.values()]
    assert gradcheck(apply, (*inputs, *leaves), atol=1e-6, fast_mode=True)


@pytest.mark.parametrize("gaussian", [False, True])
def test_each_volume_has_its_spacing(gaussian: bool) -> None:
    crf = random_crf(3, gaussian=gaussian)
    logits, image = random_input(3)
    spacing = torch.tensor([[2.0, 1.0, 1.0], [1.0, 0.5, 3.0]])
    alone = [crf(logits[n : n + 1], image[n : n + 1], spacing=tuple(spacing[n].tolist())) for n in range(2)]
    assert torch.allclose(crf(logits, image, spacing=spacing), torch.cat(alone), atol=1e-12)
    assert torch.allclose(crf(logits[:1], image[:1], spacing=spacing[0]), alone[0], atol=1e-12)
    crf.spacing = tuple(spacing[0].tolist())
    assert torch.allclose(crf(logits[:1], image[:1]), alone[0], atol=1e-12)
    assert not torch.allclose(alone[0], alone[1], atol=1e-3)


def test_spacing_is_the_unit_of_widths() -> None:
    logits, image = random_input(3)
    crf = random_crf(3, gaussian=True)
    expected = crf(logits, image, spacing=(2.0, 1.0, 1.0))
    with torch.no_grad():
        for potential in crf.potentials:
            widths = 1 if potential.log_sigma.dim() == 0 else 3  # those of the image keep theirs
            potential.log_sigma.view(-1)[:widths] += math.log(7.0)
    assert torch.allclose(crf(logits, image, spacing=(14.0, 7.0, 7.0)), expected, atol=1e-9)


def test_a_volume_of_one_slice_is_an_image() -> None:
    flat, solid = (randomise(SpatialPotential(LABELS, radius=1, dimensions=dimensions)) for dimensions in (2, 3))
    pair = [randomise(GaussianSpatialPotential(LABELS, radius=2, dimensions=dimensions)) for dimensions in (2, 3)]
    with torch.no_grad():
        solid.filters[:, :, 1] = flat.filters * solid.unit / flat.unit
    pair[1].load_state_dict(pair[0].state_dict())
    crfs = [CRF(LABELS, [flat, pair[0]]), CRF(LABELS, [solid, pair[1]], dimensions=3)]
    logits, image = random_input(2, sizes=(9, 12))
    far = (1e6, 1.0, 1.0)  # other slices would be out of reach
    q = crfs[1].double()(logits[:, :, None], image[:, :, None], spacing=far)[:, :, 0]
    assert torch.allclose(q, crfs[0].double()(logits, image), atol=1e-9)


def test_lattices_of_a_slice_and_of_an_image_are_as_close_as_lattices_are() -> None:
    image = make_scene(24, 32)[0].mean(0).double()[None, None]
    field = torch.rand(1, 24, 32, 1, dtype=torch.float64)
    filtered = []
    for dimensions in (2, 3):
        potential = GaussianBilateralPotential(2, 6.0, 20.0, image_channels=1, dimensions=dimensions, radius=2)
        operator = potential.double().bind(image if dimensions == 2 else image[:, :, None])
        q = torch.cat([field, 1 - field], -1)
        filtered.append(operator.matmul(q if dimensions == 2 else q[:, None]).view(-1, 2))
    error = (filtered[0] - filtered[1]).norm() / (filtered[0] - filtered[0].mean(0)).norm()
    print(f"{float(error):.1%} apart")
    assert error < 0.15


@pytest.mark.parametrize("order", [(0, 2, 1), (2, 1, 0), (1, 2, 0)])
def test_a_turned_volume_gives_the_turned_result(order: tuple[int, int, int]) -> None:
    logits, image = random_input(3, sizes=(4, 5, 6))
    potential = randomise(SpatialPotential(LABELS, radius=1, dimensions=3))
    gaussian = randomise(GaussianSpatialPotential(LABELS, radius=2, dimensions=3))
    crf = CRF(LABELS, [potential, gaussian], dimensions=3).double()
    spacing = (1.0, 2.0, 1.5)

    def turned(field: Tensor) -> Tensor:
        return field.permute(0, 1, *(2 + axis for axis in order))

    expected = turned(crf(logits, image, spacing=spacing))
    potential.filters.data = turned(potential.filters.data).contiguous()
    got = crf(turned(logits), turned(image), spacing=[spacing[axis] for axis in order])
    assert torch.allclose(got, expected, atol=1e-9)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dimensions", [1, 3])
def test_no_distribution_beats_the_best_labelling_and_rounding_costs_nothing(dimensions: int, symmetric: bool) -> None:
    sizes = (6,) if dimensions == 1 else (2, 1, 3)
    energy = random_crf(dimensions, symmetric).energy(*random_input(dimensions, 1, sizes))
    labellings = torch.tensor(list(itertools.product(range(LABELS), repeat=6))).reshape(-1, *sizes)
    costs = torch.cat([energy.of_labels(one[None]) for one in labellings])
    for _ in range(20):
        q = torch.randn(1, LABELS, *sizes, dtype=torch.float64).softmax(1)
        rounded = energy.of_labels(round_labels(energy, q))
        assert costs.min() - 1e-9 <= rounded <= energy(q) + 1e-9


@pytest.mark.parametrize("dimensions", [1, 3])
def test_excluded_labels_valid_pixels_and_saved_memory(dimensions: int) -> None:
    crf = random_crf(dimensions)
    logits, image = random_input(dimensions)
    logits[:, 0, 0] = -torch.inf
    expected = crf(logits, image)
    assert (expected[:, 0, 0] == 0).all()
    assert torch.equal(list(crf.trajectory(logits, image))[-1], expected)
    crf.save_memory = True
    assert torch.equal(crf(logits, image), expected)
    padding = [0, 1] * dimensions
    valid = torch.ones(2, *SIZES[dimensions], dtype=torch.bool)
    padded = [torch.nn.functional.pad(one, padding, value=7.0) for one in (logits, image)]
    q = crf(*padded, torch.nn.functional.pad(valid, padding))
    inside = tuple(slice(0, size) for size in SIZES[dimensions])
    assert torch.allclose(q[(slice(None), slice(None), *inside)], expected, atol=1e-12)


def best_path(unary: Tensor, pairwise: Tensor) -> float:
    """The lowest energy of a chain, by Viterbi: unary (L, T) and the cost of a label for the next one, (L, L)."""
    cost = unary[:, 0]
    for now in unary.T[1:]:
        cost = now + (cost[:, None] + pairwise).amin(0)
    return float(cost.min())


def chain(seed: int, labels: int, length: int, strength: float) -> tuple[Energy, Tensor, Tensor]:
    """A chain whose neighbours pay for different labels: its energy, unary costs (L, T) and pairwise costs (L, L)."""
    generator = torch.Generator().manual_seed(seed)
    unary = torch.randn(labels, length, generator=generator, dtype=torch.float64)
    pairwise = strength * torch.rand(labels, labels, generator=generator, dtype=torch.float64)
    pairwise = (pairwise + pairwise.T).fill_diagonal_(0)
    potential = SpatialPotential(labels, radius=1, dimensions=1).double()
    with torch.no_grad():
        potential.filters.copy_(potential.unit * pairwise[:, :, None].expand(-1, -1, 3))
    image = torch.zeros(1, 1, length, dtype=torch.float64)
    return Energy(unary[None], [potential.bind(image)]), unary, pairwise


@pytest.mark.parametrize(("strength", "bound"), [(0.1, 0.001), (0.5, 0.06), (2.0, 0.25)])
def test_gap_to_the_best_path_of_a_chain(strength: float, bound: float) -> None:
    """As a share of the way from the network's labels to the optimum, which dynamic programming finds."""
    gaps = []
    for seed in range(5):
        energy, unary, pairwise = chain(seed, labels=3, length=40, strength=strength)
        best = best_path(unary, pairwise)
        start = energy.of_labels(unary.argmin(0)[None]).item()
        step = 1.8 / energy.operator_norm().item()
        solver = ProjectedGradient(200, step).eval()
        q = solver(energy, (-unary[None]).softmax(1))
        reached = energy.of_labels(round_labels(energy, q)).item()
        assert reached >= best - 1e-9
        gaps.append((reached - best) / (start - best + 1e-9))
    print(f"strength {strength}: gaps {', '.join(f'{gap:.1%}' for gap in gaps)}")
    assert sum(gaps) / len(gaps) <= bound


def test_convex_problems_of_a_chain_are_solved_exactly() -> None:
    """Frank and Wolfe's gap bounds how far above the minimum a convex energy is.

    Without what pixels bring to themselves the trace of K is 0, so that no energy is convex: they keep it here.
    """
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(24, 24, generator=generator, dtype=torch.float64) / 5
    matrix = (root @ root.T).reshape(12, 2, 12, 2)
    energy = Energy(torch.randn(1, 2, 12, generator=generator, dtype=torch.float64), [DenseOperator(matrix)])
    solver = ProjectedGradient(5000, 1.8 / energy.operator_norm().item()).eval()
    for _ in range(3):
        q = solver(energy, torch.randn(1, 2, 12, dtype=torch.float64).softmax(1))
        slope = energy.gradient(q)
        assert ((slope * q).sum(1) - slope.amin(1)).sum() < 1e-6


def marginals(unary: Tensor, pairwise: Tensor) -> Tensor:
    """Of the distribution exp(-E) / Z of a chain, by the forward-backward algorithm: (L, T)."""
    forward, backward = [-unary[:, 0]], [torch.zeros_like(unary[:, 0])]
    for now in unary.T[1:]:
        forward.append((forward[-1][:, None] - pairwise).logsumexp(0) - now)
    for later in reversed(unary.T[1:]):
        backward.insert(0, (backward[0] - later - pairwise).logsumexp(1))
    return (torch.stack(forward, 1) + torch.stack(backward, 1)).softmax(0)


def test_mean_field_beside_the_marginals_of_a_chain() -> None:
    for strength, bound in ((0.0, 1e-9), (0.2, 0.02), (1.0, 0.2)):
        energy, unary, pairwise = chain(0, labels=3, length=40, strength=strength)
        q = MeanField(50)(energy, (-unary[None]).softmax(1))[0]
        error = (q - marginals(unary, pairwise)).abs().mean().item()
        print(f"strength {strength}: mean error {error:.4f}")
        assert error <= bound


@pytest.mark.parametrize("dimensions", [1, 3])
def test_exported(dimensions: int) -> None:
    crf = random_crf(dimensions).float().eval()
    logits, image = (one.float() for one in random_input(dimensions))
    sizes = {0: torch.export.Dim("batch"), **{2 + n: torch.export.Dim(f"size{n}") for n in range(dimensions)}}
    with torch.no_grad():
        program = torch.export.export(crf, (logits, image), dynamic_shapes=(sizes, sizes)).module()
        other = [one.float() for one in random_input(dimensions, 3, tuple(3 + size for size in SIZES[dimensions]))]
        assert torch.allclose(program(*other), crf(*other), atol=1e-6)


def test_bad_input_gets_one_clear_sentence() -> None:
    volume, picture = random_crf(3), random_crf(2)
    logits, image = random_input(3)
    with pytest.raises(ValueError, match=r"logits must have 4 dimensions .* for volumes give dimensions=3"):
        picture(logits, image)
    with pytest.raises(ValueError, match=r"logits must have 5 dimensions .* for images give dimensions=2"):
        volume(*random_input(2))
    with pytest.raises(ValueError, match=r"logits are 2 x 3 x 2 but the image is 3 x 2 x 2 .depth x height x width."):
        volume(logits, image.movedim(2, -1))
    for spacing in (0.0, (1.0, -1.0, 1.0), torch.tensor([1.0, 0.0, 1.0])):
        with pytest.raises(ValueError, match=r"spacing must be positive"):
            volume(logits, image, spacing=spacing)
    with pytest.raises(ValueError, match=r"spacing has 2 numbers for 3 axes: give one for all, or 3"):
        volume(logits, image, spacing=(1.0, 2.0))
    with pytest.raises(
        ValueError, match=r"spacing has shape \(4, 3\), but must be \(3,\) or, one for each image, \(2, 3\)"
    ):
        volume(logits, image, spacing=torch.ones(4, 3))
    with pytest.raises(
        ValueError, match=r"has the width 20 for channel 0, whose values spread over .*e-05: give a sigma_v"
    ):
        volume(logits, 1e-6 * image)
    with pytest.raises(ValueError, match=r"SpatialPotential was built for 2 dimensions, the CRF has 3"):
        CRF(2, [SpatialPotential(2)], dimensions=3)
    with pytest.raises(ValueError, match=r"dimensions must be 1, 2 or 3, got 4"):
        CRF(2, [], dimensions=4)
    with pytest.raises(ValueError, match=r"spacing must be finite"):
        CRF(2, dimensions=3, spacing=math.inf)


def test_widths_are_compared_with_the_values_of_valid_pixels() -> None:
    crf = CRF(LABELS, [BilateralPotential(LABELS, sigma_value=1.0, dimensions=3)], dimensions=3)
    logits, image = (one.float() for one in random_input(3))
    image = 10000 + image / 4
    valid = torch.ones(2, *SIZES[3], dtype=torch.bool)
    valid[..., -1] = False
    assert torch.isfinite(crf(logits, image, valid)[..., :-1]).all()
    with pytest.raises(ValueError, match="has the width 1 for channel 0, whose values spread over"):
        crf(logits, image.index_fill(2, torch.tensor([0]), 0.0), valid)


def test_spacing_from_numpy() -> None:
    crf, (logits, image) = random_crf(3, gaussian=True), random_input(3)
    assert torch.equal(crf(logits, image, spacing=np.array([2.0, 1.0, 1.0])), crf(logits, image, spacing=(2.0, 1, 1)))


@needs_compiler
def test_compiled() -> None:
    torch._dynamo.reset()
    crf = random_crf(3, spacing=(2.0, 1.0, 1.0)).float().eval()
    given = [one.float() for one in random_input(3)]
    with torch.no_grad():
        assert torch.allclose(torch.compile(crf, fullgraph=True)(*given), crf(*given), atol=1e-5)
