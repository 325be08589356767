"""Both backends give the same numbers where operations are put together, and in processes of any kind."""

import itertools
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import crfgrad
from crfgrad import (
    CRF,
    BilateralPotential,
    DenseCRF,
    GaussianBilateralPotential,
    GaussianSpatialPotential,
    PermutohedralLattice,
    SpatialPotential,
    use_backend,
)
from crfgrad.features import positions_and_colours
from crfgrad.geometry import embedding_matrix, gaussian_taps, key_strides
from crfgrad.kernels import interpolation, matrix, rows
from crfgrad.kernels.embedding import extent
from crfgrad.kernels.parallel import run
from crfgrad.lattice import OwnPart, build_lattice
from crfgrad.ops.rows import project, softmax
from experiments.scene import make_scene
from tests.crfgrad.fields import randomise

BACKENDS = ("torch", "auto")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
DTYPES = list(TOLERANCE)


@pytest.fixture(autouse=True)
def backend() -> None:
    """In place of the fixture that picks one backend: these tests use both."""


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def scene_features(dtype: torch.dtype, sigma_xy: float = 6.0, sigma_value: float = 10.0) -> Tensor:
    """Features of two images, one of them black, where points lie on the faces of simplices."""
    image = torch.stack([make_scene(48, 64)[0], torch.zeros(3, 48, 64)])
    widths = torch.tensor([sigma_xy, sigma_xy, *[sigma_value] * 3])
    return (positions_and_colours(image) / widths).movedim(-1, 1).to(dtype)


def assert_same(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    """The value and all gradients of a function agree, relative to their size."""
    results = {}
    for backend in BACKENDS:
        leaves = [tensor.detach().clone().requires_grad_(tensor.is_floating_point()) for tensor in inputs]
        with use_backend(backend):  # type: ignore[arg-type]
            value = function(*leaves)
            cotangent = torch.randn(value.shape, dtype=value.dtype, generator=torch.Generator().manual_seed(1))
            value.backward(cotangent)
        results[backend] = [value.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]
    assert len(results["torch"]) == len(results["auto"])
    for expected, got in zip(results["torch"], results["auto"], strict=True):
        assert got.dtype == expected.dtype
        assert (got - expected).abs().max() <= TOLERANCE[got.dtype] * expected.abs().max()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [1, 7, 40])
def test_filters(dtype: torch.dtype, channels: int, threads: int) -> None:
    features = scene_features(dtype)
    values, weights = torch.randn(2, channels, 48, 64, dtype=dtype), torch.randn(63, 3, channels, dtype=dtype)
    numbers = torch.tensor(gaussian_taps(5, 1)[1], dtype=dtype)

    def full(features: Tensor, values: Tensor, weights: Tensor) -> Tensor:
        lattice = PermutohedralLattice(features)
        return lattice.slice(lattice.filter(lattice.splat(values), weights))

    def own(features: Tensor, values: Tensor, weights: Tensor) -> Tensor:
        return PermutohedralLattice(features).own_part(values, weights)

    for function in (full, own):
        assert_same(function, features, values, weights)
        assert_same(function, features, values, numbers)
    assert_same(lambda features, values: PermutohedralLattice(features).gaussian(values), features, values)
    assert_same(lambda features, values: PermutohedralLattice(features).gaussian(values, True), features, values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("labels", [2, 21])
def test_bilateral_filters_of_many_labels(labels: int, symmetric: bool, dtype: torch.dtype, threads: int) -> None:
    image = torch.stack([make_scene(20, 30)[0], torch.zeros(3, 20, 30)]).to(dtype)
    q = torch.rand(2, 20, 30, labels, dtype=dtype).softmax(-1)
    potential = randomise(BilateralPotential(labels, sigma_xy=6.0, symmetric=symmetric)).to(dtype)
    for transposed in (False, True):

        def filtered(q: Tensor, image: Tensor, filters: Tensor, transposed: bool = transposed) -> Tensor:
            with torch.nn.utils.stateless._reparametrize_module(potential, {"filters": filters}):
                operator = potential.bind(image)
            return (operator.transpose() if transposed else operator).matmul(q)

        assert_same(filtered, q, image, potential.filters)


@numba.njit
def _multiply_add(parts: Any, left: Any, which: Any, right: Any, out: Any, into: Any) -> None:
    matrix.multiply(parts, left, which, right, out, into, True)


@numba.njit
def _correlate_add(parts: Any, left: Any, which: Any, right: Any, other: Any, out: Any) -> None:
    matrix.correlate(parts, left, which, right, other, out, True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("labels", [1, 8, 21, 24, 43])
def test_matrix_products(dtype: type, labels: int) -> None:
    generator = np.random.default_rng(0)
    count = 30  # no multiple of the rows of a tile
    left, right = (generator.normal(size=shape).astype(dtype) for shape in ((100, labels), (labels, labels)))
    which, into = (generator.permutation(100)[:count].astype(np.int32) for _ in range(2))
    limit = 1e-5 if dtype is np.float32 else 1e-12
    parts = matrix.column_parts(labels, np.dtype(dtype))
    out = np.ones((100, labels), dtype)
    expected = out.copy()
    expected[into] += left[which] @ right
    for part in parts:
        _multiply_add(part, left, which, right, out, into)
    assert np.abs(out - expected).max() <= limit * np.abs(expected).max()
    sides = [generator.normal(size=(100, labels)).astype(dtype) for _ in range(2)]
    out = np.ones((labels, labels), dtype)
    expected = 1 + sides[0][which].T @ sides[1][into]
    for part in parts:
        _correlate_add(part, sides[0], which, sides[1], into, out)
    assert np.abs(out - expected).max() <= limit * np.abs(expected).max()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dimension", [1, 2, 3, 6])
def test_dimensions_and_reaches(dtype: torch.dtype, dimension: int) -> None:
    features = 2 * torch.randn(3, dimension, 50, dtype=dtype)
    for radius in (1, 2):
        values, filtered, found = torch.randn(3, 2, 50, dtype=dtype), [], []
        for backend in BACKENDS:
            with use_backend(backend):  # type: ignore[arg-type]
                lattice = PermutohedralLattice(features, radius)
                weights = torch.randn(lattice.taps, dtype=dtype, generator=torch.Generator().manual_seed(radius))
                filtered.append(lattice.slice(lattice.filter(lattice.splat(values), weights)))
                tensors = lattice.tensors
                found.append([tensors.corners, tensors.order, tensors.entries, tensors.starts])
                found[-1] += [tensors.neighbours(radius), tensors.axes()[0]]
        assert all(torch.equal(*pair) for pair in zip(*found, strict=True))  # vertices have the same numbers
        assert (filtered[0] - filtered[1]).abs().max() <= TOLERANCE[dtype] * filtered[0].abs().max()


@pytest.mark.parametrize("training", [True, False])
def test_the_whole_layer(training: bool, threads: int) -> None:
    image = make_scene(48, 64)[0][None].double()
    logits = 2 * torch.randn(1, 5, 48, 64, dtype=torch.float64)
    crf = CRF(5).double().train(training)
    results = {}
    for backend in BACKENDS:
        crf.zero_grad()
        with use_backend(backend):  # type: ignore[arg-type]
            q = crf(logits, image)
            q.square().sum().backward()
        results[backend] = [q.detach(), *(parameter.grad.clone() for parameter in crf.parameters())]
    for expected, got in zip(*results.values(), strict=True):
        assert (got - expected).abs().max() <= 1e-11 * expected.abs().max()


@pytest.mark.parametrize(("height", "width"), [(24, 32), (2, 2)])
@pytest.mark.parametrize("channels", [0, 1, 3])
@pytest.mark.parametrize("gaussian", [False, True])
def test_backends_may_change_between_binding_solving_and_gradients(
    gaussian: bool, channels: int, height: int, width: int
) -> None:
    image = 100 + 20 * torch.rand(1, max(channels, 1), height, width, dtype=torch.float64)
    image[..., : width // 2] += 50
    image.requires_grad_()
    logits = 2 * torch.randn(1, 5, height, width, dtype=torch.float64)
    spatial, bilateral = SpatialPotential, BilateralPotential
    if gaussian:
        spatial, bilateral = GaussianSpatialPotential, GaussianBilateralPotential  # type: ignore[assignment]
    crf = CRF(5, [spatial, partial(bilateral, image_channels=channels)]).double()
    results = []
    for order in itertools.product(BACKENDS, repeat=3):
        crf.zero_grad()
        image.grad = None
        with use_backend(order[0]):  # type: ignore[arg-type]
            energy = crf.energy(logits, image)
        with use_backend(order[1]):  # type: ignore[arg-type]
            q = crf.solver(energy, crf.initial(logits))
        with use_backend(order[2]):  # type: ignore[arg-type]
            q.square().sum().backward()
        results.append([q.detach(), *(parameter.grad.clone() for parameter in crf.parameters())])
        results[-1] += [] if image.grad is None else [image.grad]
    assert channels == 0 or image.grad.abs().max() > 1e-6
    for other in results[1:]:
        for expected, got in zip(results[0], other, strict=True):
            assert (got - expected).abs().max() <= 1e-11 * expected.abs().max().clamp_min(1e-3)


@pytest.mark.parametrize("count", [1, 5, 200])
@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_either_backend_understands_the_groups_of_the_other(dimension: int, count: int) -> None:
    features = torch.randn(1, count, dimension, dtype=torch.float64)
    values, matrices = torch.randn(count, 3).double(), torch.randn(2**dimension, 3, 3).double()
    results = []
    for first, second in itertools.product(BACKENDS, repeat=2):
        with use_backend(first):  # type: ignore[arg-type]
            own = OwnPart.of(build_lattice(features))
        with use_backend(second):  # type: ignore[arg-type]
            results.append(own.apply(values, matrices))
    assert all(torch.allclose(other, results[0], rtol=0, atol=1e-12) for other in results[1:])


def test_learned_widths_and_the_dense_crf() -> None:
    image = make_scene(48, 64)[0][None].double()
    q = torch.rand(1, 48, 64, 3, dtype=torch.float64).softmax(-1)
    potential = GaussianBilateralPotential(3).double()
    grads = []
    for backend in BACKENDS:
        potential.zero_grad()
        with use_backend(backend):  # type: ignore[arg-type]
            potential.bind(image).matmul(q).square().sum().backward()
        grads.append(potential.log_sigma.grad.clone())  # type: ignore[union-attr]
    assert torch.allclose(*grads, rtol=1e-10)
    assert_same(lambda q: DenseCRF()(q, image), q.movedim(-1, 1))


class Refined(Dataset[Tensor]):
    """A data set whose samples pass through the layer, in the processes of a loader."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        with torch.no_grad():
            return CRF(2).eval()(torch.zeros(1, 2, 40, 60), torch.full((1, 3, 40, 60), 50.0 * index))[0]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_of_a_data_loader(method: str) -> None:
    torch.set_num_threads(2)
    here = [Refined()[i] for i in range(4)]  # so that a forked process inherits a pool of threads
    loader = DataLoader(Refined(), batch_size=None, num_workers=2, multiprocessing_context=method, timeout=100)
    for expected, got in zip(here, loader, strict=True):
        assert torch.allclose(expected, got)
    torch.set_num_threads(1)


def _project_with_threads() -> float:
    """By kernels alone: torch's own threads do not survive a fork."""
    x = np.sin(np.arange(8000.0)).reshape(4000, 2)
    projected = np.empty_like(x)
    torch.set_num_threads(2)
    run(rows._project, len(x), x, 0.0, projected)
    return float(np.square(projected).sum())


def test_a_forked_process_has_threads_of_its_own() -> None:
    expected = _project_with_threads()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(_project_with_threads).get(timeout=100) == pytest.approx(expected)
    torch.set_num_threads(1)


def test_several_python_threads() -> None:
    torch.set_num_threads(2)
    expected = [Refined()[i % 4] for i in range(16)]
    with ThreadPoolExecutor(4) as pool:
        for one, other in zip(expected, pool.map(lambda i: Refined()[i % 4], range(16)), strict=True):
            assert torch.allclose(one, other)
    torch.set_num_threads(1)


def test_compiled_code_is_kept_on_the_disk() -> None:
    code = (
        "from crfgrad import PermutohedralLattice as P; import torch; P(torch.rand(1, 2, 9)).splat(torch.ones(1, 1, 9))"
    )
    code += "; from crfgrad.kernels import interpolation; print(sum(interpolation._scatter.stats.cache_hits.values()))"
    printed = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in "12"]
    assert printed[1].stdout.strip() == "1"
    assert interpolation._scatter.stats.cache_path


def test_compiled_code_follows_its_sources(tmp_path: Path) -> None:
    """Also where only a file has changed that a kernel calls into: numba by itself would not notice."""
    shutil.copytree(Path(crfgrad.__file__).parent, tmp_path / "crfgrad", ignore=shutil.ignore_patterns("__pycache__"))
    code = "import torch; from crfgrad import PermutohedralLattice as P; lattice = P(torch.zeros(1, 1, 4)); "
    code += "print(lattice.filter(torch.ones(lattice.vertices, 2), torch.ones(3, 2, 2)).max().item())"
    command = [sys.executable, "-c", code]
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    run_it = partial(subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, check=True, env=environment)
    before = float(run_it().stdout)
    source = tmp_path / "crfgrad" / "kernels" / "matrix.py"
    changed = source.read_text().replace("        parts.store(target, total)", "        parts.store(target, start[0])")
    assert changed != source.read_text()
    source.write_text(changed)  # nothing is added up any more
    assert before > 0
    assert float(run_it().stdout) == 0


def test_correlated_features_of_many_channels() -> None:
    """Each by itself they would span more cells than keys can tell apart."""
    shared = torch.randint(256, (1, 1, 400)) / 8.0
    features = 0.95 * shared + 0.05 * torch.randint(256, (1, 12, 400)) / 8.0
    ends = extent(features[0].T.contiguous().numpy(), 0, 400)  # (2, d)
    lowest, highest = np.sort(embedding_matrix(12).numpy() * ends[:, None], axis=0).sum(axis=2)
    with pytest.raises(ValueError, match="62-bit keys"):
        key_strides((highest - lowest).tolist(), batch=1, radius=1)
    counts = []
    for backend in BACKENDS:
        with use_backend(backend):  # type: ignore[arg-type]
            counts.append(PermutohedralLattice(features).vertices)
    assert counts[0] == counts[1]


def test_softmax_of_any_type() -> None:
    assert softmax(torch.zeros(2, 0)).shape == (2, 0)
    assert softmax(torch.zeros(1, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_what_is_refused() -> None:
    with (
        pytest.raises(ValueError, match='there is no backend "cuda": use auto, torch'),
        use_backend("cuda"),  # type: ignore[arg-type]
    ):
        pass


def test_kernels_are_for_a_cpu_alone() -> None:
    for backend in BACKENDS:
        with use_backend(backend):  # type: ignore[arg-type]
            elsewhere = project(torch.zeros(2, 3, device="meta"))
        assert (elsewhere.shape, elsewhere.device.type) == ((2, 3), "meta")
