"""Tables and a plot, made from what was measured."""

from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from experiments.benchmark.cases import OURS, RATES, goals
from experiments.benchmark.growth import size
from experiments.benchmark.losses import loss_goals
from experiments.benchmark.measure import fitted_exponent, ratio, summary
from experiments.benchmark.throughput import PEER, THREADS


def markdown(measured: dict[str, Any]) -> str:
    """The whole report."""
    machine = " · ".join(f"{key} {value}" for key, value in measured["machine"].items())
    lines = ["# Benchmark", "", machine, "", f"Photograph of {measured['size']}, 5 iterations where no other number"]
    lines += ["stands. Milliseconds are the median (and quartiles) of interleaved calls.", ""]
    lines += [*_head("Work", "Contestant", "ms", "crfgrad is so many times as fast")]
    for name, case in measured["cases"].items():
        for contestant, seconds in case["seconds"].items():
            timing = summary(seconds)
            times = f"{timing['median']:.1f} ({timing['low']:.1f} - {timing['high']:.1f})"
            if contestant in case["operations"]:
                times += f", {case['operations'][contestant] / timing['median'] / 1e6:.0f} GFLOP/s"
            own = next((ours for ours in (OURS, f"{OURS}, 1 thread") if ours in case["seconds"]), contestant)
            compared = "" if own == contestant else f"{ratio(case['seconds'][own], seconds):.2f}"
            lines.append(_row(name, contestant, times, compared))
    if "throughput" in measured:
        for name, throughput in measured["throughput"].items():
            for contestant, seconds in throughput.items():
                compared = f"{ratio(throughput[THREADS], seconds):.2f}" if contestant != THREADS else ""
                lines.append(_row(name, contestant, f"{1e3 * median(seconds):.0f}", compared))
    lines += ["", "## Goals", "", *_head("Goal", "Wanted", "Measured", ""), *_goal_lines(measured), ""]
    lines += [
        "## Where the time goes",
        "",
        "On one thread, in milliseconds, each function without those that it calls.",
    ]
    lines += ["Gradients of torch's own operations are in `run_backward`.", ""]
    lines += [*_head("Work", "Functions")]
    for name, rows in measured["profiles"].items():
        lines.append(_row(name, ", ".join(f"{_plain(function)} {spent:.0f}" for function, spent in rows)))
    lines.append("")
    if "growth" in measured:
        lines += ["## Growth", "", "Time and memory grow as size to the power of:", "", *_head("", "time", "memory")]
        for series, kinds in measured["growth"].items():
            for kind, points in kinds.items():
                exponents = (f"{_exponent(series, points, what):.2f}" for what in ("seconds", "memory"))
                lines.append(_row(f"{kind} by {series}", *exponents))
        lines += ["", "## Memory of training", "", *_head("Images of", "Peak, MB", "Seconds")]
        for name, result in measured["training"].items():
            lines.append(_row(name, f"{result['memory']:.0f}", f"{result['seconds']:.1f}"))
        lines.append("")
    return "\n".join(lines)


def _goal_lines(measured: dict[str, Any]) -> list[str]:
    lines = []
    seconds = {name: case["seconds"] for name, case in measured["cases"].items()}
    for goal in [*goals(int(measured["size"].split()[-2])), *loss_goals()]:
        fast, slow = (seconds[case].get(contestant) for case, contestant in (goal.fast, goal.slow))
        if fast is None or slow is None:
            lines.append(_row(goal.what, f"{goal.least:.2f}", f"{goal.slow[1]} is not installed", ""))
        else:
            reached = ratio(fast, slow)
            lines.append(_row(goal.what, f"{goal.least:.2f}", f"{reached:.2f}", _verdict(reached >= goal.least)))
    for name, throughput in measured.get("throughput", {}).items():
        for contestant in throughput:
            if contestant != PEER and PEER in throughput:
                reached = ratio(throughput[contestant], throughput[PEER])
                lines.append(_row(f"{name}: {PEER} / {contestant}", "2.00", f"{reached:.2f}", _verdict(reached >= 2)))
    operations = measured["cases"]["operations per second at (80, 13)"]["operations"]
    times = seconds["operations per second at (80, 13)"]
    rates = {name: count / summary(times[name])["median"] for name, count in operations.items()}
    for name, least in RATES.items():
        part = rates[name] / rates["matrix product"]
        what = f"{name}: part of a matrix product's GFLOP/s"
        lines.append(_row(what, f"{least:.2f}", f"{part:.2f}", _verdict(part >= least)))
    for kind, points in measured.get("growth", {}).get("pixels", {}).items():
        exponent = _exponent("pixels", points, "seconds")
        lines.append(
            _row(f"{kind}: exponent of time by pixels", "at most 1.10", f"{exponent:.2f}", _verdict(exponent <= 1.1))
        )
    return lines


def _plain(function: str) -> str:
    """The name of a function without what Python puts around those of its own."""
    return function.strip("<{}>").removeprefix("built-in method ").removeprefix("method ").split(" of ")[0].strip("'")


def _head(*titles: str) -> tuple[str, str]:
    return _row(*titles), _row(*("---" for _ in titles))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _exponent(series: str, points: list[dict[str, Any]], what: str) -> float:
    return fitted_exponent([size(series, point) for point in points], [max(point[what], 1e-3) for point in points])


def _verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def plot(measured: dict[str, Any], path: Path) -> None:
    """Time and memory against pixels, labels and images, on logarithmic axes."""
    growth = measured["growth"]
    figure, axes = plt.subplots(2, len(growth), figsize=(4 * len(growth), 6), squeeze=False, layout="constrained")
    for column, (series, kinds) in enumerate(growth.items()):
        for row, (what, unit) in enumerate((("seconds", "time in seconds"), ("memory", "additional memory in MB"))):
            axis = axes[row, column]
            for kind, points in kinds.items():
                sizes = [size(series, point) for point in points]
                label = f"{kind}: exponent {_exponent(series, points, what):.2f}"
                axis.loglog(sizes, [point[what] for point in points], "o-", label=label)
            axis.set(xlabel=series, ylabel=unit)
            axis.set_xticks(sizes, [str(x) if x < 10_000 else f"{x / 1e6:.2g} M" for x in sizes])
            axis.minorticks_off()
            axis.grid(which="both", alpha=0.3)
            axis.legend(fontsize=8)
    figure.savefig(path, dpi=100)
    plt.close(figure)
