"""Each Triton kernel against the reference: TRITON_INTERPRET=1 pytest tests/crfgrad/gpu/kernels.py, on a GPU without.

Triton decides when it is imported whether it interprets kernels, which it does on a CPU.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from crfgrad import CRF, GaussianBilateralPotential, GaussianSpatialPotential, check_values, use_backend
from crfgrad.geometry import subset_taps
from crfgrad.gpu import launch, vertices
from crfgrad.lattice import Lattice
from crfgrad.ops import chunks, spatial
from crfgrad.ops.registry import ON_GPU
from crfgrad.potentials import bilateral
from tests.crfgrad.gpu.processors import starts
from tests.crfgrad.test_operations import counted, scene, training_step

OPS = torch.ops.crfgrad
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
DTYPES = list(TOLERANCE)
LABELS = [1, 2, 3, 8, 21, 40, 64]
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else str(torch.accelerator.current_accelerator(check_available=True) or "")
if not DEVICE:
    pytest.skip("no GPU: set TRITON_INTERPRET=1 to interpret the kernels", allow_module_level=True)
if INTERPRETED:
    on_triton = torch.library.Library("crfgrad", "IMPL")
    for name, function in ON_GPU.items():
        on_triton.impl(name, function, "CPU", allow_override=True)


@pytest.fixture(autouse=True)
def backend() -> None:
    """In place of the fixture that picks one backend: these tests use both."""


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with torch.device(DEVICE):
        yield


def tuple_of(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def reference(operation: Callable[..., Any], *arguments: Any) -> Any:
    with use_backend("torch"):
        return operation(*arguments)


def assert_close(got: Tensor, expected: Tensor, tolerance: float = 1) -> None:
    """Relative to the size of all numbers."""
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    assert got.is_contiguous()
    assert torch.equal(got.isnan(), expected.isnan())
    limit = tolerance * TOLERANCE.get(got.dtype, 0) * expected.nan_to_num().abs().max()
    assert (got - expected).nan_to_num().abs().max() <= limit


def assert_same(operation: Any, *arguments: Any, tolerance: float = 1) -> None:
    """The reference's numbers, by a kernel."""
    expected = tuple_of(reference(operation, *arguments))
    with starts(lambda kernel: True) as launches:
        found = tuple_of(operation(*arguments))
    assert launches
    for one, true in zip(found, expected, strict=True):
        assert_close(one, true, tolerance)


def randn(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("labels", [1, 2, 21, 64, 150])
def test_rows(dtype: torch.dtype, labels: int) -> None:
    for scale in (1e-5, 1.0, 1e4) if labels == 21 else (1.0,):
        x, g = scale * randn(2, 40, labels, dtype=dtype), randn(2, 40, labels, dtype=dtype)
        x[0, 10:20, labels // 2] = -torch.inf
        x[0, 30, 0] = x[0, 31, -1] = torch.nan
        x[0, 32, 0] = torch.inf
        x[0, 33] = -torch.inf
        x[0, 34] = 1
        excluded = torch.rand(x.shape) < 0.2
        for factor in (1.0, -2.0):
            given = x if factor > 0 else -x
            for mask in (None, excluded):
                assert_same(OPS.simplex_softmax, given, mask, factor)
            p = reference(OPS.simplex_softmax, given, None, factor)
            assert_same(OPS.simplex_softmax_gradient, g, p, factor)
        assert_same(OPS.unary_costs, x, 1e-6, 2.5)
        assert_same(OPS.unary_costs_gradient, g, x, 1e-6, 2.5)
        for leak in (0.0, 0.1):
            for mask in (None, excluded):
                assert_same(OPS.simplex_project, x, None, 0.0, mask, leak)
                assert_same(OPS.simplex_project, x, scale * g, 0.3, mask, leak)
            projected = reference(OPS.simplex_project, x, None, 0.0, None, leak)
            for transposed in (True, False):
                assert_same(OPS.simplex_project_jacobian, g, projected, leak, transposed)
            assert_same(OPS.simplex_project_step_gradients, g, projected, leak, 0.3)


def lattice_of(dimension: int, dtype: torch.dtype = torch.float64, count: int = 15) -> Lattice:
    """Of two images; a quarter of the pixels lie on the faces of simplices."""
    points = 3 * torch.rand(2 * count, dimension, dtype=dtype)
    points[: count // 4] = 0
    return Lattice(*reference(OPS.lattice_build, points, count, 1, False))


def on_vertices(lattice: Lattice, labels: int, dtype: torch.dtype) -> Tensor:
    """Values of vertices, the last of which stands for those that do not exist."""
    return torch.nn.functional.pad(randn(len(lattice.keys), labels, dtype=dtype), (0, 0, 0, 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("labels", [*LABELS, 150])
def test_interpolation(dtype: torch.dtype, labels: int) -> None:
    for dimension in (2, 5) if labels == 3 else (2,):
        lattice = lattice_of(dimension, dtype)
        vertices = on_vertices(lattice, labels, dtype)
        pixels = randn(len(lattice.corners), labels, dtype=dtype)
        rest = lattice.corners, lattice.entries, lattice.sources, lattice.starts
        assert_same(OPS.lattice_slice, vertices, lattice.barycentric, *rest)
        assert_same(OPS.lattice_splat, pixels, lattice.barycentric, *rest)
        assert_same(OPS.lattice_corner_products, pixels, vertices, *rest)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("labels", [*LABELS, 100])
def test_filters_on_vertices(dtype: torch.dtype, labels: int) -> None:
    lattice = lattice_of(5, count=4) if labels == 21 and dtype == torch.float32 else lattice_of(2)
    neighbours = reference(OPS.lattice_neighbours, lattice.keys, lattice.strides, 1)
    x, g = on_vertices(lattice, labels, dtype), on_vertices(lattice, labels, dtype)
    numbers = randn(len(neighbours), dtype=dtype)
    assert_same(OPS.lattice_filter_numbers, x, numbers, neighbours)
    assert_same(OPS.lattice_filter_numbers_transpose, x, numbers, neighbours)
    assert_same(OPS.lattice_filter_numbers_gradient, g, x, neighbours)
    for transposed in (False, True):
        axes = reference(OPS.lattice_axes, lattice.keys, lattice.strides)
        assert_same(OPS.lattice_blur, x, *axes, transposed)
    if dtype == torch.float64:
        return  # which the products are not made for
    for received in {labels, 5} if labels < 40 else {labels}:
        matrices, g = randn(len(neighbours), received, labels, dtype=dtype), on_vertices(lattice, received, dtype)
        assert_same(OPS.lattice_filter, x, matrices, neighbours)
        assert_same(OPS.lattice_filter, x, matrices.transpose(1, 2).contiguous().mT, neighbours)
        assert_same(OPS.lattice_filter_transpose, g, matrices, neighbours)
        assert_same(OPS.lattice_filter_matrices, g, x, neighbours)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("dimension", "size"), [(1, 1), (1, 300), (2, 300), (3, 100), (5, 40), (6, 8)])
def test_lattice(dtype: torch.dtype, dimension: int, size: int, padded: bool) -> None:
    points = randn(2 * size, dimension, dtype=dtype)
    points[0] = 0
    points[size // 2 : size] = 0.5
    built = [Lattice(*make(OPS.lattice_build, points, size, 2, padded)) for make in (reference, called)]
    for name in Lattice._fields:
        got, expected = getattr(built[1], name), getattr(built[0], name)
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected) or (name == "barycentric" and torch.allclose(got, expected, atol=1e-7))
    keys = built[0].keys, built[0].strides
    assert_same(OPS.lattice_neighbours, *keys, 1)
    assert_same(OPS.lattice_axes, *keys)


def called(operation: Callable[..., Any], *arguments: Any) -> Any:
    return operation(*arguments)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_points_that_are_not_finite_are_refused(value: float) -> None:
    points = torch.randn(30, 5)
    points[17, 3] = value
    with pytest.raises(ValueError, match="features hold NaN or infinity"):
        OPS.lattice_build(points, 30, 1, False)


@pytest.mark.parametrize("scale", [1e5, 1e12, 1e35])
def test_points_that_lie_too_far_from_each_other_are_refused(scale: float) -> None:
    points = scale * torch.randn(30, 5)
    for make in (reference, called):
        with pytest.raises(ValueError, match="more than 62-bit keys can tell apart"):
            make(OPS.lattice_build, points, 30, 1, False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dimension", [1, 2, 5, 6])
def test_pairs_of_corners(dtype: torch.dtype, dimension: int) -> None:
    lattice = lattice_of(dimension, dtype, count=50)
    left, right = lattice.barycentric, randn(*lattice.barycentric.shape, dtype=dtype)
    assert_same(OPS.corner_pair_products, left, right, lattice.order)
    grad = randn(len(left), 1 + dimension * (dimension + 1) // 2, dtype=dtype)
    assert_same(OPS.corner_pair_left, grad, right, lattice.order)
    assert_same(OPS.corner_pair_right, grad, left, lattice.order)
    assert_same(OPS.own_part_groups, lattice.order)


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("symmetric", [True, False])
def test_own_part(labels: int, symmetric: bool) -> None:
    dtype = torch.float32
    for dimension in {1, 2} if labels == 3 else {5} if labels == 21 else {3}:
        lattice = lattice_of(dimension, dtype, count=40 if labels == 3 else 10)
        pixels, sets = len(lattice.corners), 2**dimension
        c = reference(OPS.corner_pair_products, lattice.barycentric, lattice.barycentric, lattice.order)
        received = labels if symmetric else labels + 2
        x, g = randn(pixels, labels, dtype=dtype), randn(pixels, received, dtype=dtype)
        w = randn(sets, received, labels, dtype=dtype)
        w = w + w.mT if symmetric else w
        rest = (*reference(OPS.own_part_groups, lattice.order), sets, symmetric)
        assert_same(OPS.own_part_filter, x, c, w, *rest)
        assert_same(OPS.own_part_transpose, g, c, w, *rest)
        assert_same(OPS.own_part_coefficients, g, x, w, *rest)
        assert_same(OPS.own_part_matrices, g, x, c, *rest)
        if received != labels or labels in (1, 8, 40):
            continue
        between = lattice.corners, lattice.entries, lattice.sources, lattice.starts
        v = on_vertices(lattice, labels, dtype)
        for fields in ((None, None), (x, None), (x, g)):
            assert_same(OPS.lattice_receive, v, lattice.barycentric, *between, x, c, w, *rest, *fields)
        none = (None,) * 6
        assert_same(OPS.lattice_receive, v, lattice.barycentric, *between, *none, 0, True, x, g)
        neighbours = reference(OPS.lattice_neighbours, lattice.keys, lattice.strides, 1)
        assert_same(OPS.lattice_message_matrices, v, v.flip(1).contiguous(), neighbours, g, x, c, *rest)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_matrices(symmetric: bool, own: bool) -> None:
    for dimension, labels in ((1, 2), (2, 21)):
        taps = subset_taps(dimension, 1).to(DEVICE)
        filters = randn(2 ** (dimension + 1) - 1, labels, labels, dtype=torch.float32)
        assert_same(OPS.lattice_matrices, filters, taps, 4.5, symmetric, own)
        grad = torch.randn_like(reference(OPS.lattice_matrices, filters, taps, 4.5, symmetric, own))
        assert_same(OPS.lattice_matrices_transpose, grad, taps, 4.5, symmetric, own)


def names_of(kernel: Any) -> set[str]:
    return {kernel.fn.__module__, kernel.fn.__name__}


def elsewhere_than_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bilateral, chunks, spatial):
        monkeypatch.setattr(module, "on_cpu", lambda tensor: False)


@pytest.mark.parametrize("size", [(6, 8), (14, 21)])
def test_a_training_step_is_few_launches_and_one_wait(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what finds vertices and groups is run, for sizes of tensors depend on it."""
    elsewhere_than_on_a_cpu(monkeypatch)
    needed = {vertices.__name__, "_sets"}
    with check_values(False), starts(lambda kernel: not needed.isdisjoint(names_of(kernel))) as launches:
        operations, waits = counted(training_step(CRF(21).to(DEVICE), size))
    print(f"{operations} operations and launches, {len(launches) // 2} of these ours, {waits} waits")
    assert len(launches) // 2 > 50
    assert operations <= 150
    assert waits == 1


@pytest.mark.parametrize("gaussian", [False, True])
def test_a_training_step_has_the_gradients_of_the_reference(gaussian: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere_than_on_a_cpu(monkeypatch)
    potentials = [GaussianSpatialPotential, GaussianBilateralPotential] if gaussian else None
    crf = CRF(5, potentials).to(DEVICE)
    crf.solver.iterations = 2
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    image, logits = scene(32, 48)[:, :, 10:13, 20:24], torch.randn(1, 5, 3, 4)
    found = []
    for backend in ("torch", "auto"):
        crf.zero_grad()
        inputs = logits.clone().requires_grad_(), image.clone().requires_grad_()
        with use_backend(backend), starts(lambda kernel: True) as launches:
            crf(*inputs).square().sum().backward()
        assert bool(launches) == (backend == "auto")
        found.append([one.grad for one in (*inputs, *crf.parameters())])
    for expected, got in zip(*found, strict=True):
        assert torch.allclose(expected, got, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_offsets_beyond_32_bits() -> None:
    """A table of 2^31 numbers, of which memory holds the pages that are written to and no others."""
    labels, corners = 21, 3
    size = 2**31 // labels + 1000
    table = torch.empty(size, labels)
    pixels = torch.randn(5, labels)
    which = size - 1 - torch.arange(5 * corners).int().view(5, corners)
    table[size - 100 :] = torch.randn(100, labels)
    weights = torch.rand(5, corners)
    rest = which, which.flatten(), which.flatten(), torch.tensor([0, 1])
    around = table[which.long()]
    assert torch.allclose(OPS.lattice_slice(table, weights, *rest), (weights[..., None] * around).sum(1), atol=1e-5)
    products = OPS.lattice_corner_products(pixels, table, *rest)
    assert torch.allclose(products, (pixels[:, None] * around).sum(2), atol=1e-4)


def test_indices_outside_of_a_table_read_nothing() -> None:
    table, weights = torch.randn(10, 4), torch.rand(3, 3)
    which = torch.tensor([[0, -1, 10], [2**31 - 1, -(2**31), 3], [1, 2, 3]]).int()
    rest = which, which.flatten(), which.flatten(), torch.tensor([0, 1])
    inside = (which >= 0) & (which < 10)
    expected = (torch.where(inside, weights, 0)[..., None] * table[which.long().clamp(0, 9)]).sum(1)
    assert torch.allclose(OPS.lattice_slice(table, weights, *rest), expected, atol=1e-6)


def test_products_are_rounded_as_torch_rounds_its_own() -> None:
    settings = torch.backends.cuda.matmul
    assert launch.precision() == "ieee"
    settings.allow_tf32 = True
    assert launch.precision() == "tf32"
    settings.allow_tf32 = False
    assert launch.precision() == "ieee"
    settings.fp32_precision = "tf32"
    assert launch.precision() == "tf32"
    settings.fp32_precision = "ieee"
    assert launch.precision() == "ieee"


def test_every_kernel_has_a_test() -> None:
    source = Path(__file__).read_text()
    assert len(ON_GPU) > 25
    assert not [name for name in ON_GPU if not re.search(rf"OPS\.{name}\b", source)]
