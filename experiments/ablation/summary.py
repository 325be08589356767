"""Means over seeds, and differences between rows with the same seed."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import t as student

from experiments.ablation.rows import NETWORK, Published, compared_with, in_order

CONFIDENCE = 0.95
Result = dict[str, Any]


@dataclass(frozen=True)
class Mean:
    """Mean, sample standard deviation and confidence interval of a number over seeds; nan where they need more."""

    mean: float
    deviation: float
    low: float
    high: float


def mean_over_seeds(values: Sequence[float | None]) -> Mean | None:
    """Of the seeds that have the number; None if none of them has.

    The interval is Student's: mean ± t s / sqrt(n), with t the 97.5 % quantile for n - 1 degrees of freedom. It is
    for numbers that are normally distributed over seeds.

    Example:
        >>> summary = mean_over_seeds([1.0, 2.0, 3.0])  # s = 1, t = 4.303
        >>> round(summary.low, 3), round(summary.high, 3)
        (-0.484, 4.484)
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean = statistics.fmean(known)
    if len(known) == 1:
        return Mean(mean, math.nan, math.nan, math.nan)
    deviation = statistics.stdev(known)
    reach = float(student.ppf((1 + CONFIDENCE) / 2, len(known) - 1)) * deviation / math.sqrt(len(known))
    return Mean(mean, deviation, mean - reach, mean + reach)


def by_row(results: Sequence[Result]) -> dict[str, dict[int, Result]]:
    """Results by row, in the order of the table, and by seed."""
    names = in_order({result["row"] for result in results})
    ordered = sorted(results, key=lambda result: int(result["seed"]))
    return {name: {result["seed"]: result for result in ordered if result["row"] == name} for name in names}


def metric(results: dict[int, Result], name: str) -> Mean | None:
    """A metric of a row over its seeds."""
    return mean_over_seeds([result["metrics"].get(name) for result in results.values()])


def difference(rows: dict[str, dict[int, Result]], row: str, other: str | None, name: str = "miou") -> Mean | None:
    """By how much a row exceeds another on the seeds that both have."""
    if other is None or other == row or other not in rows:
        return None
    pairs = [
        (result["metrics"], rows[other][seed]["metrics"]) for seed, result in rows[row].items() if seed in rows[other]
    ]
    return mean_over_seeds(
        [own[name] - its[name] for own, its in pairs if own.get(name) is not None and its.get(name) is not None]
    )


def lower_energies(results: dict[int, Result]) -> tuple[int, int, int] | None:
    """Test images of all seeds where the row's own solver ends lower than the switched one, where higher, and all."""
    compared = [result["solvers"] for result in results.values() if result["solvers"] is not None]
    pairs = [pair for solvers in compared for pair in zip(solvers["own"], solvers["switched"], strict=True)]
    if not pairs:
        return None
    return sum(own < other for own, other in pairs), sum(own > other for own, other in pairs), len(pairs)


def switched_energy(results: dict[int, Result]) -> Mean | None:
    """The mean E(q^T) with the switched solver, over seeds."""
    compared = [result["solvers"] for result in results.values() if result["solvers"] is not None]
    return mean_over_seeds([statistics.fmean(solvers["switched"]) for solvers in compared])


def summarise(results: Sequence[Result], paper: Published) -> list[dict[str, Any]]:
    """A record for each row of the tables; IoU in percent. ``headline`` is what the paper's IoU stands beside."""
    rows = by_row(results)
    records = []
    for name, found in rows.items():
        classes = next(iter(found.values()))["classes"]
        records.append(
            {
                "row": name,
                "seeds": list(found),
                "miou": percent(metric(found, "miou")),
                "headline": percent(metric(found, "miou" if paper.label is None else f"iou/{paper.label}")),
                "paper": paper.iou.get(name),
                "miou_network": percent(metric(found, "miou_network")),
                "trimap_miou": percent(metric(found, "trimap_miou")),
                "differences": {
                    title: percent(difference(rows, name, other)) for title, other in compared_with(name).items()
                },
                "trimap_differences": {
                    title: percent(difference(rows, name, other, "trimap_miou"))
                    for title, other in compared_with(name).items()
                },
                "iou": {label: percent(metric(found, f"iou/{label}")) for label in classes},
                "iou_over_network": {
                    label: percent(difference(rows, name, NETWORK.name, f"iou/{label}")) for label in classes
                },
                "energy_network": metric(found, "energy_network"),
                "energy": metric(found, "energy"),
                "energy_switched": switched_energy(found),
                "solver": next((result["solvers"]["solver"] for result in found.values() if result["solvers"]), None),
                "lower": lower_energies(found),
            }
        )
    return records


def percent(summary: Mean | None) -> Mean | None:
    """The same times 100."""
    if summary is None:
        return None
    low, high = 100 * summary.low, 100 * summary.high
    return Mean(100 * summary.mean, 100 * summary.deviation, low, high)
