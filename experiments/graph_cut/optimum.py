"""The labelling of lowest energy, by graph cut."""

import maxflow
import numpy as np
import torch
from torch import Tensor

from crfgrad import Energy


def potts_costs(energy: Energy) -> Tensor:
    """What each pair of pixels pays for different labels, of one image with two labels: (H*W, H*W)."""
    shape = energy.unary.shape
    if shape[:2] != (1, 2) or not energy.symmetric or not energy.excludes_self:
        raise ValueError(
            f"graph cut is for one image, two labels and symmetric potentials that exclude self, got {tuple(shape)}"
        )
    pixels = shape[2] * shape[3]
    costs = energy.unary.new_zeros(pixels, pixels)
    alike = energy.pairwise(torch.zeros_like(energy.unary).index_fill(1, torch.tensor(0), 1))[:, 0].abs().max()
    for pixel in range(pixels):
        impulse = torch.zeros_like(energy.unary)
        impulse.view(2, -1)[1, pixel] = 1
        to_zero, to_one = energy.pairwise(impulse)[0].flatten(1)  # (H*W,) each
        costs[:, pixel] = to_zero
        alike = torch.maximum(alike, to_one.abs().max())
    tolerance = 1e-6 * float(costs.abs().max())
    if costs.min() < -tolerance or alike > tolerance * pixels:
        raise ValueError("graph cut needs Potts costs: none between equal labels, 0 or more between different ones")
    return costs.clamp_min(0)


@torch.no_grad()
def graph_cut(energy: Energy) -> Tensor:
    """The labelling of lowest energy of one image, two labels and Potts costs: (1, H, W)."""
    height, width = energy.unary.shape[2:]
    costs = torch.triu(potts_costs(energy), 1).double().cpu()
    first, second = costs.nonzero(as_tuple=True)
    capacity = costs[first, second].numpy()
    if_zero, if_one = energy.unary[0].flatten(1).double().cpu().numpy()
    lowest = np.minimum(if_zero, if_one)  # capacities must not be negative; a constant changes no minimum
    graph = maxflow.Graph[float](height * width, len(capacity))
    nodes = graph.add_grid_nodes(height * width)
    graph.add_grid_tedges(nodes, if_one - lowest, if_zero - lowest)  # in the sink's segment a node has label 1
    graph.add_edges(first.numpy(), second.numpy(), capacity, capacity)
    graph.maxflow()
    segments = torch.from_numpy(graph.get_grid_segments(nodes))
    return segments.long().reshape(1, height, width).to(energy.unary.device)
