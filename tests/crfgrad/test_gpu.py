"""What can be shown of the kernels for GPUs without one: their numbers, their code for several processors, shapes."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from crfgrad.features import positions_and_colours
from crfgrad.geometry import gaussian_taps
from crfgrad.lattice import build_lattice
from crfgrad.ops import taps
from crfgrad.ops.lattice import padded_count
from experiments.scene import make_scene

triton = pytest.importorskip("triton")

FOLDER = Path(__file__).parent / "gpu"


@pytest.fixture(autouse=True)
def backend() -> None:
    """In place of the fixture that picks one backend: these tests say themselves what runs."""


DEVICES: dict[str, Callable[[], bool]] = {
    "cpu": lambda: True,
    "cuda": torch.cuda.is_available,
    "xpu": torch.xpu.is_available,
}


@pytest.mark.parametrize("device", list(DEVICES))
def test_all_kernels(device: str) -> None:
    """In a process of its own, on a CPU by Triton's interpreter."""
    if not DEVICES[device]():
        pytest.skip(f"no GPU: torch finds no {device} device")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER / "kernels.py")]
    environment = {**os.environ, "TRITON_INTERPRET": str(int(device == "cpu"))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-10000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def started(labels: int, dtype: torch.dtype = torch.float32, pixels: int = 3000, vertices: int = 2000) -> list:
    """What all launchers start for so many labels, on images of three channels."""
    from crfgrad.gpu import corner_pairs, filters, interpolation, own_part, rows, taps
    from crfgrad.gpu import vertices as lattice
    from tests.crfgrad.gpu.processors import starts

    def some(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    whole, long = torch.int32, torch.int64
    x, v, weights = some(pixels, labels), some(vertices + 1, labels), some(pixels, 6)
    excluded, corners, entries = (
        some(pixels, labels, dtype=torch.bool),
        some(pixels, 6, dtype=whole),
        some(6, dtype=whole),
    )
    between = corners, entries, entries, some(vertices + 2, dtype=whole)
    neighbours, matrices, own = some(63, vertices + 1, dtype=whole), some(63, labels, labels), some(32, labels, labels)
    keys, strides, order = some(vertices, dtype=long), some(6, dtype=long), some(pixels, 5, dtype=torch.int8)
    coefficients, numbers = some(pixels, 16), torch.arange(pixels + 1)
    groups = numbers[:-1], numbers, some(pixels, 16, dtype=long), 32, True
    axes = some(12, vertices + 1, dtype=whole), entries, entries
    with starts() as found, patch.object(Tensor, "item", lambda _: vertices):
        rows.project_rows(x, x, 0.5, excluded, 0.01)
        rows.project_rows_jacobian(x, x, 0.01, False)
        rows.project_step_gradients(x, x, 0.01, 0.5)
        rows.softmax_rows(x, excluded, -1.0)
        rows.softmax_rows_gradient(x, x, 1.0)
        rows.costs(x, 1e-6, 2.5)
        rows.costs_gradient(x, x, 1e-6, 2.5)
        interpolation.interpolate(v, weights, *between)
        interpolation.splat(x, weights, *between)
        interpolation.corner_products(x, v, *between)
        taps.filter_matrices(v, matrices, neighbours)
        taps.filter_matrices_transpose(v, matrices, neighbours)
        taps.filter_matrices_gradient(v, v, neighbours)
        taps.filter_numbers(v, matrices[:, 0, 0], neighbours)
        taps.filter_numbers_gradient(v, v, neighbours)
        taps.blur(v, *axes, False)
        lattice.build(some(pixels, 5), pixels, 1, True)
        lattice.neighbours(keys, strides, 1)
        lattice.axes(keys, strides)
        corner_pairs.products(weights, weights, order)
        corner_pairs.by_left(coefficients, weights, order)
        corner_pairs.by_right(coefficients, weights, order)
        corner_pairs.group(order)
        own_part.own_part(x, coefficients, own, *groups)
        own_part.receive(v, weights, *between, x, coefficients, own, *groups, x, x)
        own_part.own_part_coefficients(x, x, own, *groups)
        own_part.message_matrices(v, v, neighbours, x, x, coefficients, *groups)
        filters.matrices(matrices, numbers[1:32], 2.5, True, True)
        filters.matrices_transpose(torch.cat([matrices, own]), numbers[1:32], 2.5, True, True)
    return found


WIDE = pytest.mark.slow
CASES = [
    pytest.param(21, torch.float32),
    pytest.param(2, torch.float32, marks=WIDE),
    pytest.param(64, torch.float32, marks=WIDE),
    pytest.param(150, torch.float32, marks=WIDE),
    pytest.param(21, torch.float64, marks=WIDE),
]


@pytest.mark.parametrize(("labels", "dtype"), CASES)
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_all_kernels_compile_and_fit_into_registers(target: str, labels: int, dtype: torch.dtype) -> None:
    from tests.crfgrad.gpu.processors import TARGETS, compiled, needs

    seen = {}
    for start in started(labels, dtype):
        found = needs(compiled(start, TARGETS[target]))
        name = f"{start.kernel.fn.__module__.split('.')[-1]}.{start.kernel.fn.__name__}"
        seen[name, found] = f"| {name} | {start.warps} | {found.registers} | {found.shared} | {found.spilled} |"
    print("\n".join([f"{target}, {labels} labels, {dtype}", *seen.values()]))
    assert len(seen) >= (25 if dtype == torch.float32 else 20)
    assert not [name for name, found in seen if found.spilled]
    assert all(found.shared <= 64 * 1024 for _, found in seen)  # what an MI300 has, the least of these


def pictures() -> dict[str, Tensor]:
    """Generated scenes, photographs, noise, an even picture and a gradient, all of one size."""
    from PIL import Image
    from sklearn.datasets import load_sample_image

    height, width = 60, 80
    found = {f"scene {seed}": make_scene(height, width, seed)[0].float() for seed in range(3)}
    for name in ("china", "flower"):
        whole = Image.fromarray(load_sample_image(f"{name}.jpg"))
        for left in (0, 200, 400):
            part = whole.crop((left, 40, left + 240, 220)).resize((width, height))
            found[f"{name} from {left}"] = torch.from_numpy(np.array(part)).movedim(2, 0).float()
    found["noise"] = torch.randint(256, (3, height, width)).float()
    found["even"] = torch.full((3, height, width), 128.0)
    found["gradient"] = torch.linspace(0, 255, width).expand(3, height, width)
    return found


def test_images_of_one_size_have_few_shapes() -> None:
    shapes, exact = set(), set()
    for picture in pictures().values():
        for sigma_xy, sigma_rgb in ((80.0, 13.0), (67.0, 3.0), (40.0, 10.0), (10.0, 5.0)):
            widths = torch.tensor([sigma_xy] * 2 + [sigma_rgb] * 3)
            features = gaussian_taps(5, 1)[0] * positions_and_colours(picture[None]) / widths
            lattice, few = build_lattice(features), build_lattice(features, padded=True)
            assert padded_count(len(lattice.keys), len(lattice.entries)) == len(few.keys)
            shapes.add(tuple(tuple(one.shape) for one in few))
            exact.add(len(lattice.keys))
            values, numbers = torch.randn(len(few.corners), 2), torch.rand(63)
            results = [
                one.slice(taps.filter_numbers(one.splat(values), numbers, one.neighbours(1))) for one in (lattice, few)
            ]
            assert torch.equal(*results)
    print(f"{len(exact)} numbers of vertices, {len(shapes)} shapes")
    assert len(exact) > 20
    assert len(shapes) <= 8


def test_room_for_vertices() -> None:
    corners = 6 * 375 * 500
    rooms = {padded_count(vertices, corners) for vertices in range(1, corners + 1, 997)}
    assert len(rooms) == 8
    assert all(padded_count(vertices, corners) >= vertices for vertices in (1, 5, corners // 2, corners - 1, corners))


def test_triton_is_imported_when_it_is_needed() -> None:
    code = "import sys, torch; before = 'triton' in sys.modules; import crfgrad.ops.registry as registry; "
    code += "assert before == ('triton' in sys.modules); registry._triton = lambda: False; "
    code += (
        "x = torch.randn(3, 4); assert torch.equal(registry.ON_GPU['simplex_softmax'](x, None, 1.0), x.softmax(-1)); "
    )
    code += "assert not any(name.startswith('crfgrad.gpu') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_not_served_runs_by_the_reference() -> None:
    from crfgrad.ops.registry import ON_GPU
    from tests.crfgrad.gpu.processors import starts

    with starts() as found:
        for x in (torch.randn(3, 4).half(), torch.randn(3, 300)):
            assert torch.allclose(ON_GPU["simplex_softmax"](x, None, 1.0), x.softmax(-1))
        values, matrices = torch.randn(3, 2).double(), torch.randn(3, 2, 2).double()
        neighbours = torch.tensor([[0, 1, 2], [1, 2, 2], [2, 0, 2]], dtype=torch.int32)
        assert ON_GPU["lattice_filter"](values, matrices, neighbours).shape == (3, 2)
        with pytest.raises(TypeError, match="must have one floating-point type"):
            ON_GPU["lattice_filter"](values, matrices.float(), neighbours)
    assert not found
