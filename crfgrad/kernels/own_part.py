"""Compiled twins of ``crfgrad.ops.own_part``.

Pixels with the same order of axes are worked on together, and pairs of labels where their matrices are symmetric,
for which half of the pairs are enough.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from crfgrad.kernels import strips
from crfgrad.kernels.matrix import ROWS
from crfgrad.kernels.parallel import run
from crfgrad.kernels.vectors import lanes_of, row_parts

STRETCH = 32768  # pixels that are sorted by themselves: their values stay in the cache
STRIP = 3  # vectors of pixels that are worked on together


def group(order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See ``crfgrad.ops.own_part.own_part_groups``: pixels are sorted a stretch of them at a time."""
    size, dimension = order.shape
    powers = float(dimension) ** torch.arange(dimension, dtype=torch.float64)
    codes = (order.double() @ powers).long() + torch.arange(size) // STRETCH * dimension**dimension
    if dimension > 13:  # codes would be rounded
        codes = torch.arange(size)
    codes, pixels = codes.sort(stable=True)
    starts = pad(codes.diff().nonzero()[:, 0] + 1, [1, 0])
    axes = 1 << order[pixels[starts]].long()  # (groups, d)
    passed = pad(axes.cumsum(1), [1, 0])
    low, high = torch.triu_indices(dimension + 1, dimension + 1, 1)
    return pixels, pad(starts, [0, 1], value=size), pad(passed[:, high] - passed[:, low], [1, 0])


def own_part(values: Tensor, coefficients: Tensor, matrices: Tensor, *rest: Any) -> Tensor:
    """See ``crfgrad.ops.own_part.own_part_filter``."""
    *groups, _, symmetric = rest
    out = values.new_empty(len(values), matrices.shape[1])
    pairs = _pairs(*matrices.shape[1:], symmetric)
    _run(strips.filter_pixels, pairs, groups, values, coefficients, pairs.table(matrices), out)
    return out


def own_part_coefficients(grad: Tensor, values: Tensor, matrices: Tensor, *rest: Any) -> Tensor:
    """See ``crfgrad.ops.own_part.own_part_coefficients``."""
    *groups, _, symmetric = rest
    out = values.new_empty(len(values), groups[2].shape[1])
    pairs = _pairs(*matrices.shape[1:], symmetric)
    _run(strips.coefficients_of, pairs, groups, grad, values, pairs.table(matrices), out)
    return out


def own_part_matrices(grad: Tensor, values: Tensor, coefficients: Tensor, *rest: Any) -> Tensor:
    """See ``crfgrad.ops.own_part.own_part_matrices``: the threads' parts are added up."""
    *groups, count, symmetric = rest
    pairs = _pairs(grad.shape[1], values.shape[1], symmetric)
    columns = row_parts(coefficients.shape[1], lanes_of(values.numpy().dtype), coefficients.shape[1])[0]
    totals = _run(strips.matrices_of, pairs, groups, grad, values, coefficients, columns, count)
    return pairs.matrices(torch.from_numpy(sum(totals)))


def _run(function: Callable[..., Any], pairs: "_Pairs", groups: list[Tensor], like: Tensor, *others: Any) -> list[Any]:
    lanes = lanes_of(like.numpy().dtype)
    given = row_parts(STRIP * lanes, lanes)[0], pairs.lists, strips.Groups(*(one.numpy() for one in groups))
    arrays = [one.numpy() if isinstance(one, Tensor) else one for one in (like, *others)]
    return run(function, len(like), *given, *arrays)


class _Pairs(NamedTuple):
    """Pairs of labels: all, or each once; neighbouring pairs differ in both labels.

    The lists are filled up with (C_out, C_in), one label more than there is, to whole tiles.
    """

    lists: strips.Pairs
    labels: tuple[Tensor, Tensor]
    shape: tuple[int, int]

    def table(self, matrices: Tensor) -> Tensor:
        """Entries of matrices (n, C_out, C_in) by pair, half of those on the diagonal: (n, pairs)."""
        first, second = self.labels
        table = pad(matrices[:, first, second], [0, len(self.lists.first) - len(first)])
        if self.lists.symmetric:
            table[:, : self.shape[0]] /= 2
        return table

    def matrices(self, table: Tensor) -> Tensor:
        """What was summed up by pair as matrices."""
        first, second = self.labels
        out, entries = table.new_empty(len(table), *self.shape), table[:, : len(first)]
        if self.lists.symmetric:
            entries = entries / 2
            out[:, second, first] = entries
        out[:, first, second] = entries
        return out


@lru_cache
def _pairs(outputs: int, inputs: int, symmetric: bool) -> _Pairs:
    pairs = torch.arange((inputs // 2 + 1 if symmetric else inputs) * outputs)
    if symmetric and inputs % 2 == 0:
        pairs = pairs[: len(pairs) - inputs // 2]  # the last shift is its own opposite
    first = pairs % outputs
    second = (first + pairs // outputs) % inputs
    missing = -len(pairs) % ROWS
    lists = pad(first, [0, missing], value=outputs).int(), pad(second, [0, missing], value=inputs).int()
    in_tiles = strips.Pairs(lists[0].numpy(), lists[1].numpy(), symmetric)
    return _Pairs(in_tiles, (first, second), (outputs, inputs))
