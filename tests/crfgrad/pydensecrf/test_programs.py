"""Whole programs, some of them with several processes, that know nothing of crfgrad."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from crfgrad.pydensecrf.__main__ import main
from tests.command_line import ROOT
from tests.recorded import make_pydensecrf as made

RUNNER = (sys.executable, "-m", "crfgrad.pydensecrf")
SCRIPTS = sorted(path.stem for path in made.SCRIPTS.glob("*.py"))


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # two threads, so that a fork has something to lose


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    made.write_inputs(folder)
    return folder


@pytest.mark.parametrize(("script", "method"), [*((name, "fork") for name in SCRIPTS), ("network_output", "spawn")])
def test_scripts_write_what_they_write_with_pydensecrf(script: str, method: str, inputs: Path, tmp_path: Path) -> None:
    for given in inputs.iterdir():
        (tmp_path / given.name).symlink_to(given)
    written = made.play_script(script, tmp_path, *RUNNER, method=method)
    with np.load(made.FILE) as recorded:
        expected = {name for name in recorded if name.startswith(f"{script}.py: ")}
        assert set(written) == expected
        for name in expected:
            assert np.mean(written[name] != recorded[name]) <= 1e-4


FORKS = """
import multiprocessing, sys
import numpy as np, torch
torch.set_num_threads(2)
(torch.rand(2000, 2000) @ torch.rand(2000, 2000)).exp().sum()  # torch's threads are at work

def refine(seed):
    import crfgrad.pydensecrf.densecrf as dcrf
    generator = np.random.default_rng(seed)
    crf = dcrf.DenseCRF2D(300, 200, 3)
    crf.setUnaryEnergy(generator.random((3, 60000)))
    crf.addPairwiseBilateral(20, 13, generator.integers(0, 255, (200, 300, 3), np.uint8), np.eye(3))
    return crf.inference(2).sum()

def pool():
    with multiprocessing.get_context("fork").Pool(2) as workers:
        return workers.map_async(refine, range(4)).get(timeout=200)

first = pool()  # crfgrad is imported by the workers
assert "crfgrad" not in sys.modules
here = [refine(seed) for seed in range(4)]  # crfgrad's own threads have been at work
second = pool()
import joblib
threads = joblib.Parallel(n_jobs=2, backend="threading")(joblib.delayed(refine)(seed) for seed in range(4))
assert np.allclose(first, here) and np.allclose(second, here) and np.allclose(threads, here)
print("done")
"""


def test_forks_and_threads_after_torch_was_used(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False
    )
    assert done.stdout == "done\n", done.stderr


INSTALL = """
import sys
import crfgrad.pydensecrf
crfgrad.pydensecrf.install()
crfgrad.pydensecrf.install()
import pydensecrf
import pydensecrf.densecrf as first
from pydensecrf import densecrf, utils
from pydensecrf.utils import unary_from_softmax
import crfgrad.pydensecrf.densecrf as ours
assert first is densecrf is ours is pydensecrf.densecrf and utils is crfgrad.pydensecrf.utils
assert not {"numba", "scipy", "sklearn", "PIL", "matplotlib", "pytorch_lightning"} & set(sys.modules)
"""


def test_install_and_what_an_import_loads() -> None:
    subprocess.run([sys.executable, "-c", INSTALL], check=True, timeout=100)


def test_another_pydensecrf_is_not_replaced_under_way(tmp_path: Path) -> None:
    (tmp_path / "pydensecrf").mkdir()
    (tmp_path / "pydensecrf" / "__init__.py").write_text("theirs = True\n")
    code = "import pydensecrf, crfgrad.pydensecrf as ours; assert pydensecrf.theirs; ours.install()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False
    )
    assert "another pydensecrf is imported already" in done.stderr


def test_the_runner_is_python_with_another_package(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("from pydensecrf.densecrf import __name__ as found\n")
    script = tmp_path / "script.py"
    script.write_text("import sys, beside\nprint(__name__, __file__, sys.argv[1:], beside.found)\nsys.exit(3)\n")
    done = subprocess.run(
        [*RUNNER, os.path.relpath(script), "-a", "b"], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 3
    assert done.stdout == f"__main__ {os.path.relpath(script)} ['-a', 'b'] crfgrad.pydensecrf.densecrf\n"
    absent = subprocess.run([*RUNNER, "absent.py"], capture_output=True, text=True, timeout=100, check=False)
    assert absent.stderr == "there is no file absent.py to run\n"


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_of_the_runner(option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["crfgrad.pydensecrf", option])
    main()
    assert capsys.readouterr().out.startswith("python -m crfgrad.pydensecrf SCRIPT")
