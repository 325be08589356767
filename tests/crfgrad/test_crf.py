"""The CRF as a layer: gradients end to end, precision, batches, sizes, saving, and bad input."""

import copy
import io
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.func import functional_call

from crfgrad import (
    CRF,
    BilateralPotential,
    DenseCRF,
    Energy,
    FrankWolfe,
    GaussianBilateralPotential,
    GaussianSpatialPotential,
    MeanField,
    MirrorDescent,
    ProjectedGradient,
    Solver,
    SpatialPotential,
    check_values,
    log_distribution,
    project_simplex,
    round_labels,
)
from tests.crfgrad.fields import randomise

SOLVERS = [ProjectedGradient, MeanField, MirrorDescent, FrankWolfe]


def inputs(
    batch: int = 2, labels: int = 3, height: int = 8, width: int = 11, channels: int = 3
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(batch + height)
    logits = torch.randn(batch, labels, height, width, generator=generator)
    return logits, 255 * torch.rand(batch, channels, height, width, generator=generator)


def random_crf(labels: int = 3, solver: Solver | None = None) -> CRF:
    crf = CRF(labels, solver=solver).eval()
    for potential in crf.potentials:
        randomise(potential).float()
    return crf


def check_gradients(crf: CRF, logits: Tensor, image: Tensor, fast: bool = False) -> None:
    """Gradcheck of logits, image and every parameter."""
    for potential in crf.potentials:
        randomise(potential)
    crf.double()
    parameters = {name: parameter.detach().clone() for name, parameter in crf.named_parameters()}

    def apply(logits: Tensor, image: Tensor, *values: Tensor) -> Tensor:
        return functional_call(crf, dict(zip(parameters, values, strict=True)), (logits, image))

    given = (logits.double(), image.double(), *parameters.values())
    tolerance = 1e-5 if fast else 1e-7  # filters in units of many taps have small gradients
    assert gradcheck(apply, [x.requires_grad_() for x in given], fast_mode=fast, atol=tolerance)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_gradients_end_to_end(solver: type[Solver], gaussian: bool, symmetric: bool) -> None:
    """Logits, image, w_u, spatial and bilateral weights or widths and strengths, and the step size."""
    free = [partial(SpatialPotential, radius=1), partial(BilateralPotential, image_channels=1, sigma_xy=3.0)]
    held = [GaussianSpatialPotential, partial(GaussianBilateralPotential, sigma_xy=3.0)]
    potentials = [kind(2, symmetric=symmetric) for kind in (held if gaussian else free)]
    crf = CRF(2, potentials, solver(iterations=3, step_size=0.3, learn_step_size=True))
    assert len(list(crf.parameters())) == (6 if gaussian else 4)
    logits, image = inputs(batch=1, labels=2, height=2, width=3, channels=3 if gaussian else 1)
    check_gradients(crf, logits, 0.2 * image)


@pytest.mark.parametrize("leak", [0.0, 0.1, 0.5])
def test_gradients_of_the_default_model(leak: float) -> None:
    logits, image = inputs(batch=2, labels=3, height=4, width=5)
    check_gradients(CRF(3, solver=ProjectedGradient(leak=leak)), logits, 0.2 * image, fast=True)


def test_default_is_the_model_of_the_paper() -> None:
    crf = CRF(5)
    assert float(crf.unary.unary_weight.detach()) == 0.5
    spatial, bilateral = crf.potentials
    assert isinstance(spatial, SpatialPotential)
    assert isinstance(bilateral, BilateralPotential)
    assert spatial.filters.shape == (5, 5, 9, 9)
    assert bilateral.filters.shape == (63, 5, 5)
    assert isinstance(crf.solver, ProjectedGradient)
    assert (crf.solver.iterations, crf.solver.step_size, crf.solver.eval_leak) == (5, 0.5, 0.0)
    assert all(parameter.requires_grad for parameter in crf.parameters())


@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_batch_gives_what_its_images_give(solver: type[Solver], gaussian: bool) -> None:
    crf = random_crf(solver=solver())
    if gaussian:
        crf = CRF(3, [GaussianSpatialPotential, GaussianBilateralPotential], solver()).eval()
    logits, image = inputs(batch=3)
    together = crf(logits, image)
    single = torch.cat([crf(logits[i : i + 1], image[i : i + 1]) for i in range(3)])
    assert torch.allclose(together, single, atol=1e-6)


def test_other_sizes_in_between_change_nothing() -> None:
    crf = random_crf()
    logits, image = inputs()
    before = crf(logits, image)
    for height, width in ((20, 5), (1, 1), (9, 30)):
        assert crf(*inputs(batch=1, height=height, width=width)).shape == (1, 3, height, width)
    assert torch.equal(crf(logits, image), before)


@pytest.mark.parametrize("labels", [2, 7, 30])
def test_any_number_of_labels(labels: int) -> None:
    q = CRF(labels).eval()(*inputs(labels=labels))
    assert (q.sum(1) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("channels", [1, 2, 6])
def test_any_number_of_channels(channels: int) -> None:
    crf = CRF(3, [SpatialPotential, partial(BilateralPotential, image_channels=channels)]).eval()
    assert torch.isfinite(crf(*inputs(channels=channels))).all()
    with pytest.raises(ValueError, match=f"{channels} channels.*image_channels={channels}"):
        CRF(3)(*inputs(channels=channels))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_in_float32(dtype: torch.dtype) -> None:
    crf, (logits, image) = random_crf(), inputs()
    expected = crf(logits, image)
    energy = crf.energy(logits, image)(expected)
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(crf(logits, image), expected)
        assert torch.equal(crf.energy(logits, image)(expected), energy)
        assert torch.equal(list(crf.trajectory(logits, image))[-1], expected)
    half = logits.to(dtype)
    assert crf(half, image).dtype == torch.float32
    assert torch.equal(crf(half, image), crf(half.float(), image))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_training_under_autocast_gives_float32_gradients(dtype: torch.dtype) -> None:
    crf, (logits, image) = random_crf().train(), inputs()
    with torch.autocast("cpu", dtype=dtype):
        loss = crf(logits, image)[:, 0].sum()
    loss.backward()
    reference = copy.deepcopy(crf)
    reference.zero_grad()
    reference(logits, image)[:, 0].sum().backward()
    for mixed, full in zip(crf.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(mixed.grad, full.grad, rtol=1e-4, atol=1e-5)


def test_float64_agrees_with_float32() -> None:
    crf, (logits, image) = random_crf(), inputs()
    precise = copy.deepcopy(crf).double()(logits.double(), image.double())
    assert precise.dtype == torch.float64
    assert torch.allclose(crf(logits, image).double(), precise, atol=1e-5)
    assert torch.allclose(crf(logits.double(), image), precise, atol=1e-12)  # the logits decide


def test_state_dict_round_trip_and_deep_copy() -> None:
    crf, (logits, image) = random_crf(), inputs()
    buffer = io.BytesIO()
    torch.save(crf.state_dict(), buffer)
    buffer.seek(0)
    other = CRF(3, [SpatialPotential, partial(BilateralPotential, sigma_xy=7.0)]).eval()
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(other(logits, image), crf(logits, image))  # the widths came along
    assert torch.equal(copy.deepcopy(crf)(logits, image), crf(logits, image))


def test_solver_can_be_replaced_after_training() -> None:
    crf, (logits, image) = random_crf(), inputs()
    first = crf(logits, image)
    state = set(crf.state_dict())
    crf.solver = MeanField(iterations=10)
    assert not torch.allclose(crf(logits, image), first, atol=1e-3)
    assert set(crf.state_dict()) == state
    crf.solver = ProjectedGradient()  # joins a CRF in evaluation mode, so it does not leak
    assert torch.equal(crf(logits, image), first)


@pytest.mark.parametrize("solver", SOLVERS)
def test_saving_memory_changes_no_gradient(solver: type[Solver]) -> None:
    crf, (logits, image) = random_crf(solver=solver()).train(), inputs()
    gradients, saved = [], []

    def count(tensor: Tensor) -> Tensor:
        saved[-1] += tensor.numel()
        return tensor

    for crf.save_memory in (False, True):
        x = logits.clone().requires_grad_()
        crf.zero_grad()
        saved.append(0)
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            q = crf(x, image)
        q.square().sum().backward()
        gradients.append([x.grad, *(parameter.grad.clone() for parameter in crf.parameters())])
    for kept, recomputed in zip(*gradients, strict=True):
        assert torch.allclose(kept, recomputed, rtol=1e-5, atol=1e-6)
    assert saved[1] < saved[0] / 3


@pytest.mark.parametrize("solver", SOLVERS)
def test_free_filters_learn_a_texture_that_no_smoothing_prior_can_hold(solver: type[Solver]) -> None:
    truth = (torch.arange(16) % 2).expand(4, 16, 16)  # stripes of one pixel: neighbours differ
    logits = 2 * torch.nn.functional.one_hot(truth, 2).movedim(-1, 1) + 3 * torch.randn(4, 2, 16, 16)
    image = torch.full((4, 3, 16, 16), 128.0)
    crf = CRF(2, solver=solver())
    optimiser = torch.optim.Adam(crf.parameters(), lr=0.3)
    for _ in range(40):
        q = crf(logits, image)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(log_distribution(q), truth).backward()
        optimiser.step()
    with torch.no_grad():
        refined = crf.eval()(logits, image).argmax(1)
    assert (logits.argmax(1) == truth).float().mean() < 0.75
    assert (refined == truth).float().mean() > 0.97


@pytest.mark.parametrize("solver", SOLVERS)
def test_losses_of_torch_take_the_result(solver: type[Solver]) -> None:
    crf, (logits, image) = random_crf(solver=solver()).train(), inputs()
    for loss in (torch.nn.functional.nll_loss, torch.nn.functional.cross_entropy):
        crf.zero_grad()
        loss(log_distribution(crf(logits, image)), logits.argmax(1)).backward()
        assert all(torch.isfinite(parameter.grad).all() for parameter in crf.parameters())


def test_images_that_must_work() -> None:
    crf = random_crf()
    logits, image = inputs()
    bytes_ = image.to(torch.uint8)
    assert torch.allclose(crf(logits, bytes_), crf(logits, bytes_.float()))
    pixel = inputs(batch=1, height=1, width=1)
    assert torch.allclose(crf(*pixel), CRF(3, []).eval()(*pixel), atol=1e-6)  # nothing to interact with
    assert torch.isfinite(crf(*inputs(height=3, width=2))).all()  # smaller than the kernel
    assert torch.isfinite(crf(logits, torch.zeros_like(image))).all()  # black
    assert torch.isfinite(crf(logits, torch.full_like(image, 255.0))).all()
    assert torch.isfinite(crf(logits, bytes_.clamp_max(1))).all()  # nearly black, not a wrong scale
    assert torch.isfinite(crf(logits, bytes_.clamp_max(1).float())).all()
    assert torch.isfinite(crf(logits, image - 1)).all()  # an overshoot of interpolation
    assert torch.isfinite(crf(1e4 * logits, image)).all()


def test_bad_input_gets_one_clear_sentence() -> None:
    crf = CRF(3)
    logits, image = inputs()
    nan = logits.clone()
    nan[0, 0, 0, 0] = torch.nan
    cases = [
        (logits, image[:, :, :4], "logits are 8 x 11 but the image is 4 x 11"),
        (logits[:, :2], image, "logits have 2 channels, the CRF was built for 3 classes"),
        (nan, image, r"NaN or infinity in logits \(1 of"),
        (logits, image / 0, "NaN or infinity in image"),
        (logits, image / 255, "runs from .* which looks normalised: the CRF needs colours 0..255"),
        (logits, image - 128, "looks normalised"),
        (logits, 200 * image, "is no 8-bit image"),
        (logits, torch.stack([image[0], image[1] / 255]), "image 1 of the batch runs from .* looks normalised"),
        (logits[:0], image[:0], "nothing in logits"),
        (logits[:1], image, "logits are a batch of 1, the image is a batch of 2"),
        (logits[0], image[0], "logits must have 4 dimensions"),
        (logits, image[:, 0], "image must have 4 dimensions"),
    ]
    for bad_logits, bad_image, sentence in cases:
        with pytest.raises(ValueError, match=sentence):
            crf(bad_logits, bad_image)
    for bad_solver in (MeanField, "MeanField"):
        with pytest.raises(TypeError, match=r"solver must be a Solver, such as MeanField\(\)"):
            CRF(3, solver=bad_solver)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="potentials must be a list"):
        CRF(3, SpatialPotential)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="logits must be a torch tensor, got ndarray"):
        crf(logits.numpy(), image)
    with pytest.raises(ValueError, match=r"q has shape .* this energy is for"):
        crf.energy(logits, image)(logits[:, :, :2])
    for start in (logits[:1].softmax(1), logits[..., :4].softmax(1)):
        with pytest.raises(ValueError, match=r"q has shape .* this energy is for"):
            crf.solver(crf.energy(logits, image), start)
        with pytest.raises(ValueError, match=r"q has shape .* this energy is for"):
            list(crf.solver.trajectory(crf.energy(logits, image), start))
    with pytest.raises(TypeError, match="must return an Operator, got <function"):
        Energy(logits, [lambda q: q])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="floating-point"):
        crf(logits.long(), image)
    with pytest.raises(ValueError, match="was built for 4 classes, the CRF has 3"):
        CRF(3, [SpatialPotential(4)])
    with pytest.raises(ValueError, match="num_classes must be a whole number, 2 or more"):
        CRF(1, [])
    assert CRF(3, check_colour=False)(logits, image - 128).shape == logits.shape


def test_values_are_checked_unless_told_otherwise() -> None:
    crf, (logits, image) = CRF(3, [SpatialPotential]).eval(), inputs()
    nan = logits.clone()
    nan[0, 0, 0, 0] = torch.nan
    energy, off = crf.energy(logits, image), torch.full_like(logits, 0.5)
    calls = [
        (lambda: crf(nan, image), "NaN or infinity in logits"),
        (lambda: crf(logits, image / 0), "NaN or infinity in image"),
        (lambda: crf(logits, image / 255), "looks normalised"),
        (lambda: project_simplex(nan), "NaN or infinity"),
        (lambda: round_labels(energy, off), "not on the simplex"),
        (lambda: DenseCRF()(logits, image), "probabilities run from"),
    ]
    for checked in (None, True):
        with nullcontext() if checked is None else check_values(True):
            for call, sentence in calls:
                with pytest.raises(ValueError, match=sentence):
                    call()
    with check_values(False):
        for call, sentence in calls:
            call()
            with check_values(True), pytest.raises(ValueError, match=sentence):
                call()
        with pytest.raises(ValueError, match="logits are 8 x 11 but the image is 4 x 11"):
            crf(logits, image[:, :, :4])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("solver", SOLVERS)
def test_cuda_agrees_with_the_cpu(solver: type[Solver]) -> None:
    crf, (logits, image) = random_crf(solver=solver()).double(), inputs()
    expected = crf(logits.double(), image)
    assert torch.allclose(crf.cuda()(logits.double().cuda(), image.cuda()).cpu(), expected, atol=1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_broken_parameter_is_noticed(solver: type[Solver]) -> None:
    crf = CRF(3, solver=solver())
    with torch.no_grad():
        crf.unary.largest_cost.fill_(torch.nan)
    with pytest.raises(ValueError, match="NaN or infinity"):
        crf(*inputs())
