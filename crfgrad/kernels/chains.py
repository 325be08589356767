"""The separable blur of a lattice: compiled twin of ``crfgrad.ops.taps.lattice_blur``."""

import numpy as np
import torch
from torch import Tensor

from crfgrad.kernels.parallel import exact, kernel, run
from crfgrad.kernels.vectors import Array, Code, Columns, Parts, Value, Variable, in_registers, row_parts


def follow(axes: np.ndarray) -> tuple[Tensor, Tensor]:
    """The vertices in the order in which they follow each other along each axis.

    Args:
        axes: The vertices after (2k) and before (2k + 1) each vertex along axis k: (2 (d + 1), V + 1).

    Returns:
        Chain by chain, ~v where a chain begins with vertex v, vertices without neighbours last: (d + 1, V + 1); and how
        many have a neighbour: (d + 1,).
    """
    paths = np.empty((len(axes) // 2, axes.shape[1]), np.int32)
    linked = np.concatenate(run(_follow, len(paths), axes, paths, grain=1))
    return torch.from_numpy(paths), torch.from_numpy(linked.astype(np.int32))


def blur(values: Tensor, axes: Tensor, paths: Tensor, linked: Tensor, transposed: bool) -> Tensor:
    """See ``crfgrad.ops.taps.lattice_blur``.

    Walking along the chains, it reads each row once and writes it in place. Of the factor 1/2 of a row along
    each axis, all are applied along the first: rows without neighbours along the others need no work there.
    """
    if linked[0] < 0:
        paths, linked = follow(axes.numpy())
    rows = values.numpy()
    out = np.empty_like(rows)
    number = rows.dtype.type
    counts = linked.tolist()
    order = range(len(counts))[:: -1 if transposed else 1]
    for part in row_parts(rows.shape[1]):
        for axis in order:
            first = axis == order[0]
            centre = number(0.5 ** len(counts) if first else 1)
            given = (part, rows if first else out, paths.numpy()[axis], centre, centre / 2, out)
            run(_blur, len(rows) if first else counts[axis], *given)
    return torch.from_numpy(out)


@kernel
def _follow(axes: np.ndarray, paths: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Writes the paths of some of the axes, and returns how many of their vertices are linked."""
    size = axes.shape[1]
    none = size - 1  # which follows itself
    heads, linked = np.empty(size + 1, np.int32), np.zeros(stop - start, np.int64)
    for axis in range(start, stop):
        after, before, path = axes[2 * axis], axes[2 * axis + 1], paths[axis]
        count, alone = 0, 0
        for vertex in range(size):  # without branches, which would be mispredicted
            heads[count] = vertex
            count += (before[vertex] == none) & (after[vertex] != none)
        place = 0
        for vertex in heads[:count]:
            path[place] = ~vertex
            place += 1
            vertex = after[vertex]
            while vertex != none:
                path[place] = vertex
                place += 1
                vertex = after[vertex]
        linked[axis - start] = place
        for vertex in range(size):
            if place + alone < size:
                path[place + alone] = ~vertex
            alone += (before[vertex] == none) & (after[vertex] == none)
    return linked


@exact
def _blur(
    parts: Parts,
    values: np.ndarray,
    path: np.ndarray,
    centre: float,
    side: float,
    out: np.ndarray,
    start: int,
    stop: int,
) -> None:
    """Gives centre * row + side * (row before + row after) for the chains that begin in this part of the path."""
    while start > 0 and start < len(path) and path[start] >= 0:
        start += 1
    while stop < len(path) and path[stop] >= 0:
        stop += 1
    if start < stop:
        _blur_rows(parts, values, path, centre, side, out, start, stop)


@in_registers
def _blur_rows(
    code: Code,
    parts: Columns,
    values: Array,
    path: Array,
    centre: Value,
    side: Value,
    out: Array,
    start: Value,
    stop: Value,
) -> None:
    """``_blur``, with the rows before and after in registers."""
    zeros, last = parts.zeros(values.place(start)), stop - 1

    def vertex(place: Value) -> Value:
        return path[place] ^ (path[place] >> 63)

    before, row = Variable(zeros), Variable(parts.load(values.place(vertex(start))))
    with code.loop(stop - start) as n:
        place = start + n
        following = (place < last).choose(place + 1, last)
        goes_on = (place < last) & (path[following] > -1)
        after = parts.load(values.place(vertex(following)))
        sides = before.value + goes_on.choose(after, zeros)
        parts.store(out.place(vertex(place)), side * sides + centre * row.value)
        before.value = goes_on.choose(row.value, zeros)
        row.value = after
