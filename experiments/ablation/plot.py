"""A picture of the table: IoU of each row, a dot for each seed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.ablation.rows import title
from experiments.ablation.summary import Result

SPREAD = 0.36
"""How far apart the dots of the first and the last seed are, in rows."""


def plot(
    records: Sequence[dict[str, Any]], rows: dict[str, dict[int, Result]], label: str | None, output: Path
) -> Figure:
    """Writes iou.png and iou.pdf: the mean over the classes, or of one class. Returns the figure."""
    metric = "miou" if label is None else f"iou/{label}"
    figure = Figure(figsize=(7, 1.2 + 0.55 * len(records)), layout="constrained")
    axis = figure.subplots()
    seeds = sorted({seed for found in rows.values() for seed in found})
    for number, record in enumerate(records):
        if record["headline"] is not None:  # of a class that is nowhere there is none
            mean = record["headline"].mean
            axis.plot([mean, mean], [number - 0.32, number + 0.32], color="black", lw=2, label="mean")
            axis.annotate(f"{mean:.1f}", (mean, number - 0.34), ha="center", va="bottom", fontsize=8)
        if record["paper"] is not None:
            axis.plot(record["paper"], number, "D", mfc="none", mec="tab:red", ms=7, label="the paper's", zorder=3)
    for place, seed in enumerate(seeds):
        shift = SPREAD * (place / (len(seeds) - 1) - 0.5) if len(seeds) > 1 else 0.0
        found = [(number, rows[record["row"]].get(seed)) for number, record in enumerate(records)]
        values = [(number, result["metrics"].get(metric)) for number, result in found if result is not None]
        dots = [(100 * value, number + shift) for number, value in values if value is not None]
        if dots:
            axis.plot(*zip(*dots, strict=True), "o", color="tab:blue", alpha=0.7, ms=5, label="a seed")
    axis.set_yticks(range(len(records)), [title(record["row"]) for record in records])
    axis.set_ylim(len(records) - 0.4, -0.8)  # the first row on top
    axis.margins(x=0.1)
    axis.set_xlabel(f"{'mIoU' if label is None else f'IoU of {label}'} on the test split, percent")
    axis.grid(axis="x", alpha=0.3)
    handles = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside upper right", ncols=len(handles), fontsize=8)
    for suffix in ("png", "pdf"):
        figure.savefig(output / f"iou.{suffix}", dpi=150)
    return figure
