"""Each operation has a compiled twin for the CPU: the same numbers as the reference, whatever the number of threads."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from crfgrad import use_backend
from crfgrad.kernels import spectra
from crfgrad.lattice import Lattice
from crfgrad.ops import own_part
from crfgrad.ops import spectra as plain
from crfgrad.ops.lattice import PADDED

OPS = torch.ops.crfgrad
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
DTYPES = list(TOLERANCE)
LABELS = [1, 2, 3, 8, 21, 40]
DIMENSIONS = [1, 2, 3, 5, 6]


@pytest.fixture(autouse=True)
def backend() -> None:
    """In place of the fixture that picks one backend: these tests use both."""


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def tuple_of(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def compiled(operation: Any, *arguments: Any, threads: int = 1) -> Any:
    torch.set_num_threads(threads)
    with use_backend("auto"):
        return operation(*arguments)


def reference(operation: Any, *arguments: Any) -> Any:
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


def assert_same(operation: Any, *arguments: Any, added: bool = False, tolerance: float = 1) -> None:
    """The reference's numbers, by one thread and by two: bit for bit, unless the threads' parts are added up."""
    expected = tuple_of(reference(operation, *arguments))
    alone = tuple_of(compiled(operation, *arguments))
    together = tuple_of(compiled(operation, *arguments, threads=2))
    for one, two, true in zip(alone, together, expected, strict=True):
        assert_close(one, true, tolerance)
        if added:
            assert_close(two, true, tolerance)
        else:
            assert torch.allclose(one, two, rtol=0, atol=0, equal_nan=one.is_floating_point())


def lattice_of(dimension: int, dtype: torch.dtype = torch.float64, count: int = 2500) -> Lattice:
    points = 3 * torch.rand(2 * count, dimension, dtype=dtype)
    points[: count // 4] = 0  # on the faces of simplices
    return Lattice(*reference(OPS.lattice_build, points, count, 1, False))


def randn(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=dtype)


def on_vertices(lattice: Lattice, labels: int, dtype: torch.dtype) -> Tensor:
    """Values of vertices, the last of which stands for those that do not exist."""
    return torch.nn.functional.pad(randn(len(lattice.keys), labels, dtype=dtype), (0, 0, 0, 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dimension", "size"), [(1, 1), (1, 40000), (2, 40000), (3, 40000), (5, 17000), (6, 2000)])
@pytest.mark.parametrize("padded", [False, True])
def test_lattice(dtype: torch.dtype, dimension: int, size: int, padded: bool) -> None:
    points = randn(2 * size, dimension, dtype=dtype)
    points[0] = 0
    built = [Lattice(*reference(OPS.lattice_build, points, size, 2, padded))]
    built += [Lattice(*compiled(OPS.lattice_build, points, size, 2, padded, threads=threads)) for threads in (1, 2)]
    for other in built[1:]:
        for name in ("corners", "order", "entries", "sources", "starts"):
            assert torch.equal(getattr(other, name), getattr(built[0], name))
        assert_close(other.barycentric, built[0].barycentric)
        assert torch.equal(other.keys, built[1].keys)
        assert len(other.keys) == len(built[0].keys)
        assert (other.keys[other.keys < PADDED].diff() > 0).all()
    for lattice in built[:2]:  # keys are numbers of another kind
        for radius in (1, 2) if dimension < 5 else (1,):
            assert_same(OPS.lattice_neighbours, lattice.keys, lattice.strides, radius)
        for threads in (1, 2):
            axes, paths, linked = compiled(OPS.lattice_axes, lattice.keys, lattice.strides, threads=threads)
            assert torch.equal(axes, reference(OPS.lattice_axes, lattice.keys, lattice.strides)[0])
            every = torch.arange(axes.shape[1], dtype=torch.int32)
            assert torch.equal(torch.where(paths < 0, ~paths, paths).sort(1).values, every.expand_as(paths))
            alone = (axes.unflatten(0, (-1, 2)) == len(lattice.keys)).all(1)
            assert torch.equal(linked, (~alone).sum(1).int())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("known", [True, False])
def test_blur(dtype: torch.dtype, labels: int, known: bool) -> None:
    lattice = lattice_of(5)
    axes = (compiled if known else reference)(OPS.lattice_axes, lattice.keys, lattice.strides)
    for transposed in (False, True):
        assert_same(OPS.lattice_blur, on_vertices(lattice, labels, dtype), *axes, transposed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("labels", [*LABELS, 100])
def test_interpolation(dtype: torch.dtype, labels: int) -> None:
    for dimension in (2, 5) if labels == 3 else (5,):
        lattice = lattice_of(dimension, dtype)
        vertices = on_vertices(lattice, labels, dtype)
        pixels = randn(len(lattice.corners), labels, dtype=dtype)
        rest = lattice.corners, lattice.entries, lattice.sources, lattice.starts
        assert_same(OPS.lattice_slice, vertices, lattice.barycentric, *rest)
        assert_same(OPS.lattice_slice_onto, pixels, vertices, lattice.barycentric, *rest)
        assert_same(OPS.lattice_splat, pixels, lattice.barycentric, *rest)
        assert_same(OPS.lattice_corner_products, pixels, vertices, *rest)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("labels", [*LABELS, 100])
def test_filters_on_vertices(dtype: torch.dtype, labels: int) -> None:
    lattice = lattice_of(3 if labels > 40 else 5, count=1200)
    neighbours = reference(OPS.lattice_neighbours, lattice.keys, lattice.strides, 1)
    x, g = on_vertices(lattice, labels, dtype), on_vertices(lattice, labels, dtype)
    numbers = randn(len(neighbours), dtype=dtype)
    assert_same(OPS.lattice_filter_numbers, x, numbers, neighbours)
    assert_same(OPS.lattice_filter_numbers_transpose, x, numbers, neighbours)
    assert_same(OPS.lattice_filter_numbers_gradient, g, x, neighbours, added=True)
    for received in {labels, 5} if labels < 40 else {labels}:
        matrices, g = randn(len(neighbours), received, labels, dtype=dtype), on_vertices(lattice, received, dtype)
        assert_same(OPS.lattice_filter, x, matrices, neighbours)
        assert_same(OPS.lattice_filter_transpose, g, matrices, neighbours)
        assert_same(OPS.lattice_filter_matrices, g, x, neighbours, added=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_pairs_of_corners(dtype: torch.dtype, dimension: int) -> None:
    lattice = lattice_of(dimension, dtype)
    left, right = lattice.barycentric, randn(*lattice.barycentric.shape, dtype=dtype)
    assert_same(OPS.corner_pair_products, left, right, lattice.order)
    grad = randn(len(left), 1 + dimension * (dimension + 1) // 2, dtype=dtype)
    assert_same(OPS.corner_pair_left, grad, right, lattice.order)
    assert_same(OPS.corner_pair_right, grad, left, lattice.order)


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_groups_of_the_own_part(dimension: int) -> None:
    order = lattice_of(dimension, count=70000).order
    expected = reference(OPS.own_part_groups, order)
    for threads in (1, 2):
        groups = compiled(OPS.own_part_groups, order, threads=threads)
        assert [one.dtype for one in groups] == [one.dtype for one in expected]
        assert torch.equal(own_part.places_of(*groups), own_part.places_of(*expected))
        assert torch.equal(groups[0].sort().values, expected[0])
        assert len(groups[2]) < len(order) / 10


def test_orders_of_many_axes() -> None:
    order = torch.rand(100, 15).argsort(1).to(torch.int8)
    expected = own_part.places_of(*reference(OPS.own_part_groups, order))
    assert torch.equal(own_part.places_of(*compiled(OPS.own_part_groups, order)), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("symmetric", [True, False])
def test_own_part(dtype: torch.dtype, labels: int, symmetric: bool) -> None:
    for dimension in DIMENSIONS if labels == 3 else (5,):
        lattice = lattice_of(dimension, dtype, count=1100)
        pixels, sets = len(lattice.corners), 2**dimension
        c = reference(OPS.corner_pair_products, lattice.barycentric, lattice.barycentric, lattice.order)
        received = labels if symmetric or dimension == 3 else labels + 2
        x, g = randn(pixels, labels, dtype=dtype), randn(pixels, received, dtype=dtype)
        w = randn(sets, received, labels, dtype=dtype)
        w = w + w.mT if symmetric else w
        for which in (reference, compiled):
            rest = (*which(OPS.own_part_groups, lattice.order), sets, symmetric)
            assert_same(OPS.own_part_filter, x, c, w, *rest)
            assert_same(OPS.own_part_transpose, g, c, w, *rest)
            assert_same(OPS.own_part_coefficients, g, x, w, *rest)
            assert_same(OPS.own_part_matrices, g, x, c, *rest, added=True)


SIZES = {1: (700,), 2: (70, 90), 3: (17, 20, 30)}
KERNELS = [(9,), (33,), (131,), (3, 3), (9, 9), (7, 15), (15, 1), (65, 5), (5, 5, 5), (3, 7, 3)]
WIDEST = 129  # of the kernels whose spectra are compiled


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("size", KERNELS, ids=str)
def test_spatial_filters(dtype: torch.dtype, alone: bool, size: tuple[int, ...]) -> None:
    check_spatial_filter(3, dtype, alone, size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("labels", [label for label in LABELS if label != 3])
def test_labels_of_spatial_filters(dtype: torch.dtype, labels: int) -> None:
    check_spatial_filter(labels, dtype, False, (9, 9))


def check_spatial_filter(labels: int, dtype: torch.dtype, alone: bool, size: tuple[int, ...]) -> None:
    kernel = randn(*(1, 1) if alone else (labels, labels), *size, dtype=dtype)
    q, g = (randn(2, *SIZES[len(size)], labels, dtype=dtype) for _ in range(2))
    shape = list(kernel.shape)
    by_torch = max(size) > WIDEST  # whose sums depend on the threads
    spectrum = OPS.spatial_spectrum(kernel, shape)
    assert_same(OPS.spatial_spectrum, kernel, shape, added=by_torch)
    assert_same(OPS.spatial_spectrum_transpose, torch.randn_like(spectrum), shape, added=by_torch)
    assert_same(OPS.spatial_spectral, q, spectrum, shape, added=by_torch, tolerance=3)
    assert_same(OPS.spatial_spectral_transpose, g, spectrum, shape, added=by_torch, tolerance=3)
    assert_same(OPS.spatial_spectral_kernel, g, q, shape, added=by_torch, tolerance=3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", KERNELS, ids=str)
def test_spectra(dtype: torch.dtype, size: tuple[int, ...]) -> None:
    kernel, q = randn(3, 2, *size, dtype=dtype), randn(2, *SIZES[len(size)], 2, dtype=dtype)
    shape, sizes = list(q.shape[:-1]), list(size)
    tiles, matrices = plain.analyse(q, sizes), plain.transform(kernel)
    products = plain.product(tiles, matrices)
    for name, arguments in {
        "analyse": (q, sizes),
        "analyse_transpose": (tiles, shape, sizes),
        "synthesise": (tiles, shape, sizes),
        "synthesise_transpose": (q, sizes),
        "transform": (kernel,),
        "transform_transpose": (matrices, list(kernel.shape)),
        "product": (tiles, matrices),
        "product_field": (products, matrices),
        "product_kernel": (products, tiles),
    }.items():
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert_close(getattr(spectra, name)(*arguments), getattr(plain, name)(*arguments).contiguous())


SCALES = (1e-5, 1.0, 1e4)


def rows_of(labels: int, dtype: torch.dtype, scale: float) -> Tensor:
    """Rows of which some have an entry of minus infinity, or nothing else, or infinity or NaN."""
    x = scale * randn(3, 1000, labels, dtype=dtype)
    x[0, 100:200, labels // 2] = -torch.inf
    x[0, 300, 0] = x[0, 301, -1] = torch.nan
    x[0, 302, 0] = torch.inf
    x[0, 303] = -torch.inf
    x[0, 304] = 1
    return x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("labels", [*LABELS, 150])
def test_rows(dtype: torch.dtype, labels: int) -> None:
    for scale in SCALES:
        x, g = rows_of(labels, dtype, scale), randn(3, 1000, labels, dtype=dtype)
        excluded = torch.rand(x.shape) < 0.2
        for factor in (1.0, -2.0):
            given = x if factor > 0 else -x
            for mask in (None, excluded):
                assert_same(OPS.simplex_softmax, given, mask, factor)
            p = reference(OPS.simplex_softmax, given, None, factor)
            assert_same(OPS.simplex_softmax_gradient, g, p, factor)
        for leak in (0.0, 0.1):
            for mask in (None, excluded):
                assert_same(OPS.simplex_project, x, None, 0.0, mask, leak)
                assert_same(OPS.simplex_project, x, scale * g, 0.3, mask, leak)
            projected = reference(OPS.simplex_project, x, None, 0.0, None, leak)
            for transposed in (True, False):
                assert_same(OPS.simplex_project_jacobian, g, projected, leak, transposed)


def test_what_is_on_the_simplex_already() -> None:
    """Where rounding decides what belongs to the support."""
    for dtype in DTYPES:
        q = (5 * randn(2000, 21, dtype=dtype)).softmax(1)
        for function in (reference, compiled):
            assert torch.allclose(function(OPS.simplex_project, q, None, 0.0, None, 0.0), q, atol=1e-6)


def test_a_processor_without_wide_registers() -> None:
    """Vectors of 16 bytes are what all have: some tests once more, with code for any processor."""
    names = [
        "test_own_part[True-21-dtype0]",
        "test_filters_on_vertices[21-dtype0]",
        "test_interpolation[21-dtype0]",
        "test_rows[21-dtype0]",
        "test_spatial_filters[(9, 9)-False-dtype0]",
    ]
    chosen = [f"{__file__}::{name}" for name in names]
    code = "import pytest, sys; from crfgrad.kernels.vectors import REGISTER; assert REGISTER == 16; "
    code += f"sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', *{chosen}]))"
    environment = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


WITHOUT_TWINS = (
    "spatial_convolve",
    "lattice_embed",
    "lattice_receive",
    "lattice_message",
    "lattice_matrices",
    "simplex_project_step",
    "unary_costs",
)


def test_every_operation_has_a_test() -> None:
    source = Path(__file__).read_text()
    names = {name.removeprefix("crfgrad::") for name in torch._C._dispatch_get_all_op_names() if "crfgrad::" in name}
    twins = {name for name in names if not name.startswith(WITHOUT_TWINS)}
    assert twins
    assert not [name for name in twins if not re.search(rf"OPS\.{name}\b", source)]
