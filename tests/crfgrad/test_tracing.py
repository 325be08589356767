"""What people do with networks: compile, export, torch.func; the layer stays the same layer."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.exc import InvalidCxxCompiler

from crfgrad import CRF, BilateralPotential, DenseCRF, GaussianBilateralPotential, GaussianSpatialPotential, MeanField
from crfgrad.backend import use_backend
from experiments.scene import make_scene
from tests.crfgrad.fields import randomise


def has_compiler() -> bool:
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        return bool(get_cpp_compiler())
    except InvalidCxxCompiler:
        return False


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="torch.compile finds no C++ compiler")
WAYS = [{}, {"fullgraph": True, "dynamic": True}]


@pytest.fixture(autouse=True)
def backend() -> None:
    """In place of the fixture that picks one: the operations are the same for the compiler, whatever runs them."""
    torch._dynamo.reset()


class Refined(nn.Module):
    """A small network with a CRF behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))
        self.crf = random_crf()

    def forward(self, image: Tensor) -> Tensor:
        return self.crf(self.network(image / 255), image)


def random_crf(**options: Any) -> CRF:
    crf = CRF(3, **options)
    for potential in crf.potentials:
        randomise(potential).float()
    return crf


def inputs(height: int, width: int, batch: int = 2) -> tuple[Tensor, Tensor]:
    image = torch.stack([make_scene(height, width, seed=n)[0].float() for n in range(batch)])
    return torch.randn(batch, 3, height, width), image


def results(module: nn.Module, call: Callable[..., Tensor], *given: Tensor) -> list[Tensor]:
    """Output, and gradients of the floating-point inputs and of all parameters."""
    module.zero_grad()
    leaves = [tensor.clone().requires_grad_() for tensor in given]
    output = call(*leaves)
    cotangent = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    output.backward(cotangent)
    grads = [leaf.grad for leaf in (*leaves, *module.parameters())]
    return [output.detach(), *(grad.clone() for grad in grads if grad is not None)]


def assert_close(got: list[Tensor], expected: list[Tensor]) -> None:
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert (one - other).abs().max() <= 1e-4 * other.abs().max()


MODELS = {
    "free": random_crf,
    "not symmetric": partial(random_crf, potentials=[partial(BilateralPotential, symmetric=False)]),
    "Gaussian, on blocks": partial(
        random_crf, potentials=[partial(GaussianSpatialPotential, stride=4), GaussianBilateralPotential]
    ),
    "mean field": partial(random_crf, solver=MeanField()),
}


@needs_compiler
@pytest.mark.parametrize("way", WAYS, ids=["default", "fullgraph"])
@pytest.mark.parametrize("model", MODELS)
def test_compiled_is_eager_at_any_size(model: str, way: dict[str, bool]) -> None:
    crf = MODELS[model]()
    compiled = torch.compile(crf, **way)
    for height, width in ((12, 17), (20, 9)):
        given = inputs(height, width)
        # the second size must not compile anew where sizes are declared to change
        with torch._dynamo.config.patch(error_on_recompile=bool(way)):
            got = results(crf, compiled, *given)
        assert_close(got, results(crf, crf, *given))


@needs_compiler
@pytest.mark.parametrize("way", WAYS, ids=["default", "fullgraph"])
def test_compiled_network_and_crf(way: dict[str, bool]) -> None:
    model = Refined()
    compiled = torch.compile(model, **way)
    for height, width in ((12, 17), (20, 9)):
        image = inputs(height, width)[1]
        with torch._dynamo.config.patch(error_on_recompile=bool(way)):
            got = results(model, compiled, image)
        assert_close(got, results(model, model, image))


@needs_compiler
def test_compiled_with_a_mask_of_valid_pixels() -> None:
    crf = random_crf().eval()
    logits, image = inputs(12, 17)
    valid = torch.ones(2, 12, 17, dtype=torch.bool)
    valid[1, 8:] = False
    with torch.no_grad():
        compiled = torch.compile(crf, fullgraph=True, dynamic=True)
        assert torch.allclose(compiled(logits, image, valid), crf(logits, image, valid), atol=1e-6)


def exported(module: nn.Module, given: tuple[Tensor, ...], strict: bool, path: Path) -> None:
    sizes = {0: torch.export.Dim("batch"), 2: torch.export.Dim("height"), 3: torch.export.Dim("width")}
    with torch.no_grad():
        program = torch.export.export(module.eval(), given, dynamic_shapes=(sizes,) * len(given), strict=strict)
    torch.export.save(program, path)


RUN = """
import sys, torch, crfgrad
assert not any(name.split(".")[0] in ("tests", "experiments", "lightning_modules") for name in sys.modules)
program = torch.export.load(sys.argv[1]).module()
given = torch.load(sys.argv[2])
torch.save(program(*given), sys.argv[3])
"""


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("model", ["CRF", "DenseCRF", "network and CRF"])
def test_exported_and_loaded_in_a_fresh_process(model: str, strict: bool, tmp_path: Path) -> None:
    logits, image = inputs(12, 16)
    module, given = {
        "CRF": (random_crf(), (logits, image)),
        "DenseCRF": (DenseCRF(), (logits.softmax(1), image)),
        "network and CRF": (Refined(), (image,)),
    }[model]
    exported(module, given, strict, tmp_path / "program.pt2")
    logits, image = inputs(23, 15, batch=3)
    other = {"CRF": (logits, image), "DenseCRF": (logits.softmax(1), image), "network and CRF": (image,)}[model]
    torch.save(other, tmp_path / "given.pt")
    paths = [str(tmp_path / name) for name in ("program.pt2", "given.pt", "result.pt")]
    subprocess.run([sys.executable, "-c", RUN, *paths], check=True, cwd=Path(__file__).parents[2])
    with torch.no_grad():
        assert torch.allclose(torch.load(paths[2]), module(*other), atol=1e-6)


@pytest.mark.parametrize("save_memory", [False, True])
def test_exported_with_a_mask_of_valid_pixels(save_memory: bool) -> None:
    crf = random_crf(save_memory=save_memory).eval()
    logits, image = inputs(12, 17)
    valid = torch.ones(2, 12, 17, dtype=torch.bool)
    valid[1, 8:] = False
    with torch.no_grad():
        program = torch.export.export(crf, (logits, image, valid)).module()
        assert torch.allclose(program(logits, image, valid.flip(0)), crf(logits, image, valid.flip(0)), atol=1e-6)


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_what_is_exported_has_no_gradient_and_says_so(backend: str) -> None:
    crf, (logits, image) = random_crf().eval(), inputs(8, 9)
    program = torch.export.export(crf, (logits, image)).module()
    with use_backend(backend):  # type: ignore[arg-type]
        q = program(logits, image)
        assert torch.allclose(q, crf(logits, image), atol=1e-5)
        with pytest.raises(NotImplementedError, match=r"gives no gradients: call it under torch\.no_grad\(\)"):
            q.sum().backward()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", ["strict", "not strict", "dynamo=False"])
def test_no_onnx(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    crf, given = random_crf().eval(), inputs(8, 8)
    if way == "dynamo=False":
        export = partial(torch.onnx.export, dynamo=False)
    else:  # what torch.onnx.export does first
        export = partial(torch.export.export, strict=way == "strict")
        monkeypatch.setattr("torch.onnx._internal.exporter._flags._is_onnx_exporting", True)
    with pytest.raises(Exception, match="ONNX has no operations for a permutohedral lattice"):
        export(crf, given)


def test_gradients_of_functions() -> None:
    crf, (logits, image) = random_crf(), inputs(8, 9)
    expected = logits.clone().requires_grad_()
    crf(expected, image).square().sum().backward()
    got = torch.func.grad(lambda logits: crf(logits, image).square().sum())(logits)
    assert torch.allclose(got, expected.grad, atol=1e-5)
    parameters = dict(crf.named_parameters())

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(crf, parameters, (logits, image)).square().sum()

    by_parameter = torch.func.grad(loss)({name: p.detach() for name, p in parameters.items()})
    for name, parameter in parameters.items():
        assert torch.allclose(by_parameter[name], parameter.grad, rtol=1e-4, atol=1e-4)
    _, pull = torch.func.vjp(lambda logits: crf(logits, image), logits)
    assert pull(torch.ones_like(logits))[0].shape == logits.shape


def test_transforms_that_do_not_reach_into_a_crf_say_so() -> None:
    crf, (logits, image) = random_crf(), inputs(8, 9)
    with pytest.raises(NotImplementedError, match="vmap does not reach into a CRF: give all images in one call, along"):
        torch.func.vmap(lambda one: crf(one[None], image[:1]))(logits)
    with pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
        torch.func.jvp(lambda logits: crf(logits, image), (logits,), (logits,))
    with pytest.raises(NotImplementedError, match="vmap does not reach into a CRF"):
        torch.func.vmap(torch.func.grad(lambda one: crf(one[None], image[:1]).sum()))(logits)
    with pytest.raises(NotImplementedError, match="vmap does not reach into a CRF"):
        torch.func.vmap(lambda one: DenseCRF()(one[None].softmax(1), image[:1]))(logits)


@pytest.mark.parametrize("layout", ["channels last", "strided", "half"])
def test_any_memory_layout(layout: str) -> None:
    crf, (logits, image) = random_crf().eval(), inputs(8, 9)
    expected = crf(logits, image)
    if layout == "channels last":
        other = [x.contiguous(memory_format=torch.channels_last) for x in (logits, image)]
    elif layout == "strided":
        other = [torch.stack([x, x], dim=-1)[..., 0] for x in (logits, image)]
    else:
        expected = crf(logits.half().float(), image.half().float())
        other = [logits.half(), image.half()]
    assert torch.allclose(crf(*other), expected, atol=1e-6)


def test_the_reference_is_traced_too() -> None:
    crf, (logits, image) = random_crf().eval(), inputs(8, 9)
    with use_backend("torch"), torch.no_grad():
        program = torch.export.export(crf, (logits, image)).module()
        assert torch.allclose(program(logits, image), crf(logits, image), atol=1e-6)
    with torch.no_grad():  # what was traced by one backend runs by the other
        assert torch.allclose(program(logits, image), crf(logits, image), atol=1e-5)
