"""Graph cut finds the lowest energy of all labellings, and no solver goes below it."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import avg_pool2d

from crfgrad import CRF, Energy, GaussianSpatialPotential, ProjectedGradient, SpatialPotential
from experiments.figures.runs import load_module
from experiments.graph_cut.__main__ import main, read_arguments, read_problem
from experiments.graph_cut.descent import descend
from experiments.graph_cut.optimum import graph_cut, potts_costs
from experiments.graph_cut.problem import Problem, generated, of_network, potts
from tests.command_line import streets
from tests.crfgrad.oracles import all_labelings


def small_energy(strength: float, seed: int = 0) -> tuple[CRF, Energy]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, 2, 3, 4, dtype=torch.float64, generator=generator)
    crf = CRF(2, [GaussianSpatialPotential(2, radius=1, strength=strength)]).double().eval()
    with torch.no_grad():
        return crf, crf.energy(logits, torch.full((1, 3, 3, 4), 128.0, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("strength", [0.1, 0.5, 2.0])
def test_the_cut_is_the_minimum_over_all_labellings(strength: float, seed: int) -> None:
    _, energy = small_energy(strength, seed)
    labellings = all_labelings(2, 3, 4)
    everything = torch.stack([energy.of_labels(labelling[None]) for labelling in labellings]).flatten()
    found = graph_cut(energy)
    assert float(energy.of_labels(found)) == pytest.approx(float(everything.min()), abs=1e-12)
    assert torch.equal(found[0], labellings[everything.argmin()])


def test_costs_are_what_two_pixels_pay() -> None:
    _, energy = small_energy(0.5)
    costs = potts_costs(energy)
    labels = torch.zeros(1, 3, 4, dtype=torch.int64)
    labels[0, 1, 2] = 1
    alone = 1 * 4 + 2
    pairwise = energy.of_labels(labels) - energy.unary[0, labels[0], *np.indices((3, 4))].sum()
    assert float(pairwise) == pytest.approx(float(costs[alone].sum()))


def test_other_costs_are_refused() -> None:
    image = torch.full((1, 3, 3, 4), 128.0)
    three = CRF(3, []).eval().energy(torch.randn(1, 3, 3, 4), image)
    with pytest.raises(ValueError, match="graph cut is for one image, two labels"):
        graph_cut(three)
    potential = SpatialPotential(2, radius=1)
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter.fill_(0.5)  # equal labels pay too
    with pytest.raises(ValueError, match="graph cut needs Potts costs"):
        graph_cut(CRF(2, [potential]).eval().energy(torch.randn(1, 2, 3, 4), image))


def test_everything_is_written_and_nothing_is_below_the_optimum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    projected, mean_field = main(tmp_path, generated(16, 20), iterations=12)
    printed = capsys.readouterr().out
    gaps = re.findall(r"(-?[\d.]+)%", printed)
    assert len(gaps) == 2 * 2 * 7  # q and labels of two solvers, t = 0, 1, 2, 3, 5, 10, 12
    lowest = float(re.search(r"graph cut: E = (-?[\d.]+)", printed)[1])
    for descent in (projected, mean_field):
        assert descent.energies.shape == (13, 2)
        assert descent.energies.min() >= lowest - 0.005  # as printed
        assert (descent.energies[:, 1] <= descent.energies[:, 0] + 1e-9).all()  # rounding costs nothing
    assert (np.diff(projected.energies[:, 0]) <= 1e-9).all()
    assert projected.gaps[-1, 0] < mean_field.gaps[-1, 0]
    assert Image.open(tmp_path / "descent.gif").n_frames == 13  # q^0 to q^12
    assert (tmp_path / "gaps.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "gaps.png").is_file()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Config and checkpoint of a network that was trained for one epoch, as arguments."""
    output = tmp_path_factory.mktemp("network")
    streets("fit", output)
    folder = output / "run" / "version_0"
    return [f"--config={folder / 'config.yaml'}", f"--checkpoint={folder / 'checkpoints' / 'best.ckpt'}"]


@pytest.fixture(autouse=True)
def _no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["graph_cut"])  # or Lightning warns of pytest's own


def problem_of(*arguments: str) -> Problem:
    return read_problem(read_arguments(arguments))


@torch.no_grad()
def test_scores_are_those_of_the_network(run: list[str]) -> None:
    module, data = load_module(*(Path(argument.partition("=")[2]) for argument in run))
    sample = data.dataset("test", data.eval_transforms)[2]
    q = module.network(sample["image"][None]).softmax(1)[0]
    for number, label in enumerate(module.class_names):
        problem = of_network(module, data, index=2, label=label, height=48, width=64)
        assert torch.equal(problem.image, sample["image"].float())
        assert torch.allclose(problem.logits.softmax(1)[0, 1].float(), q[number], atol=1e-6)
        assert torch.allclose(problem.logits.softmax(1)[0, 0].float(), 1 - q[number], atol=1e-6)
    small = of_network(module, data, index=2, label=module.class_names[0], height=24, width=32)
    assert torch.allclose(small.image, avg_pool2d(sample["image"].float(), 2))


def test_a_trained_network_beside_its_optimum(run: list[str], tmp_path: Path) -> None:
    asked = [*run, "--height=12", "--width=16", "--image=1", "--label=road", "--strength=2"]
    projected, _ = main(tmp_path, problem_of(*asked), iterations=3)
    assert projected.energies.shape == (4, 2)
    assert projected.gaps[-1, 0] < projected.gaps[0, 0]
    assert (tmp_path / "descent.gif").is_file()


def test_what_cannot_be_is_refused(run: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="give both --config and --checkpoint of a run"):
        problem_of(run[0])
    with pytest.raises(SystemExit, match=r"there is no file .*none\.ckpt"):
        problem_of(run[0], f"--checkpoint={tmp_path / 'none.ckpt'}")
    with pytest.raises(SystemExit, match="--seed is of the generated picture"):
        problem_of(*run, "--seed=1")
    with pytest.raises(SystemExit, match="are of a run: give its --config"):
        problem_of("--image=1")
    with pytest.raises(SystemExit, match="--label horse is none of the classes: give one of"):
        problem_of(*run, "--label=horse")
    with pytest.raises(ValueError, match="there is no test image 3: give one of 0 to 2"):
        problem_of(*run, "--image=3")
    with pytest.raises(SystemExit, match="--strength above 0"):
        problem_of("--strength=0")
    certain = torch.stack([torch.zeros(8, 8), torch.full((8, 8), 5.0)])
    problem = potts(torch.full((3, 8, 8), 128.0), certain, strength=1.0)
    with pytest.raises(ValueError, match="the network's labels have the lowest energy already"):
        descend(problem, ProjectedGradient(), graph_cut(problem.energy))
