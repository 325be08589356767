"""Each Triton kernel against the reference, by Triton's interpreter: pytest tests/crfgrad/gpu/interpreted.py."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from crfgrad import use_backend
from crfgrad.lattice import Lattice
from crfgrad.ops.registry import ON_GPU

OPS = torch.ops.crfgrad
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
DTYPES = list(TOLERANCE)
LABELS = [1, 2, 3, 8, 21, 40]
on_triton = torch.library.Library("crfgrad", "IMPL")
for name, function in ON_GPU.items():
    on_triton.impl(name, function, "CPU", allow_override=True)


@pytest.fixture(autouse=True)
def backend() -> None:
    """In place of the fixture that picks one backend: these tests use both."""


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
    """The reference's numbers."""
    expected = tuple_of(reference(operation, *arguments))
    for one, true in zip(tuple_of(operation(*arguments)), expected, strict=True):
        assert_close(one, true, tolerance)


def randn(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("labels", [*LABELS, 150])
def test_rows(dtype: torch.dtype, labels: int) -> None:
    for scale in (1e-5, 1.0, 1e4) if labels == 21 else (1.0,):
        x, g = scale * randn(2, 50, labels, dtype=dtype), randn(2, 50, labels, dtype=dtype)
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
    for dimension in (2, 5) if labels == 3 else (5,):
        lattice = lattice_of(dimension, dtype)
        vertices = on_vertices(lattice, labels, dtype)
        pixels = randn(len(lattice.corners), labels, dtype=dtype)
        rest = lattice.corners, lattice.entries, lattice.sources, lattice.starts
        assert_same(OPS.lattice_slice, vertices, lattice.barycentric, *rest)
        assert_same(OPS.lattice_splat, pixels, lattice.barycentric, *rest)
        assert_same(OPS.lattice_corner_products, pixels, vertices, *rest)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("labels", [*LABELS, 64, 100])
def test_filters_on_vertices(dtype: torch.dtype, labels: int) -> None:
    lattice = lattice_of(5 if labels == 21 else 3)
    neighbours = reference(OPS.lattice_neighbours, lattice.keys, lattice.strides, 1)
    x, g = on_vertices(lattice, labels, dtype), on_vertices(lattice, labels, dtype)
    numbers = randn(len(neighbours), dtype=dtype)
    assert_same(OPS.lattice_filter_numbers, x, numbers, neighbours)
    assert_same(OPS.lattice_filter_numbers_transpose, x, numbers, neighbours)
    assert_same(OPS.lattice_filter_numbers_gradient, g, x, neighbours)
    for transposed in (False, True):
        axes = reference(OPS.lattice_axes, lattice.keys, lattice.strides)
        assert_same(OPS.lattice_blur, x, *axes, transposed)
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


@pytest.mark.parametrize("labels", [1, 2, 3, 8, 21, 40])
@pytest.mark.parametrize("symmetric", [True, False])
def test_own_part(labels: int, symmetric: bool) -> None:
    dtype = torch.float32
    for dimension in {1, 2} if labels == 3 else {5} if labels == 21 else {3}:
        lattice = lattice_of(dimension, dtype, count=40)
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
