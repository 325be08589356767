"""Every operation: what torch demands of one, gradients of gradients, and how many calls and waits a device sees."""

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.profiler_util import FunctionEvent
from torch.library import opcheck
from torch.profiler import ProfilerActivity, profile

from crfgrad import (
    CRF,
    BilateralPotential,
    GaussianBilateralPotential,
    GaussianSpatialPotential,
    SpatialPotential,
    check_values,
    use_backend,
)
from crfgrad.geometry import subset_taps
from crfgrad.lattice import Lattice, OwnPart, build_lattice
from crfgrad.operators import LatticeFilter
from crfgrad.ops import chunks, rows, spatial, taps
from crfgrad.ops.filters import matrices
from crfgrad.ops.lattice import check_size
from crfgrad.ops.spatial import SpatialKernel
from experiments.scene import make_scene
from tests.crfgrad.fields import randomise

OPERATIONS = torch.ops.crfgrad
DTYPES = [torch.float32, torch.float64]


def lattice(dtype: torch.dtype, dimension: int = 2, count: int = 20, size: int = 10) -> Lattice:
    points = 2 * torch.randn(count // size, size, dimension, dtype=dtype)
    return build_lattice(points)


def random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype)


def samples(dtype: torch.dtype) -> dict[str, list[tuple[object, ...]]]:
    """Arguments of each operation."""
    some = partial(random, dtype=dtype)
    found, solid = lattice(dtype), lattice(dtype, dimension=3)
    vertices, pixels, weights = some(len(found.keys) + 1, 3), some(20, 3), found.barycentric
    between = found.corners, found.entries, found.sources, found.starts
    neighbours = found.neighbours(1)
    matrices = some(7, 4, 3)
    own = OwnPart.of(found)
    groups = own.pixels, own.starts, own.sets
    own_taps = subset_taps(2, 1)
    kernels = [some(3, 3, 5, 5), some(1, 1, 9, 9), some(3, 3, 9, 9), some(3, 3, 1, 15)]
    spectra = [(OPERATIONS.spatial_spectrum(kernel, list(kernel.shape)), list(kernel.shape)) for kernel in kernels]
    field, excluded = some(2, 6, 7, 3), torch.rand(2, 6, 7, 3) < 0.2
    excluded[..., 0] = False
    projected = OPERATIONS.simplex_project(field, None, 0.0, None, 0.1)
    return {
        "lattice_build": [
            (some(20, dimension), 10, radius, radius > 1) for dimension, radius in ((1, 1), (2, 2), (5, 1))
        ],
        "lattice_neighbours": [(found.keys, found.strides, 1)],
        "lattice_axes": [(found.keys, found.strides)],
        "lattice_embed": [(some(20, dimension),) for dimension in (1, 5)],
        "lattice_embed_transpose": [(some(20, dimension),) for dimension in (1, 5)],
        "lattice_slice": [(vertices, weights, *between)],
        "lattice_slice_onto": [(pixels, vertices, weights, *between)],
        "lattice_splat": [(pixels, weights, *between)],
        "lattice_corner_products": [(pixels, vertices, *between)],
        "lattice_filter": [(vertices, matrices, neighbours)],
        "lattice_filter_transpose": [(some(len(vertices), 4), matrices, neighbours)],
        "lattice_filter_matrices": [(some(len(vertices), 4), vertices, neighbours)],
        "lattice_filter_numbers": [(vertices, some(7), neighbours)],
        "lattice_filter_numbers_transpose": [(vertices, some(7), neighbours)],
        "lattice_filter_numbers_gradient": [(vertices, some(len(vertices), 3), neighbours)],
        "lattice_blur": [(vertices, *found.axes(), transposed) for transposed in (False, True)],
        "corner_pair_products": [(weights, weights, found.order)],
        "corner_pair_left": [(own.coefficients, weights, found.order)],
        "corner_pair_right": [(own.coefficients, weights, found.order)],
        "own_part_groups": [(found.order,), (solid.order,)],
        "own_part_filter": [(pixels, own.coefficients, some(4, 2, 3), *groups, 4, False)],
        "own_part_transpose": [(some(20, 2), own.coefficients, some(4, 2, 3), *groups, 4, False)],
        "own_part_coefficients": [(some(20, 2), pixels, some(4, 2, 3), *groups, 4, False)],
        "own_part_matrices": [(pixels, some(20, 3), own.coefficients, *groups, 4, flag) for flag in (False, True)],
        "lattice_receive": [
            (vertices, weights, *between, pixels, own.coefficients, some(4, 3, 3), *groups, 4, False, pixels, None),
            (vertices, weights, *between, None, None, None, None, None, None, 0, True, pixels, some(20, 3)),
        ],
        "lattice_message_matrices": [
            (vertices, vertices, neighbours, pixels, pixels, own.coefficients, *groups, 4, flag)
            for flag in (False, True)
        ],
        "lattice_matrices": [(some(7, 3, 3), own_taps, 4.5, *flags) for flags in product((False, True), repeat=2)],
        "lattice_matrices_transpose": [
            (some(7 + 4 * own, 3, 3), own_taps, 4.5, symmetric, own)
            for symmetric, own in product((False, True), repeat=2)
        ],
        "spatial_convolve": [(field, kernel, list(kernel.shape)) for kernel in kernels],
        "spatial_convolve_transpose": [(field, kernel, list(kernel.shape)) for kernel in kernels],
        "spatial_convolve_kernel": [(field, some(2, 6, 7, 3), list(kernel.shape)) for kernel in kernels],
        "spatial_spectral": [(field, *one) for one in spectra],
        "spatial_spectral_transpose": [(field, *one) for one in spectra],
        "spatial_spectral_kernel": [(field, some(2, 6, 7, 3), list(kernel.shape)) for kernel in kernels],
        "spatial_spectrum": [(kernel, list(kernel.shape)) for kernel in kernels],
        "spatial_spectrum_transpose": spectra,
        "simplex_project": [(field, None, 0.0, None, 0.1), (field, some(2, 6, 7, 3), 0.5, excluded, 0.0)],
        "simplex_project_jacobian": [(field, projected, 0.1, transposed) for transposed in (False, True)],
        "simplex_project_step_gradients": [(field, projected, 0.1, 0.5)],
        "unary_costs": [(field, 1e-6, 2.5)],
        "unary_costs_gradient": [(field, some(2, 6, 7, 3), 1e-6, 2.5)],
        "simplex_softmax": [(field, None, 1.0), (field, excluded, -2.0)],
        "simplex_softmax_gradient": [(field, field.softmax(-1), 2.0)],
    }


NAMES = sorted(samples(torch.float32))


def test_samples_are_of_all_operations() -> None:
    defined = {name.split("::")[1] for name in torch._C._dispatch_get_all_op_names() if name.startswith("crfgrad::")}
    assert defined == set(NAMES)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_what_torch_demands_of_an_operation(name: str, dtype: torch.dtype) -> None:
    """Schema, shapes while tracing, and tracing with sizes that are not known."""
    for arguments in samples(dtype)[name]:
        opcheck(getattr(OPERATIONS, name), arguments)


def differentiable(*shape: int) -> Tensor:
    return random(*shape).requires_grad_()


def gradient_cases() -> dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]]:
    found = lattice(torch.float64, count=6, size=3)
    vertices = len(found.keys)
    neighbours, axes = found.neighbours(1), found.axes()

    def on_vertices(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The values of vertices that exist are free, that of the one for all others is 0."""
        return lambda x, *others: function(torch.nn.functional.pad(x, (0, 0, 0, 1)), *others)[:vertices]

    own, solid = OwnPart.of(found), lattice(torch.float64, dimension=3, count=6, size=3)

    def weighted(function: Callable[[Lattice, Tensor], Tensor]) -> Callable[..., Tensor]:
        return lambda values, weights: function(found._replace(barycentric=weights), values)

    def own_part_of(found: Lattice) -> Callable[..., Tensor]:
        def apply(values: Tensor, weights: Tensor, matrices: Tensor) -> Tensor:
            return OwnPart.of(found._replace(barycentric=weights)).apply(values, matrices)

        return apply

    def symmetric_own_part(values: Tensor, matrices: Tensor) -> Tensor:
        return own.apply(values, matrices + matrices.mT, symmetric=True)

    def filtered(values: Tensor, kernel: Tensor) -> Tensor:
        filters = SpatialKernel.of(kernel)
        return filters.apply(values) + 3 * filters.apply(values, transposed=True)

    def message(own: bool, symmetric: bool) -> Callable[..., Tensor]:
        def apply(q: Tensor, weights: Tensor, matrices: Tensor, *added: Tensor) -> Tensor:
            weighted = found._replace(barycentric=weights)
            matrices = (
                matrices + torch.cat([taps.opposite_taps(matrices[:7]), matrices[7:]]).mT if symmetric else matrices
            )
            part = OwnPart.of(weighted) if own else None
            return LatticeFilter(weighted, neighbours, matrices, symmetric, part).add_to(added, q)

        return apply

    weights = found.barycentric.detach().requires_grad_()
    return {
        "message": (message(False, False), (differentiable(6, 2), weights, differentiable(7, 2, 2))),
        "message with an own part": (
            message(True, False),
            (differentiable(6, 2), weights, differentiable(11, 2, 2), *(differentiable(6, 2) for _ in range(3))),
        ),
        "symmetric message": (
            message(True, True),
            (differentiable(6, 2), weights, differentiable(11, 2, 2), differentiable(6, 2)),
        ),
        "matrices": (
            lambda filters: matrices(filters, subset_taps(2, 1), 4.5, True, True),
            (differentiable(7, 2, 2),),
        ),
        "costs": (lambda x: rows.costs(x, 1e-2, 2.5), (differentiable(5, 4),)),
        "slice": (weighted(Lattice.slice), (differentiable(vertices + 1, 2), weights)),
        "splat": (weighted(Lattice.splat), (differentiable(6, 2), weights)),
        "filter": (
            on_vertices(lambda x, w: taps.filter_matrices(x, w, neighbours)),
            (differentiable(vertices, 2), differentiable(7, 3, 2)),
        ),
        "filter of numbers": (
            on_vertices(lambda x, w: taps.filter_numbers(x, w, neighbours)),
            (differentiable(vertices, 2), differentiable(7)),
        ),
        "blur": (
            on_vertices(lambda x: taps.blur(x, *axes, False) - 3 * taps.blur(x, *axes, True)),
            (differentiable(vertices, 2),),
        ),
        "own part": (own_part_of(found), (differentiable(6, 2), weights, differentiable(4, 2, 2))),
        "own part of 3 axes": (
            own_part_of(solid),
            (differentiable(6, 2), solid.barycentric.detach().requires_grad_(), differentiable(8, 2, 2)),
        ),
        "symmetric own part": (symmetric_own_part, (differentiable(6, 2), differentiable(4, 2, 2))),
        "spatial filter": (filtered, (differentiable(1, 4, 3, 2), differentiable(2, 2, 3, 3))),
        "wide spatial filter": (filtered, (differentiable(1, 4, 3, 1), differentiable(1, 1, 7, 7))),
        "spatial filter of each label": (filtered, (differentiable(1, 4, 3, 2), differentiable(1, 1, 3, 3))),
        "projection": (lambda x: rows.project(x, leak=0.1), (differentiable(5, 4),)),
        "projection of a step": (
            lambda x, g: rows.project_step(x, g, 0.5),
            (differentiable(5, 4), differentiable(5, 4)),
        ),
        "softmax": (lambda x: rows.softmax(x, factor=-2.0), (differentiable(5, 4),)),
    }


@pytest.mark.parametrize("name", sorted(gradient_cases()))
def test_gradients_and_theirs(name: str) -> None:
    function, inputs = gradient_cases()[name]
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


def test_gradients_of_the_gradients_of_a_whole_layer() -> None:
    potentials = [SpatialPotential(2, radius=1), BilateralPotential(2, sigma_xy=3.0, image_channels=1)]
    crf = CRF(2, [randomise(potential) for potential in potentials]).double()
    crf.solver.iterations = 2
    image = 40 * torch.rand(1, 1, 2, 3, dtype=torch.float64)
    parameters = dict(crf.named_parameters())

    def apply(logits: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(crf, dict(zip(parameters, values, strict=True)), (logits, image))

    logits = torch.randn(1, 2, 2, 3, dtype=torch.float64, requires_grad=True)
    assert gradgradcheck(apply, (logits, *(p.detach().requires_grad_() for p in parameters.values())))


def scene(height: int, width: int) -> Tensor:
    """An image (1, 3, H, W)."""
    device = torch.get_default_device()
    with torch.device("cpu"):
        return make_scene(height, width)[0][None].float().to(device)


def training_step(crf: CRF, size: tuple[int, int] = (96, 128)) -> Callable[[], None]:
    logits = torch.randn(1, crf.num_classes, *size, requires_grad=True)
    image, cotangent = scene(*size), torch.randn(logits.shape)

    def run() -> None:
        crf(logits, image).backward(cotangent)

    return run


NOT_WORK = """view as_strided t transpose permute expand unsqueeze squeeze select slice reshape _reshape_alias
    _unsafe_view unflatten flatten detach alias movedim unbind split narrow view_as unfold chunk numpy_T mT diagonal
    resolve_conj resolve_neg as_strided_ unsqueeze_ squeeze_ to result_type promote_types lift_fresh detach_ can_cast
    meshgrid empty empty_like empty_strided new_empty resize_ set_ new_empty_strided""".split()
"""Views, allocations, and calls that do nothing by themselves."""
WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::_unique2", "aten::unique_consecutive", "aten::equal"}


LAUNCH = "launch of a kernel"


def counted(run: Callable[[], None]) -> tuple[int, int]:
    """Operations and waits of the host for the device, inside of our operations too, and launches of kernels."""

    def works(event: FunctionEvent) -> bool:
        name = event.name.removeprefix("aten::")
        return event.name == LAUNCH or (name != event.name and name not in NOT_WORK)

    def has_parts(event: FunctionEvent) -> bool:
        return event.name != LAUNCH and any(works(child) or has_parts(child) for child in event.cpu_children)

    def launched(event: FunctionEvent) -> bool:
        above = event.cpu_parent
        return above is not None and (above.name == LAUNCH or launched(above))

    run()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        run()
    found = profiled.events()
    assert found is not None
    events = [event for event in found if not launched(event)]
    leaves = [event for event in events if works(event) and not has_parts(event)]
    return len(leaves), sum(event.name in WAITS for event in events)


def test_a_training_step_of_the_reference_is_few_calls_and_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (chunks, spatial):  # as elsewhere than on a CPU, where calls are dear
        monkeypatch.setattr(module, "on_cpu", lambda tensor: False)
    with use_backend("torch"), check_values(False):
        operations, waits = counted(training_step(CRF(21)))
    print(f"{operations} operations, {waits} waits")
    assert operations <= 500
    assert waits == 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("gaussian", [False, True])
def test_two_runs_give_the_same_bits(gaussian: bool, threads: int) -> None:
    crf = CRF(5, [GaussianSpatialPotential, GaussianBilateralPotential] if gaussian else None)
    grads, before = [], torch.get_num_threads()
    torch.set_num_threads(threads)
    for _ in range(2):
        crf.zero_grad()
        torch.manual_seed(0)
        training_step(crf, (30, 40))()
        grads.append([parameter.grad.clone() for parameter in crf.parameters() if parameter.grad is not None])
    torch.set_num_threads(before)
    assert all(torch.equal(*pair) for pair in zip(*grads, strict=True))


def test_more_corners_than_there_are_numbers_for_are_refused() -> None:
    check_size(2**31 // 6, 5)
    with pytest.raises(ValueError, match="too many corners for 32-bit numbers: split the batch"):
        check_size(2**31 // 6 + 1, 5)
