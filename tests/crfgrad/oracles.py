"""Slow, plain second implementations that the library is checked against."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from crfgrad import Operator


def simplex_by_bisection(x: Tensor, leak: float = 0.0) -> Tensor:
    """Projection of the last dimension onto the simplex: bisection on the threshold, in float64."""
    x = x.double()
    low, high = x.amin(-1, keepdim=True) - 1, x.amax(-1, keepdim=True)
    for _ in range(200):
        middle = (low + high) / 2
        too_low = (x - middle).clamp_min(0).sum(-1, keepdim=True) > 1
        low, high = torch.where(too_low, middle, low), torch.where(too_low, high, middle)
    return (x - high).clamp_min(0) + leak * (x - high).clamp_max(0)


def adams_simplex(feature: np.ndarray) -> list[tuple[tuple[int, ...], float]]:
    """Vertices, as d + 1 coordinates that sum to zero, and weights of one point's simplex.

    Works in the hyperplane of R^(d+1) as Adams et al. describe it: round to the nearest point whose
    coordinates are multiples of d + 1, rank the remainders, read vertices and weights off the ranks.
    """
    d = len(feature)
    scaled = feature * math.sqrt(2 / 3) * (d + 1) / np.sqrt(np.arange(1, d + 1) * np.arange(2, d + 2))
    elevated = np.zeros(d + 1)
    for j in range(d + 1):
        elevated[j] = scaled[j:].sum() - (j * scaled[j - 1] if j else 0)
    nearest = np.round(elevated / (d + 1)).astype(int) * (d + 1)
    rank = np.zeros(d + 1, dtype=int)
    remainder = elevated - nearest
    for i, j in itertools.combinations(range(d + 1), 2):
        if remainder[i] < remainder[j]:
            rank[i] += 1
        else:
            rank[j] += 1
    excess = nearest.sum() // (d + 1)
    rank += excess
    nearest[rank < 0] += d + 1
    rank[rank < 0] += d + 1
    nearest[rank > d] -= d + 1
    rank[rank > d] -= d + 1
    remainder = (elevated - nearest) / (d + 1)
    weight = np.zeros(d + 2)
    for i in range(d + 1):
        weight[d - rank[i]] += remainder[i]
        weight[d + 1 - rank[i]] -= remainder[i]
    weight[0] += 1 + weight[d + 1]
    vertices = [tuple(int(nearest[i] + k - (d + 1) * (rank[i] > d - k)) for i in range(d + 1)) for k in range(d + 1)]
    return list(zip(vertices, weight[: d + 1].tolist(), strict=True))


def lattice_matrix(features: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    """Slice . filter . splat of one image as a dense matrix, pair by pair: (N, L, N, L).

    ``features`` (d, N) and tap ``weights`` (taps, L, L), in float64.
    """
    d, n = features.shape
    table: dict[tuple[int, ...], int] = {}
    rows, columns, values = [], [], []
    for i in range(n):
        for vertex, weight in adams_simplex(features[:, i].numpy()):
            rows.append(table.setdefault(vertex, len(table)))
            columns.append(i)
            values.append(weight)
    splat = torch.zeros(len(table), n, dtype=torch.float64)
    splat.index_put_(
        (torch.tensor(rows), torch.tensor(columns)), torch.tensor(values, dtype=torch.float64), accumulate=True
    )
    matrix = torch.zeros(n, weights.shape[1], n, weights.shape[2], dtype=torch.float64)
    for offset, weight in zip(offsets.tolist(), weights, strict=True):
        step = [(d + 1) * a - sum(offset) for a in [*offset, 0]]
        shift = torch.zeros(len(table), len(table), dtype=torch.float64)
        for vertex, index in table.items():
            neighbour = table.get(tuple(v + s for v, s in zip(vertex, step, strict=True)))
            if neighbour is not None:
                shift[index, neighbour] = 1
        matrix += (splat.T @ shift @ splat)[:, None, :, None] * weight[None, :, None, :]
    return matrix


def spatial_matrix(kernel: Tensor, sizes: Sequence[int], side: int = 1) -> Tensor:
    """A spatial filter, on the means of blocks of a side, as a dense matrix, pair by pair: (N, L, N, L)."""
    radius = kernel.shape[-1] // 2
    pixels = list(itertools.product(*map(range, sizes)))
    matrix = torch.zeros(len(pixels), kernel.shape[0], len(pixels), kernel.shape[1], dtype=kernel.dtype)
    for (i, here), (j, there) in itertools.product(enumerate(pixels), enumerate(pixels)):
        step = [b // side - a // side for a, b in zip(here, there, strict=True)]
        if any(step) and max(map(abs, step)) <= radius:
            matrix[i, :, j, :] = kernel[(slice(None), slice(None), *(radius + d for d in step))] / side ** len(step)
    return matrix


def without_self(matrix: Tensor) -> Tensor:
    """The (N, L, N, L) matrix with the blocks of i = j set to zero."""
    others = 1 - torch.eye(len(matrix), dtype=matrix.dtype)
    return matrix * others[:, None, :, None]


def apply_matrix(matrix: Tensor, q: Tensor) -> Tensor:
    """K q for q (1, L, *S)."""
    rows = q[0].flatten(1).T  # (N, L)
    return torch.einsum("iljm,jm->il", matrix, rows).T.reshape(1, -1, *q.shape[2:])


def pairwise_energy(matrix: Tensor, q: Tensor) -> Tensor:
    """1/2 sum over i != j of <q_i, K_ij q_j>, as a loop over the pairs."""
    rows = q[0].flatten(1).T  # (N, L)
    pairs = itertools.permutations(range(len(rows)), 2)
    return sum((rows[i] @ matrix[i, :, j] @ rows[j] for i, j in pairs), rows.new_zeros(())) / 2


def operator_matrix(operator: Operator, shape: Sequence[int]) -> Tensor:
    """The dense matrix of a bound potential, for a shape (L, *S), column by column: (N, L, N, L)."""
    labels, *sizes = shape
    pixels = math.prod(sizes)
    basis = torch.eye(pixels * labels, dtype=torch.float64).reshape(-1, 1, *sizes, labels)
    columns = torch.stack([operator.matmul(column).flatten() for column in basis])  # (N*L, N*L)
    return columns.T.reshape(pixels, labels, pixels, labels)


class DenseOperator(Operator):
    """The operator of a dense matrix (N, L, N, L)."""

    def __init__(self, matrix: Tensor) -> None:
        symmetric = torch.equal(matrix, matrix.permute(2, 3, 0, 1))
        super().__init__(symmetric, excludes_self=not matrix.diagonal(dim1=0, dim2=2).any())
        self.matrix = matrix

    def matmul(self, q: Tensor) -> Tensor:
        """See ``Operator.matmul``; in float64."""
        pixels = q.flatten(1, -2).double()  # (B, N, L)
        return torch.einsum("iljm,bjm->bil", self.matrix.double(), pixels).reshape(q.shape).to(q.dtype)

    def transpose(self) -> Operator:
        """See ``Operator.transpose``."""
        return DenseOperator(self.matrix.permute(2, 3, 0, 1))


def all_labelings(labels: int, height: int, width: int) -> Tensor:
    """Every labelling of the grid: (L^N, H, W)."""
    return torch.tensor(list(itertools.product(range(labels), repeat=height * width))).reshape(-1, height, width)
