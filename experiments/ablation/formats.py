"""Tables of text as Markdown, CSV and LaTeX, and how their numbers are written."""

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.ablation.summary import Mean

LATEX = {"\\": r"\textbackslash{}", "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "±": r"$\pm$"}
LATEX |= {"E(q^0)": "$E(q^0)$", "E(q^T)": "$E(q^T)$"}


@dataclass(frozen=True)
class Table:
    """A table of text with what is said below it."""

    name: str
    head: Sequence[str]
    body: Sequence[Sequence[str]]
    note: str


def spread(summary: Mean | None, digits: int = 1) -> str:
    """Mean ± standard deviation."""
    if summary is None:
        return ""
    deviation = "" if math.isnan(summary.deviation) else f" ± {summary.deviation:.{digits}f}"
    return f"{summary.mean:.{digits}f}{deviation}"


def interval(summary: Mean | None) -> str:
    """Mean and confidence interval, with signs."""
    if summary is None:
        return ""
    around = "" if math.isnan(summary.low) else f" [{summary.low:+.1f}, {summary.high:+.1f}]"
    return f"{summary.mean:+.1f}{around}"


def markdown(table: Table) -> str:
    """A table as Markdown."""
    lines = [table.head, ["---"] * len(table.head), *table.body]
    rows = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"## {table.name}\n\n{rows}\n\n{table.note}"


def latex(table: Table) -> str:
    """A table as LaTeX, for a document that has the package booktabs."""
    lines = [" & ".join(_escape(cell) for cell in line) + r" \\" for line in (table.head, *table.body)]
    parts = [f"% {table.name}: {table.note}", rf"\begin{{tabular}}{{l{'c' * (len(table.head) - 1)}}}", r"\toprule"]
    return "\n".join([*parts, lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}"])


def table_csv(records: Sequence[dict[str, Any]]) -> str:
    """Records with any keys as one CSV."""
    text = io.StringIO()
    names = list(dict.fromkeys(name for record in records for name in record))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def _escape(cell: str) -> str:
    for character, replacement in LATEX.items():
        cell = cell.replace(character, replacement)
    return re.sub(r"(?<![^\s\[])-(?=\d)", "$-$", cell)  # a minus, not a hyphen
