"""Graph cut finds the lowest energy of all labellings, and no solver goes below it."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from crfgrad import CRF, Energy, GaussianSpatialPotential, SpatialPotential
from experiments.graph_cut import graph_cut, main, potts_costs
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
    projected, mean_field = main(tmp_path, height=16, width=20, iterations=12)
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
