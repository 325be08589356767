"""The pairwise part of an energy: linear maps K of fields q (B, *, L), whose labels are last."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from crfgrad.lattice import Lattice, OwnPart
from crfgrad.ops import taps
from crfgrad.ops.message import message
from crfgrad.ops.spatial import SpatialKernel


class Operator(ABC):
    """K, bound to a batch of images.

    A subclass says how K acts; if K is not symmetric it sets ``symmetric`` to False and gives the transpose.

    Args:
        symmetric: Whether K equals its transpose.
        excludes_self: Whether no pixel brings anything to itself, which rounding needs.
    """

    def __init__(self, symmetric: bool = True, excludes_self: bool = True) -> None:
        self.symmetric = symmetric
        self.excludes_self = excludes_self

    @abstractmethod
    def matmul(self, q: Tensor) -> Tensor:
        """K q: (B, *, L) -> (B, *, L)."""

    adds = False
    """Whether ``add_to`` adds as it goes, in place of one more pass over the fields."""

    def add_to(self, added: Sequence[Tensor], q: Tensor) -> Tensor:
        """The sum of some fields, and K q: an operator that can add as it goes says how."""
        return reduce(torch.add, added, self.matmul(q))

    def transpose(self) -> "Operator":
        """K^T."""
        if self.symmetric:
            return self
        raise NotImplementedError(f"{type(self).__name__} is not symmetric: it needs a method transpose()")


class Sum(Operator):
    """K_1 + K_2 + ..., or 0."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        for operator in operators:
            if not isinstance(operator, Operator):
                raise TypeError(
                    f"bind() of a potential must return an Operator, got {operator!r}: see docs/extending.md"
                )
        super().__init__(all(one.symmetric for one in operators), all(one.excludes_self for one in operators))
        self.operators = operators

    def matmul(self, q: Tensor) -> Tensor:
        """See ``Operator.matmul``."""
        return self.add_to([], q)

    def add_to(self, added: Sequence[Tensor], q: Tensor) -> Tensor:
        """See ``Operator.add_to``."""
        fields = [*added, *(operator.matmul(q) for operator in self.operators if not operator.adds)]
        for operator in self.operators:
            if operator.adds:
                fields = [operator.add_to(fields, q)]
        return reduce(torch.add, fields) if fields else torch.zeros_like(q)

    def transpose(self) -> Operator:
        """See ``Operator.transpose``."""
        return Sum([operator.transpose() for operator in self.operators])


class Masked(Operator):
    """M K M, for a mask M (B, *, 1) of the pixels that count: others send and receive nothing."""

    def __init__(self, operator: Operator, mask: Tensor) -> None:
        super().__init__(operator.symmetric, operator.excludes_self)
        self.operator, self.mask = operator, mask

    def matmul(self, q: Tensor) -> Tensor:
        """See ``Operator.matmul``."""
        return self.operator.matmul(q * self.mask) * self.mask

    def transpose(self) -> Operator:
        """See ``Operator.transpose``."""
        return Masked(self.operator.transpose(), self.mask)


class Mixed(Operator):
    """mu A: what an operator A that knows no labels brings, and what labels then cost each other, mu (L, L)."""

    def __init__(self, operator: Operator, compatibility: Tensor, symmetric: bool) -> None:
        super().__init__(symmetric and operator.symmetric, operator.excludes_self)
        self.operator, self.compatibility = operator, compatibility

    def matmul(self, q: Tensor) -> Tensor:
        """See ``Operator.matmul``."""
        return self.operator.matmul(q) @ self.compatibility.mT

    def transpose(self) -> Operator:
        """See ``Operator.transpose``."""
        return Mixed(self.operator.transpose(), self.compatibility.mT, self.symmetric)


class SpatialFilter(Operator):
    """A filter over the pixels, the same everywhere (7).

    Args:
        kernel: (L, L, *K) with odd sizes K and a centre of zero, or (1, 1, *K), which acts on each label alone.
        symmetric: Whether k_lm(d) = k_ml(-d).
    """

    def __init__(self, kernel: Tensor, symmetric: bool) -> None:
        super().__init__(symmetric)
        if kernel.shape[0] != kernel.shape[1] or any(size % 2 == 0 for size in kernel.shape[2:]):
            raise ValueError(f"a kernel must be (L, L, *K) with odd sizes K, got {tuple(kernel.shape)}")
        self.kernel = SpatialKernel.of(kernel)
        self.transposed = False

    def matmul(self, q: Tensor) -> Tensor:
        """See ``Operator.matmul``."""
        return self.kernel.apply(q, self.transposed)

    def transpose(self) -> Operator:
        """See ``Operator.transpose``."""
        other = object.__new__(SpatialFilter)
        other.__dict__.update(self.__dict__, transposed=not self.transposed)
        return other


class OnBlocks(Operator):
    r"""An operator F on the means of square blocks of pixels: what a block receives reaches each of its pixels.

    .. math:: K = U F U^T / s^d

    for blocks of side s in d dimensions and the map U from blocks to their pixels: symmetric if F is. Pixels of a
    block do not interact if blocks do not interact with themselves. Outside of the image there is nothing.

    Args:
        operator: F.
        side: s, in pixels.
    """

    def __init__(self, operator: Operator, side: int) -> None:
        super().__init__(operator.symmetric, operator.excludes_self)
        self.operator, self.side = operator, side

    def matmul(self, q: Tensor) -> Tensor:
        """See ``Operator.matmul``."""
        sizes, side = q.shape[1:-1], self.side
        dims = range(1, 1 + len(sizes))
        after = [margin for size in reversed(sizes) for margin in (0, -size % side)]
        blocks = torch.nn.functional.pad(q, [0, 0, *after])
        for dim in reversed(dims):
            blocks = blocks.unflatten(dim, (-1, side))  # (B, n_1, s, n_2, s, ..., L)
        received = self.operator.matmul(blocks.mean([2 * dim for dim in dims]))  # (B, n_1, n_2, ..., L)
        for dim, size in zip(dims, sizes, strict=True):
            received = received.repeat_interleave(side, dim).narrow(dim, 0, size)
        return received

    def transpose(self) -> Operator:
        """See ``Operator.transpose``."""
        return OnBlocks(self.operator.transpose(), self.side)


def on_blocks(operator: Operator, side: int) -> Operator:
    """The operator on blocks of that side; as it is for blocks of one pixel."""
    return operator if side == 1 else OnBlocks(operator, side)


class EachImage(Operator):
    """An operator for each image of a batch."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        super().__init__(all(one.symmetric for one in operators), all(one.excludes_self for one in operators))
        self.operators = operators

    def matmul(self, q: Tensor) -> Tensor:
        """See ``Operator.matmul``."""
        return torch.cat([operator.matmul(one) for operator, one in zip(self.operators, q.split(1), strict=True)])

    def transpose(self) -> Operator:
        """See ``Operator.transpose``."""
        return EachImage([operator.transpose() for operator in self.operators])


class LatticeFilter(Operator):
    """Slice . filter . splat (8), less what a pixel brings to itself if that is given.

    Args:
        lattice: Around the pixels.
        neighbours: Of its vertices.
        matrices: One at each tap, (taps, L, L); with an own part, after them minus those by which a pixel reaches
            itself, (taps + 2^d, L, L).
        symmetric: Whether the matrix at the opposite tap is the transpose, for each tap.
        own: The own part of the lattice.
    """

    adds = True

    def __init__(
        self,
        lattice: Lattice,
        neighbours: Tensor,
        matrices: Tensor,
        symmetric: bool,
        own: OwnPart | None = None,
    ) -> None:
        super().__init__(symmetric, excludes_self=own is not None)
        self.lattice, self.neighbours, self.matrices, self.own = lattice, neighbours, matrices, own

    def matmul(self, q: Tensor) -> Tensor:
        """See ``Operator.matmul``."""
        return self.add_to([], q)

    def add_to(self, added: Sequence[Tensor], q: Tensor) -> Tensor:
        """See ``Operator.add_to``."""
        groups, coefficients = None, None
        if self.own is not None:
            groups = self.own.groups(len(self.matrices) - len(self.neighbours), self.symmetric)
            coefficients = self.own.coefficients
        rows = [one.reshape(-1, one.shape[-1]) for one in (q, *added)]  # (N, L)
        weights, between = self.lattice.barycentric, self.lattice.between
        given = self.matrices, coefficients, rows[1:], self.neighbours, between, groups
        return message(rows[0], weights, *given).view_as(q)

    def transpose(self) -> Operator:
        """See ``Operator.transpose``."""
        filters, own = self.matrices[: len(self.neighbours)], self.matrices[len(self.neighbours) :]
        matrices = torch.cat([taps.opposite_taps(filters), own]).mT
        return LatticeFilter(self.lattice, self.neighbours, matrices, self.symmetric, self.own)


class LatticeGaussian(Operator):
    """Slice . filter . splat with numbers as taps, without what a pixel brings to itself if that is given.

    Args:
        lattice: Around the pixels.
        neighbours: Of its vertices.
        numbers: A number at each tap, (taps,), equal at opposite taps.
        own: What a pixel brings to itself, (N, 1).
    """

    def __init__(self, lattice: Lattice, neighbours: Tensor, numbers: Tensor, own: Tensor | None = None) -> None:
        super().__init__(excludes_self=own is not None)
        self.lattice, self.neighbours, self.numbers, self.own = lattice, neighbours, numbers, own

    def matmul(self, q: Tensor) -> Tensor:
        """See ``Operator.matmul``."""
        pixels = q.flatten(0, -2)  # (N, L)
        received = self.lattice.slice(taps.filter_numbers(self.lattice.splat(pixels), self.numbers, self.neighbours))
        if self.own is not None:
            received = received - self.own * pixels
        return received.view_as(q)


class LatticeBlur(Operator):
    """Slice . blur . splat, the separable Gaussian: not quite symmetric, and a pixel reaches itself.

    Args:
        lattice: With the factors that pixels give.
        receiving: The same lattice with the factors that pixels get.
        axes: Of the lattice.
        transposed: Whether to blur along the axes in reverse.
    """

    adds = True

    def __init__(
        self, lattice: Lattice, receiving: Lattice, axes: tuple[Tensor, Tensor, Tensor], transposed: bool = False
    ) -> None:
        super().__init__(symmetric=False, excludes_self=False)
        self.lattice, self.receiving, self.axes, self.transposed = lattice, receiving, axes, transposed

    def matmul(self, q: Tensor) -> Tensor:
        """See ``Operator.matmul``."""
        return self.receiving.slice(self._blurred(q)).view_as(q)

    def add_to(self, added: Sequence[Tensor], q: Tensor) -> Tensor:
        """See ``Operator.add_to``."""
        if not added:
            return self.matmul(q)
        base = reduce(torch.add, added)
        return self.receiving.slice_onto(base.flatten(0, -2), self._blurred(q)).view_as(q)

    def _blurred(self, q: Tensor) -> Tensor:
        return taps.blur(self.lattice.splat(q.flatten(0, -2)), *self.axes, self.transposed)  # (V, L)

    def transpose(self) -> Operator:
        """See ``Operator.transpose``."""
        return LatticeBlur(self.receiving, self.lattice, self.axes, not self.transposed)
