"""Two labels and Potts: projected gradient and rounding against the global optimum by graph cut."""

import maxflow
import pytest
import torch
from torch import Tensor

from crfgrad import (
    CRF,
    Energy,
    GaussianBilateralPotential,
    GaussianSpatialPotential,
    ProjectedGradient,
    round_labels,
)
from experiments.scene import make_logits, make_scene
from tests.crfgrad.oracles import message_matrix


def graph_cut(energy: Energy) -> Tensor:
    """The labelling of lowest energy of one image, two labels: (1, H, W)."""
    _, _, height, width = energy.unary.shape
    matrix = message_matrix(lambda q: energy.pairwise(q.to(energy.unary)).double(), (2, height, width))
    cost = matrix[:, 0, :, 1]  # symmetric Potts: what a pair of different labels pays
    assert cost.min() >= -1e-6
    graph = maxflow.Graph[float]()
    nodes = graph.add_nodes(height * width)
    for i, (if_zero, if_one) in enumerate(energy.unary[0].flatten(1).T.tolist()):
        graph.add_tedge(nodes[i], if_one, if_zero)  # in the sink's segment a node has label 1
    for i, j in torch.triu(cost, 1).nonzero().tolist():
        graph.add_edge(nodes[i], nodes[j], float(cost[i, j]), float(cost[i, j]))
    graph.maxflow()
    return torch.tensor([graph.get_segment(node) for node in nodes]).reshape(1, height, width)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("strength", "bound"), [(0.5, 0.05), (2.0, 0.15)])
def test_gap_to_the_global_optimum(seed: int, strength: float, bound: float) -> None:
    image, labels = make_scene(24, 32, seed)
    truth = (labels > 1).long()  # house and trees against the rest
    logits = make_logits(truth, num_classes=2, stride=4, seed=seed)[None]
    potentials = [
        GaussianSpatialPotential(2, radius=2, strength=strength),
        GaussianBilateralPotential(2, sigma_xy=8.0, sigma_rgb=20.0, strength=strength),
    ]
    crf = CRF(2, potentials, solver=ProjectedGradient(iterations=50)).double().eval()
    with torch.no_grad():
        energy = crf.energy(logits.double(), image[None].double())
        optimum = float(energy.of_labels(graph_cut(energy)))
        network = float(energy.of_labels(logits.argmax(1)))
        found = float(energy.of_labels(round_labels(energy, crf(logits.double(), image[None]))))
        crf.solver.iterations = 5
        after_five = float(energy.of_labels(round_labels(energy, crf(logits.double(), image[None]))))
    gap, gap_after_five = ((energy - optimum) / (network - optimum) for energy in (found, after_five))
    print(
        f"seed {seed}, strength {strength}: labels of the network {network:.2f}, graph cut {optimum:.2f}, "
        f"T = 5 {after_five:.2f} (gap {gap_after_five:.1%}), T = 50 {found:.2f} (gap {gap:.1%})"
    )
    assert -1e-9 <= gap <= bound
    assert -1e-9 <= gap_after_five <= bound
