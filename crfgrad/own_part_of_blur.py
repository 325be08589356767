r"""What slice . blur . splat brings from each pixel to itself, and the operator without it.

The d + 1 axes of the blur sum to zero, and around a simplex they lead from each corner to the next. So a way from
one corner of a pixel to another takes the axes between them, forwards, or all the others, backwards; the blur goes
through them in its own order, and every vertex on the way must exist. Pixels of one simplex share their ways.
"""

import torch
from torch import Tensor

from crfgrad.operators import LatticeBlur, Operator

CHUNK = 1 << 16  # pixels or simplices


class WithoutSelf(Operator):
    r"""K less its diagonal.

    Args:
        operator: K.
        own: Its diagonal, (B, \*, 1).
    """

    def __init__(self, operator: Operator, own: Tensor) -> None:
        super().__init__(operator.symmetric, excludes_self=True)
        self.operator, self.own = operator, own

    def matmul(self, q: Tensor) -> Tensor:
        """See ``Operator.matmul``."""
        return self.operator.matmul(q) - self.own * q

    def transpose(self) -> Operator:
        """See ``Operator.transpose``."""
        return WithoutSelf(self.operator.transpose(), self.own)


@torch.no_grad()
def own_part_of_blur(blur: LatticeBlur) -> Tensor:
    """The diagonal of a blur: (N, 1)."""
    lattice, axes = blur.lattice, blur.axes[0]
    dimension = lattice.order.shape[1]
    powers = dimension ** torch.arange(dimension, device=axes.device)
    simplex = lattice.corners[:, 0].long() * dimension**dimension + (lattice.order.long() * powers).sum(1)
    simplices, which = simplex.unique(return_inverse=True)  # (S,), (N,)
    pixels = torch.arange(len(which), device=axes.device)
    some = pixels.new_empty(len(simplices)).scatter_(0, which, pixels)  # a pixel of each simplex
    ways = torch.cat([_between_corners(lattice.corners[part], lattice.order[part], axes) for part in some.split(CHUNK)])
    own = [
        torch.einsum("na,nab,nb->n", lattice.barycentric[part], ways[which[part]].to(lattice.barycentric), receiving)
        for part, receiving in zip(pixels.split(CHUNK), blur.receiving.barycentric.split(CHUNK), strict=True)
    ]
    return torch.cat(own)[:, None]


def _between_corners(corners: Tensor, order: Tensor, axes: Tensor) -> Tensor:
    """What the blur brings from the first of two corners of a simplex to the second: (S, d + 1, d + 1)."""
    count, device = corners.shape[1], corners.device
    around = torch.nn.functional.pad(order.long(), (0, 1), value=count - 1)  # the axis after each corner: (S, d + 1)
    places = around.argsort(dim=1)  # the corner before each axis: (S, d + 1)
    # a way has a start, a direction and a number of axes; staying where one is counts once
    forwards, lengths = (torch.tensor([*a, *b], device=device) for a, b in _directions(count))
    starts = torch.arange(count, device=device)[:, None, None]
    place = torch.arange(count, device=device)
    passed = torch.where(forwards[:, None], place - starts, starts - 1 - place) % count  # (start, way, place)
    taken = (passed < lengths[:, None]) * torch.where(forwards, 1, 2)[:, None]  # 0 stay, 1 after, 2 before
    vertices = axes.shape[1]
    stay = torch.arange(vertices, device=device, dtype=axes.dtype)[None]
    at = corners.long()[:, :, None].expand(-1, -1, len(lengths))  # (S, start, way)
    for axis, pair in enumerate(axes.unflatten(0, (-1, 2))):
        step = taken.movedim(-1, 0)[places[:, axis]]  # (S, start, way)
        at = torch.cat([stay, pair]).flatten()[step * vertices + at].long()
    weight = 0.25**lengths * 0.5 ** (count - lengths)  # (way,)
    reached = (at < vertices - 1) * weight
    end = (starts[..., 0] + torch.where(forwards, lengths, -lengths)) % count  # (start, way)
    return reached.new_zeros(*corners.shape, count).scatter_add_(2, end.expand(len(corners), -1, -1), reached)


def _directions(count: int) -> tuple[tuple[list[bool], list[bool]], tuple[list[int], list[int]]]:
    """Forwards or not, and the number of axes, of all ways from a corner."""
    forth, back = range(count + 1), range(1, count + 1)
    return ([True] * len(forth), [False] * len(back)), (list(forth), list(back))
