"""The permutohedral lattice with the vertices that pydensecrf gives it.

A point on a face belongs to more than one simplex, and which of them it falls to decides which vertices there are,
and so what a blur reaches. pydensecrf rounds in single precision; here points on faces, of which grids have many, are
moved by a millionth of a cell into the simplex that it picks.
"""

import numpy as np
import torch

from crfgrad.geometry import embedding_matrix
from crfgrad.lattice import Lattice, build_lattice

BLOCK = 4  # points that pydensecrf takes at a time: it fills up the last block with zeros, whose vertices stay
CHUNK = 1 << 13  # points, which stay in the cache
LEAST = 1e-6  # weight of a corner


def lattice_around(features: np.ndarray) -> Lattice:
    """The lattice around points, for features (d, N) float32."""
    filled = features.shape[1] % BLOCK != 0
    points = np.pad(features, ((0, 0), (0, 1))) if filled else features  # one zero stands for up to three
    lattice = build_lattice(torch.from_numpy(_off_faces(points))[None])
    lattice = lattice._replace(barycentric=lattice.barycentric.float())
    return lattice.without_last_pixel() if filled else lattice


def _off_faces(points: np.ndarray) -> np.ndarray:
    """Points (d, N) as (N, d) float64, those on faces a little within a simplex."""
    moved = np.array(points.T, np.float64, order="C")
    to_features = np.linalg.inv(embedding_matrix(len(points)).numpy()).T
    for start in range(0, points.shape[1], CHUNK):
        elevated = _elevated(points[:, start : start + CHUNK])
        near = np.flatnonzero(_near_faces(elevated))
        if len(near):
            moved[start + near] = _inside(elevated[:, near]) @ to_features
    return moved


def _elevated(points: np.ndarray) -> np.ndarray:
    """Coordinates (d + 1, N) in the hyperplane of the lattice, summed up in the order of pydensecrf."""
    dimension = len(points)
    deviation = np.float32(np.sqrt(2 / 3) * (dimension + 1))
    elevated = np.empty((dimension + 1, points.shape[1]), np.float32)
    total = np.zeros(points.shape[1], np.float32)
    for j in range(dimension, 0, -1):
        scaled = points[j - 1] * np.float32(1 / np.sqrt(j * (j + 1)) * float(deviation))
        elevated[j] = total - np.float32(j) * scaled
        total = total + scaled
    elevated[0] = total
    return elevated


def _near_faces(elevated: np.ndarray) -> np.ndarray:
    """Whether rounding may decide which simplex a point belongs to: two coordinates differ by about whole cells."""
    size = len(elevated)
    cells = elevated * np.float32(1 / size)
    distance = np.full(cells.shape[1], np.inf, np.float32)
    for i in range(size):
        for j in range(i):
            difference = cells[i] - cells[j]
            np.minimum(distance, np.abs(difference - np.rint(difference)), out=distance)
    return distance <= size * np.float32(2**-21) * (1 + np.abs(cells).max(axis=0))


def _inside(elevated: np.ndarray) -> np.ndarray:
    """Lattice coordinates (N, d) of the points, moved into the simplex that pydensecrf picks."""
    size, count = elevated.shape
    whole = np.rint(np.float32(1 / size) * elevated)
    nearest = whole * np.float32(size)
    rest = elevated - nearest
    rank = np.zeros((size, count), int)  # places in descending order
    for i in range(size):
        for j in range(i + 1, size):
            below = rest[i] < rest[j]
            rank[i] += below
            rank[j] += ~below
    rank += whole.sum(axis=0).astype(int)
    back = size * ((rank < 0).astype(int) - (rank >= size))  # to the plane whose coordinates sum to zero
    rank, nearest = rank + back, nearest + back
    steps = np.zeros((size + 1, count))
    pixels = np.arange(count)
    for i in range(size):
        part = (elevated[i] - nearest[i]) / size
        steps[size - 1 - rank[i], pixels] += part
        steps[size - rank[i], pixels] -= part
    steps[0] += 1 + steps[size]
    weights = np.maximum(steps[:size], LEAST)
    weights /= weights.sum(axis=0)
    corners = np.arange(size)[:, None, None]  # corner k adds k to each coordinate, and takes size from the k last
    coordinates = nearest + corners - size * (rank >= size - corners)  # (corner, coordinate, N)
    cells = (coordinates[:, :-1] - coordinates[:, -1:]) / size  # (corner, d, N)
    return (cells * weights[:, None]).sum(axis=0).T
