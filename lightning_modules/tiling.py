"""Large images a tile at a time: what a function needs besides its result is that of a tile."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch import Tensor


class Span(NamedTuple):
    """A tile along one axis: it reads ``start`` to ``stop`` and keeps ``first`` to ``last`` of the whole."""

    start: int
    stop: int
    first: int
    last: int


class Tiling:
    """Applies a function of images to overlapping tiles, and keeps the middle of each.

    Every pixel of the result comes from one tile, at least ``margin`` pixels inside it (or at the border of
    the image). So the result is exactly that of the whole image if no pixel depends on one further away than
    the margin, and an approximation if some does:

    - A network is exact from the radius of its receptive field on, if ``size - 2 * margin`` is a multiple of
      its stride and nothing in it pools over the whole image. Deep encoders reach further than any margin
      that is practical; what is far away matters little.
    - A CRF of spatial potentials is exact from T * radius on: each iteration reaches that many pixels further.
    - Bilateral potentials are approximate: their lattice begins at the corner of the tile, and T iterations
      with its normalisation reach across several times sigma_xy.

    Give a CRF images of 8-bit integers: its check of the colours sees one tile, and a dark one of floating-point
    numbers looks normalised.

    Args:
        size: Height and width of a tile, margin included.
        margin: Pixels at each side of a tile that are computed and not kept.

    Example:
        >>> ramp = torch.arange(10.0).expand(1, 1, 3, 10)
        >>> neighbours = torch.nn.AvgPool2d((1, 3), stride=1, padding=(0, 1))
        >>> bool((Tiling(size=6, margin=1)(neighbours, ramp) == neighbours(ramp)).all())
        True
    """

    def __init__(self, size: int = 768, margin: int = 128) -> None:
        if margin < 0 or size <= 2 * margin:
            raise ValueError(f"tiles of size {size} have nothing inside a margin of {margin}: use a larger size")
        self.size = size
        self.margin = margin

    def __call__(self, function: Callable[..., Tensor], *images: Tensor) -> Tensor:
        """The function of images (B, C, H, W) of one size: (B, L, H, W)."""
        height, width = images[0].shape[2:]
        whole: Tensor | None = None
        for y in self.spans(height):
            for x in self.spans(width):
                tile = function(*(image[:, :, y.start : y.stop, x.start : x.stop] for image in images))
                if whole is None:
                    whole = tile.new_empty(*tile.shape[:2], height, width)
                kept = tile[:, :, y.first - y.start : y.last - y.start, x.first - x.start : x.last - x.start]
                whole[:, :, y.first : y.last, x.first : x.last] = kept
        assert whole is not None
        return whole

    def spans(self, length: int) -> Iterator[Span]:
        """The tiles along an axis of this length."""
        step = self.size - 2 * self.margin
        start = first = 0
        while start + self.size < length:
            last = start + self.size - self.margin
            yield Span(start, start + self.size, first, last)
            start, first = start + step, last
        yield Span(start, length, first, length)
