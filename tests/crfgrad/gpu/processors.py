"""Kernels compiled for processors that are not there, and what their code needs of these."""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.crfgrad.test_operations import LAUNCH

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
MODULES = ("rows", "interpolation", "taps", "vertices", "corner_pairs", "own_part", "filters")
NAMES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
    torch.bool: "i1",
}


class Start(NamedTuple):
    """How a kernel was started."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    warps: int
    fused: bool
    constants: dict[str, Any]


class Needs(NamedTuple):
    """Registers of a thread, bytes of shared memory of a program, bytes of a thread that do not fit in registers."""

    registers: int
    shared: int
    spilled: int


@contextmanager
def starts(runs: Callable[[Any], bool] = lambda kernel: False) -> Iterator[list[Start]]:
    """All starts of kernels within this context, of which only some run, by default none."""
    found: list[Start] = []

    def launch(kernel: Any, grid: Any, *arguments: Any, warps: int = 4, fused: bool = True, **constants: Any) -> None:
        found.append(Start(kernel, grid, arguments, warps, fused, constants))
        with torch.profiler.record_function(LAUNCH):
            if runs(kernel):
                kernel[grid](*arguments, num_warps=warps, enable_fp_fusion=fused, **constants)

    modules = [import_module(f"crfgrad.gpu.{name}") for name in MODULES]
    kept = [module.launch for module in modules]
    for module in modules:
        module.launch = launch
    try:
        yield found
    finally:
        for module, before in zip(modules, kept, strict=True):
            module.launch = before


def compiled(start: Start, target: GPUTarget) -> Any:
    """The code of a kernel for the types and constants with which it was started."""
    names = start.kernel.arg_names
    signature, constants, attributes = {}, dict(start.constants), {}
    for place, (name, value) in enumerate(zip(names, start.arguments, strict=False)):
        if value is None:
            constants[name] = None
        elif isinstance(value, Tensor):
            signature[name] = "*" + NAMES[value.dtype]
            attributes[(place,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "i32" if abs(value) < 2**31 else "i64"
    ordered = {name: signature.get(name, "constexpr") for name in names}
    source = ASTSource(fn=start.kernel, signature=ordered, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=target, options={"num_warps": start.warps, "enable_fp_fusion": start.fused})


def needs(code: Any) -> Needs:
    """What the code of a kernel says of itself."""
    if "amdgcn" in code.asm:
        text = code.asm["amdgcn"]
        registers, spilled = _number(r"\.vgpr_count:\s+(\d+)", text), _number(r"\.vgpr_spill_count:\s+(\d+)", text)
        return Needs(registers, code.metadata.shared, 4 * spilled)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code.asm["cubin"])
        file.flush()
        asked = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    spilled = max(_number(r"STACK:(\d+)", text), _number(r"LOCAL:(\d+)", text))
    return Needs(_number(r"REG:(\d+)", text), code.metadata.shared, spilled)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"no {pattern} in what the compiler says")
    return int(found[1])
