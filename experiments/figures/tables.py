"""IoU of each class, of the network and of the CRF behind it."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from experiments.figures.curves import Curve

Row = tuple[str, float, float, float]
TITLES = ("class", "network", "network + CRF", "difference")


def class_rows(names: Sequence[str], curve: Curve) -> list[Row]:
    """Name, IoU before and after the iterations of the run and their difference, in percent; the mean last."""
    before, after = (100 * curve.iou[t] for t in (0, curve.trained))
    rows = [
        (name, first, last, last - first)
        for name, first, last in zip(names, before.tolist(), after.tolist(), strict=True)
    ]
    first, last = (100 * curve.miou[t].item() for t in (0, curve.trained))
    return [*rows, ("mean", first, last, last - first)]


def write_classes(rows: Sequence[Row], folder: Path) -> str:
    """Writes classes.csv and classes.md, and returns the latter."""
    with (folder / "classes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(TITLES)
        writer.writerows((name, *(f"{number:.4f}" for number in numbers)) for name, *numbers in rows)
    lines = [f"| {' | '.join(TITLES)} |", "| --- | ---: | ---: | ---: |"]
    for name, before, after, difference in rows:
        cells = [_cell(before, ".1f"), _cell(after, ".1f"), _cell(difference, "+.1f")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    table = "\n".join(lines) + "\n"
    (folder / "classes.md").write_text(table)
    return table


def _cell(number: float, form: str) -> str:
    return "" if math.isnan(number) else f"{number:{form}}"
