"""Two labels and Potts: projected gradient and rounding against the global optimum by graph cut."""

import pytest
import torch

from crfgrad import ProjectedGradient, round_labels
from experiments.graph_cut.optimum import graph_cut
from experiments.graph_cut.problem import generated


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("strength", "after_50", "after_5"), [(0.5, 0.001, 0.04), (2.0, 0.11, 0.125)])
def test_gap_to_the_global_optimum(seed: int, strength: float, after_50: float, after_5: float) -> None:
    _, logits, crf, energy = generated(24, 32, strength, seed)
    start = crf.initial(logits)
    with torch.no_grad():
        optimum = float(energy.of_labels(graph_cut(energy)))
        network = float(energy.of_labels(logits.argmax(1)))
        after_five, found = (
            float(energy.of_labels(round_labels(energy, ProjectedGradient(iterations).eval()(energy, start))))
            for iterations in (5, 50)
        )
    gap, gap_after_five = ((energy - optimum) / (network - optimum) for energy in (found, after_five))
    print(
        f"seed {seed}, strength {strength}: labels of the network {network:.2f}, graph cut {optimum:.2f}, "
        f"T = 5 {after_five:.2f} (gap {gap_after_five:.1%}), T = 50 {found:.2f} (gap {gap:.1%})"
    )
    assert -1e-9 <= gap <= after_50
    assert -1e-9 <= gap_after_five <= after_5
