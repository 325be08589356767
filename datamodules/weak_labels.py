"""From full masks to weak ones: scribbles, clicks and boxes, the same for an image every time."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
from scipy import ndimage

NEIGHBOURHOOD = np.ones((3, 3), dtype=bool)
STEPS = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]


class WeakLabels(ABC):
    """Keeps few labels of a mask. What it keeps depends on the mask, the name of the image, and a seed.

    Args:
        seed: Another seed gives other labels.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def __call__(self, mask: np.ndarray, name: str, ignore_index: int) -> np.ndarray:
        """A mask (H, W) and the name of its image -> a mask with ``ignore_index`` where no label is known."""
        digest = hashlib.blake2b(f"{self.seed}/{name}".encode(), digest_size=8).digest()
        generator = np.random.default_rng(int.from_bytes(digest, "little"))
        return self.weaken(mask, ignore_index, generator)

    @abstractmethod
    def weaken(self, mask: np.ndarray, ignore_index: int, generator: np.random.Generator) -> np.ndarray:
        """The weak mask."""


class Scribbles(WeakLabels):
    """A random curve inside each connected region of a label, with a given share of its pixels.

    A curve begins well inside of its region and walks on with a momentum, away from the border and from where it has
    been. Where it can go no further, another one begins.

    Args:
        share: Part of the pixels of a region that are labelled, 0 to 1; at least one of them is.
        width: Width of the pen in pixels.
        seed: Another seed gives other curves.
    """

    def __init__(self, share: float = 0.03, width: int = 1, seed: int = 0) -> None:
        super().__init__(seed)
        if not 0 < share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, got {share}")
        if width < 1:
            raise ValueError(f"width must be 1 or more, got {width}")
        self.share = share
        self.width = width

    def weaken(self, mask: np.ndarray, ignore_index: int, generator: np.random.Generator) -> np.ndarray:
        """See ``WeakLabels``."""
        weak = np.full_like(mask, ignore_index)
        for label, where, region in regions(mask, ignore_index):
            count = max(1, round(self.share * int(region.sum())))
            weak[where][curve(region, count, self.width, generator)] = label
        return weak


class Clicks(WeakLabels):
    """Single points inside each connected region of a label, the more probable the farther from its border.

    Args:
        clicks: Points in a region, fewer in one that has fewer pixels.
        radius: Pixels of the region so far around a point are labelled too.
        seed: Another seed gives other points.
    """

    def __init__(self, clicks: int = 1, radius: int = 0, seed: int = 0) -> None:
        super().__init__(seed)
        if clicks < 1 or radius < 0:
            raise ValueError(f"clicks must be 1 or more and radius 0 or more, got {clicks} and {radius}")
        self.clicks = clicks
        self.radius = radius

    def weaken(self, mask: np.ndarray, ignore_index: int, generator: np.random.Generator) -> np.ndarray:
        """See ``WeakLabels``."""
        weak = np.full_like(mask, ignore_index)
        for label, where, region in regions(mask, ignore_index):
            points = np.zeros_like(region)
            depth = depth_of(region)
            for _ in range(min(self.clicks, int(region.sum()))):
                points[inner_pixel(np.where(points, 0, depth), generator)] = True
            near = ndimage.distance_transform_edt(~points) <= self.radius
            weak[where][near & region] = label
        return weak


class Boxes(WeakLabels):
    """A box around each connected region of a label, smaller boxes over larger ones.

    A box holds other labels than its own, too.

    Args:
        background: Label that has no boxes, and is what is outside of all of them; None boxes every label, and
            nothing is known outside.
        core: Part of the width and height of a box, in its middle, that gets the label. In the rest of it no label is
            known.
    """

    def __init__(self, background: int | None = 0, core: float = 1.0) -> None:
        super().__init__()
        if not 0 < core <= 1:
            raise ValueError(f"core must be above 0 and at most 1, got {core}")
        self.background = background
        self.core = core

    def weaken(self, mask: np.ndarray, ignore_index: int, generator: np.random.Generator) -> np.ndarray:
        """See ``WeakLabels``."""
        weak = np.full_like(mask, ignore_index if self.background is None else self.background)
        weak[mask == ignore_index] = ignore_index
        boxes = [box for box in regions(mask, ignore_index) if box[0] != self.background]
        for label, where, region in sorted(boxes, key=lambda box: -box[2].size):
            weak[where] = ignore_index
            weak[where][tuple(self._middle(size) for size in region.shape)] = label
        return weak

    def _middle(self, size: int) -> slice:
        kept = max(1, round(self.core * size))
        first = (size - kept) // 2
        return slice(first, first + kept)


def regions(mask: np.ndarray, ignore_index: int) -> Iterator[tuple[int, tuple[slice, slice], np.ndarray]]:
    """Label, box and pixels within the box of each connected region of each label."""
    for label in np.unique(mask):
        if label == ignore_index:
            continue
        numbers, _ = ndimage.label(mask == label, NEIGHBOURHOOD)
        for number, where in enumerate(ndimage.find_objects(numbers), start=1):
            yield int(label), where, numbers[where] == number


def depth_of(region: np.ndarray) -> np.ndarray:
    """How far from the border of a region each of its pixels is; outside of it 0."""
    depth: np.ndarray = ndimage.distance_transform_edt(np.pad(region, 1))[1:-1, 1:-1]
    return depth


def inner_pixel(depth: np.ndarray, generator: np.random.Generator) -> tuple[int, int]:
    """A random pixel, the more probable the deeper it is."""
    sums = np.cumsum(depth.ravel() ** 2)
    flat = min(int(np.searchsorted(sums, generator.random() * sums[-1], side="right")), depth.size - 1)
    return flat // depth.shape[1], flat % depth.shape[1]


def curve(region: np.ndarray, count: int, width: int, generator: np.random.Generator) -> np.ndarray:
    """So many pixels of a region, along one curve or more: (h, w) bool."""
    margin = 1 + width // 2  # so that all steps and dots stay within
    region = np.pad(region, margin)
    depth = depth_of(region)
    walk, pen = _Walk(depth), _pen(width, region.shape[1])
    free = bytearray(region.tobytes())
    blank = np.frombuffer(free, dtype=bool).reshape(region.shape)  # the same memory
    left = count
    while left > 0:
        if walk.place < 0:  # begin; if not the first, far from what is drawn
            walk.begin(inner_pixel(depth if left == count else depth_of(blank), generator), generator)
        for offset in pen:
            if left > 0 and free[walk.place + offset]:
                free[walk.place + offset] = False
                left -= 1
        walk.step(generator)
    return (region & ~blank)[margin:-margin, margin:-margin]


def _pen(width: int, columns: int) -> list[int]:
    """The pixels around the middle of a round pen, the nearest first, as steps in an image of so many columns."""
    reach = range(-(width // 2), width // 2 + 1)
    dots = sorted((math.hypot(dy, dx), dy * columns + dx) for dy in reach for dx in reach)
    return [offset for distance, offset in dots if distance <= width / 2]


class _Walk:
    """A random walk with a momentum, away from the border of a region, which never treads on its own path."""

    def __init__(self, depth: np.ndarray) -> None:
        self.columns = depth.shape[1]
        with np.errstate(divide="ignore"):
            self.attraction = np.log(depth).ravel().tolist()  # minus infinity outside, and where it has been
        self.place = -1  # it has to begin somewhere
        self.direction = 0.0, 0.0

    def begin(self, at: tuple[int, int], generator: np.random.Generator) -> None:
        """Begins at a pixel, in a random direction."""
        self.place = at[0] * self.columns + at[1]
        angle = generator.uniform(0, 2 * math.pi)
        self.direction = math.sin(angle), math.cos(angle)

    def step(self, generator: np.random.Generator) -> None:
        """Goes on to a neighbour, if there is one."""
        self.attraction[self.place] = -math.inf
        (vy, vx), noise = self.direction, generator.gumbel(size=10).tolist()
        best, place, dy, dx = -math.inf, -1, 0, 0
        for (sy, sx), luck in zip(STEPS, noise, strict=False):
            there = self.place + sy * self.columns + sx
            straight = (sy * vy + sx * vx) / math.hypot(sy, sx)  # the cosine of the turn
            score = 6 * straight + 5 * self.attraction[there] + luck
            if score > best:
                best, place, dy, dx = score, there, sy, sx
        self.place = place
        vy = 0.85 * vy + 0.15 * dy + 0.1 * (noise[8] - 0.5)
        vx = 0.85 * vx + 0.15 * dx + 0.1 * (noise[9] - 0.5)
        length = max(math.hypot(vy, vx), 1e-6)
        self.direction = vy / length, vx / length
