"""crfgrad tune: settings chosen on images with ground truth."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

from crfgrad.cli import outputs
from crfgrad.cli.errors import CommandError, sentence
from crfgrad.cli.grid import Setting, checked_values, coarse_grid
from crfgrad.cli.inputs import Maps, Sample, find_samples, read_lines
from crfgrad.cli.progress import duration, progress
from crfgrad.cli.report import check_num_labels, write_report
from crfgrad.cli.scores import Counts, Trial, check_sample, folds_of
from crfgrad.cli.search import Choice, Outcome, Search
from crfgrad.cli.settings import DEFAULTS, write_settings
from crfgrad.cli.workers import checked_jobs, each

SHOWN = 20


def tune(arguments: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    started = time.monotonic()
    values = checked_values({name: getattr(arguments, name) for name in Setting._fields})
    jobs, maps = checked_jobs(arguments.jobs), Maps.of(arguments)
    _check_options(arguments)
    samples, missing = find_samples(arguments.images, maps, arguments.truth, arguments.list)
    if missing:
        _refuse(missing, "give the names of those that have all files by --list")
    if len(samples) < arguments.folds:
        raise CommandError(f"{len(samples)} images cannot be parted into {arguments.folds} folds: give fewer --folds")
    class_names = read_lines("--class-names", arguments.class_names) if arguments.class_names else []
    num_labels = _check_all(samples, maps, arguments.ignore, jobs)
    if arguments.report is not None:
        check_num_labels(num_labels)
    if class_names and len(class_names) != num_labels:
        raise CommandError(f"--class-names has {len(class_names)} names, but the maps have {num_labels} labels")

    baseline = Setting(*(DEFAULTS[name] for name in Setting._fields))
    iterations = max(arguments.iterations, DEFAULTS["iterations"])
    kept = arguments.output.with_name(f"{arguments.output.stem}.scores")

    def score(settings: Sequence[Setting]) -> list[Counts]:
        trial = Trial(maps, arguments.ignore, tuple(settings), iterations, kept)
        found: dict[str, Counts] = {}
        with progress(f"{len(settings)} settings", len(samples)) as step:
            for sample, counts in each(trial.score, samples, jobs):
                if isinstance(counts, Exception):
                    raise CommandError(f"{sample.name}: {sentence(counts)}")
                found[sample.name] = counts
                step()
        return [found[sample.name] for sample in samples]

    parts = folds_of([sample.name for sample in samples], arguments.folds, arguments.seed)
    search = Search(score, parts, arguments.iterations)
    print(
        f"{len(samples)} images, {num_labels} labels; first {len(coarse_grid(values))} settings, "
        f"each with 1 to {arguments.iterations} iterations",
        flush=True,
    )
    best, by_fold = search.run(values, arguments.rounds, baseline)
    default = Choice(search.settings.index(baseline), DEFAULTS["iterations"])
    outcome = Outcome(search, best, by_fold, default)
    print(table(outcome))
    reached = search.over(range(search.folds)).miou()[best.setting, best.iterations]
    print(f"chosen on all images, where it has {percent(reached)}: {described(search, best)}")
    maps_alone, _, held_out = outcome.over_all()
    if held_out <= maps_alone:
        print(
            "on images held out no setting that was tried improves the maps: try others, or leave the maps as they are"
        )
    outputs.write(arguments.output, _yaml(outcome).encode())
    told = f"settings are in {arguments.output}"
    if arguments.report is not None:
        write_report(arguments.report, outcome, samples, maps, arguments.ignore, class_names, jobs)
        told += f", the report in {arguments.report} ({arguments.report.stat().st_size / 1e6:.1f} MB)"
    print(f"{len(search.settings)} settings in {duration(time.monotonic() - started)}; {told}")
    return 0


def table(outcome: Outcome) -> str:
    """MIoU in percent of each fold: untouched, with defaults, and with what the other folds choose."""
    search = outcome.search
    counts = Counter(search.parts.tolist())
    rows = [["fold", "images", "maps", "defaults", "held out", "chosen on the other folds"]]
    for fold, choice in enumerate(outcome.by_fold):
        figures = map(percent, outcome.of_fold(fold))
        rows.append([str(fold + 1), str(counts[fold]), *figures, described(search, choice)])
    rows.append(["all", str(len(search.parts)), *map(percent, outcome.over_all()), ""])
    sizes = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ["  ".join([*(text.rjust(size) for text, size in zip(row, sizes, strict=False)), row[5]]) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def percent(value: float) -> str:
    """A share as percent."""
    return f"{100 * value:.2f}"


def described(search: Search, choice: Choice) -> str:
    """A setting in a line."""
    s = search.settings[choice.setting]
    return (
        f"gaussian {s.gaussian_sxy:g} x {s.gaussian_compat:g}, bilateral ({s.bilateral_sxy:g}, {s.bilateral_srgb:g}) x "
        f"{s.bilateral_compat:g}, {choice.iterations} iterations"
    )


def _yaml(outcome: Outcome) -> str:
    maps, defaults, held_out = map(percent, outcome.over_all())
    chosen = outcome.search.settings[outcome.best.setting]._asdict() | {"iterations": outcome.best.iterations}
    return (
        f"# crfgrad tune: mIoU of the maps {maps}, with default settings {defaults}, held out {held_out}\n"
        f"# ({len(outcome.search.parts)} images, {outcome.search.folds} folds); the settings below are chosen on all.\n"
        + write_settings(chosen)
    )


def _check_options(arguments: argparse.Namespace) -> None:
    for name, least in (("iterations", 1), ("rounds", 0), ("folds", 2)):
        if getattr(arguments, name) < least:
            raise CommandError(f"--{name} must be {least} or more, got {getattr(arguments, name)}")
    for path in (arguments.output, arguments.report):
        if path is not None:
            outputs.check_writable(path)


def _check_all(samples: Sequence[Sample], maps: Maps, ignore: int, jobs: int) -> int:
    """Reads everything once, so that nothing wrong turns up later; returns the number of labels."""
    numbers: dict[str, int] = {}
    failures: dict[str, str] = {}
    for sample, found in each(partial(check_sample, maps, ignore), samples, jobs):
        if isinstance(found, Exception):
            failures[sample.name] = sentence(found)
        else:
            numbers[sample.name] = found
    if failures:
        _refuse(failures, "mend these, or leave them out by --list")
    usual = Counter(numbers.values()).most_common(1)[0][0]
    odd = {
        name: f"its map has {number} labels, most have {usual}" for name, number in numbers.items() if number != usual
    }
    if odd:
        _refuse(odd, "all maps need the same labels")
    return usual


def _refuse(failures: dict[str, str], remedy: str) -> None:
    for name in list(failures)[:SHOWN]:
        print(f"{name}: {failures[name]}", file=sys.stderr)
    raise CommandError(f"{len(failures)} images cannot be used: {remedy}")
