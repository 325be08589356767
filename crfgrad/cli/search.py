"""The search: settings are scored on all images, and each fold chooses among them without its own images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from crfgrad.cli.grid import Setting, Values, coarse_grid, neighbours
from crfgrad.cli.scores import Counts


@dataclass
class Choice:
    """A setting and its number of iterations, as places among those that were tried."""

    setting: int
    iterations: int


class Search:
    """Sums of counts for each fold, over all settings so far.

    Args:
        score: Counts of new settings, one entry for each image.
        parts: The fold of each image.
        iterations: The most iterations to choose.
    """

    def __init__(
        self, score: Callable[[Sequence[Setting]], Sequence[Counts]], parts: np.ndarray, iterations: int
    ) -> None:
        self.score, self.parts, self.iterations = score, parts, iterations
        self.folds = int(parts.max()) + 1
        self.settings: list[Setting] = []
        self.sums: list[Counts] = []  # of each fold
        self.images: list[np.ndarray] = []  # mIoU of each image (S, T + 1)

    def add(self, settings: Sequence[Setting]) -> None:
        """Scores those that are new."""
        new = [setting for setting in dict.fromkeys(settings) if setting not in self.settings]
        if not new:
            return
        counts = self.score(new)
        sums = [
            _sum([one for one, part in zip(counts, self.parts, strict=True) if part == fold])
            for fold in range(self.folds)
        ]
        images = [one.miou() for one in counts]
        if self.settings:
            sums = [_joined(before, more) for before, more in zip(self.sums, sums, strict=True)]
            images = [np.concatenate(both) for both in zip(self.images, images, strict=True)]
        self.settings, self.sums, self.images = self.settings + new, sums, images

    def over(self, folds: Sequence[int]) -> Counts:
        """The sums of some folds."""
        return _sum([self.sums[fold] for fold in folds])

    def others(self, fold: int | None) -> list[int]:
        """All folds but one, or all."""
        return [one for one in range(self.folds) if one != fold]

    def best(self, candidates: set[Setting], folds: Sequence[int]) -> Choice:
        """The candidate of highest mIoU on some folds, with at least one iteration; the earlier of equals."""
        miou = self.over(folds).miou()[:, : self.iterations + 1].copy()
        miou[:, 0] = -1
        miou[[setting not in candidates for setting in self.settings]] = -1
        place, t = np.unravel_index(np.nanargmax(miou), miou.shape)
        return Choice(int(place), int(t))

    def run(self, values: Values, rounds: int, baseline: Setting) -> tuple[Choice, list[Choice]]:
        """The choice from all images, and the choice of each fold from the others.

        Each fold chooses from the coarse grid and from the neighbours of its own best, so that it does not profit from
        what its images said; the choice from all images is among all of these. The baseline is scored, and only chosen
        if it is one of them.
        """
        grid = coarse_grid(values)
        self.add([*grid, baseline])
        choosers: list[int | None] = [None, *range(self.folds)]
        candidates = {chooser: set(grid) for chooser in choosers}
        for level in range(1, rounds + 1):
            for chooser in choosers:
                best = self.best(candidates[chooser], self.others(chooser))
                candidates[chooser] |= set(neighbours(self.settings[best.setting], values, level))
            self.add(sorted(set().union(*candidates.values())))
        candidates[None] = set().union(*candidates.values())
        chosen = [self.best(candidates[chooser], self.others(chooser)) for chooser in choosers]
        return chosen[0], chosen[1:]


@dataclass
class Outcome:
    """What a search found.

    Attributes:
        search: With all settings that were tried.
        best: The choice from all images.
        by_fold: The choice of each fold from the others.
        default: The default settings.
    """

    search: Search
    best: Choice
    by_fold: list[Choice]
    default: Choice

    def of_fold(self, fold: int) -> tuple[float, float, float]:
        """MIoU over the images of a fold: of the maps, with the defaults, and with what the other folds choose."""
        return self._figures([fold])

    def over_all(self) -> tuple[float, float, float]:
        """The same over all images, each by the choice of its fold."""
        return self._figures(range(self.search.folds))

    def _figures(self, folds: Sequence[int]) -> tuple[float, float, float]:
        miou = self.search.over(folds).miou()
        chosen = []
        for fold in folds:
            counts, place = self.search.sums[fold], (self.by_fold[fold].setting, self.by_fold[fold].iterations)
            chosen.append(Counts(counts.hit[place], counts.given[place], counts.true))
        return miou[0, 0], miou[self.default.setting, self.default.iterations], float(_sum(chosen).miou())


def _sum(counts: Sequence[Counts]) -> Counts:
    hit, given, true = (sum(np.asarray(part, dtype=np.int64) for part in parts) for parts in zip(*counts, strict=True))
    return Counts(np.asarray(hit), np.asarray(given), np.asarray(true))


def _joined(before: Counts, more: Counts) -> Counts:
    return Counts(np.concatenate([before.hit, more.hit]), np.concatenate([before.given, more.given]), before.true)
