"""The tables, as Markdown, CSV and LaTeX, made from result files alone."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.ablation.formats import Table, interval, latex, markdown, spread, table_csv
from experiments.ablation.plot import plot
from experiments.ablation.rows import NETWORK, PAPER, Published, title
from experiments.ablation.settings import differences
from experiments.ablation.summary import Mean, Result, by_row, summarise
from experiments.files import duration, read_json, write_text

EDGE = "*"
"""What marks a chosen number at an edge of its grid."""


def read_results(output: Path, rows: Sequence[str] | None = None, seeds: Sequence[int] | None = None) -> list[Result]:
    """All result files below a folder, of these rows and seeds where they are given."""
    found = [read_json(path) for path in sorted(output.glob("seed_*/*/result.json"))]
    if not found:
        raise SystemExit(f"there are no results in {output}: leave out --report_only to run the ablation first")
    found = [result for result in found if rows is None or result["row"] in rows]
    found = [result for result in found if seeds is None or result["seed"] in seeds]
    there = {result["row"] for result in found} | {NETWORK.name}, {result["seed"] for result in found}
    missing = [f"row {row}" for row in rows or () if row not in there[0]]
    missing += [f"seed {seed}" for seed in seeds or () if seed not in there[1]]
    if missing:
        raise SystemExit(f"there are no results of {', '.join(missing)} in {output}: leave out --report_only to run it")
    return found


def refuse_mixed(results: Sequence[Result]) -> None:
    """Refuses a table over runs whose settings differ: of one row, or of the network behind all of them."""
    first: dict[str, tuple[str, dict[str, Any]]] = {}
    for result in results:
        name, settings = f"{result['row']} of seed {result['seed']}", result["settings"]
        behind = {
            key.removeprefix("network: "): value for key, value in settings.items() if key.startswith("network: ")
        }
        for kind, found in ((result["row"], settings), ("network", behind or settings)):
            other, known = first.setdefault(kind, (name, found))
            differing = differences(known, found)
            if differing:
                raise SystemExit(
                    f"{other} and {name} were run with other settings ({'; '.join(differing[:3])}): report them apart, "
                    "with --rows or --seeds"
                )


def published(results: Sequence[Result], name: str | None) -> Published:
    """The paper's IoU on the data set that is named, or that the results are of."""
    classes = results[0]["classes"]
    if name is None:
        name = results[0]["data"]
        if name == "NYUv2" and len(classes) != 5:
            return Published()  # the paper has the task of 5 classes
    paper = PAPER.get(name, Published())
    if paper.label not in (None, *classes):
        raise SystemExit(
            f"--paper {name} has the IoU of {paper.label}, which is none of the classes {', '.join(classes)}: give "
            "another one, or --paper none"
        )
    return paper


def write_report(results: Sequence[Result], output: Path, paper: str | None = None) -> str:
    """Writes results.md, .csv and .tex, runs.csv, iou.png and .pdf; returns the Markdown."""
    refuse_mixed(results)
    beside = published(results, paper)
    records = summarise(results, beside)
    tables = [
        accuracy(records, beside.label),
        boundaries(records),
        classes(records),
        gains(records),
        energies(records),
        widths(results),
    ]
    tables = [table for table in tables if table.body]
    parts = [f"# Ablation on {results[0]['data']}", *map(markdown, tables), origin(results)]
    text = "\n\n".join(parts) + "\n"
    write_text(output / "results.md", text)
    write_text(output / "results.tex", "\n\n".join(map(latex, tables)) + "\n")
    write_text(output / "results.csv", table_csv([_numbers(record) for record in records]))
    write_text(
        output / "runs.csv",
        table_csv([_run(result) for found in by_row(results).values() for result in found.values()]),
    )
    plot(records, by_row(results), beside.label, output)
    return text


def accuracy(records: Sequence[dict[str, Any]], label: str | None = None) -> Table:
    """IoU and its differences; ``label`` is the class whose IoU the paper gives, None where it gives the mean."""
    keys = {"mIoU": "miou"}
    if label is not None:
        keys[f"IoU of {label}"] = "headline"
    if any(record["paper"] for record in records):
        keys["the paper's"] = "paper"
    keys["its network's"] = "miou_network"
    head, body = compare(records, keys, "differences")
    seeds = [record["seeds"] for record in records]
    same = all(each == seeds[0] for each in seeds)
    counts = [str(len(each)) if same else ", ".join(map(str, each)) for each in seeds]
    most = max(len(record["seeds"]) for record in records)
    note = (
        "IoU on the test split in percent, mean ± standard deviation over seeds; differences of mIoU between runs of "
    )
    note += "the same seed with their 95 % confidence interval (Student's t)."
    if most == 1:
        note = "IoU on the test split in percent. One seed: no standard deviation and no confidence interval."
    note += " Its network's: what the network that was trained with the CRF says before it."
    if not same:
        note += " Rows have other seeds: compare them by their differences."
    counted = [[row, count, *cells] for (row, *cells), count in zip(body, counts, strict=True)]
    return Table("Accuracy", ["", "seeds", *head], counted, note)


def boundaries(records: Sequence[dict[str, Any]]) -> Table:
    """The same near the boundaries of the truth."""
    head, body = compare(records, {"trimap mIoU": "trimap_miou"}, "trimap_differences")
    return Table("Near boundaries", ["", *head], body, "As above, of the pixels near a boundary of the truth.")


def compare(
    records: Sequence[dict[str, Any]], keys: Mapping[str, str], differences: str
) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table of numbers and of the differences that there are."""
    compared = [name for name in records[0][differences] if any(record[differences][name] for record in records)]
    body = []
    for record in records:
        numbers = [record[key] for key in keys.values()]
        cells = [f"{number:.1f}" if isinstance(number, float) else spread(number) for number in numbers]
        cells += [interval(record[differences][name]) for name in compared]
        body.append([title(record["row"]), *cells])
    return [*keys, *compared], body


def classes(records: Sequence[dict[str, Any]]) -> Table:
    """IoU of each class."""
    names = list(records[0]["iou"])
    body = [[title(record["row"]), *(spread(record["iou"].get(name)) for name in names)] for record in records]
    return Table("IoU of each class", ["", *names], body, "In percent. A class that is nowhere has none.")


def gains(records: Sequence[dict[str, Any]]) -> Table:
    """By how much each class gains on the network alone."""
    names = list(records[0]["iou"])
    body = [
        [title(record["row"]), *(interval(record["iou_over_network"].get(name)) for name in names)]
        for record in records
        if any(record["iou_over_network"].values())
    ]
    note = (
        "Difference of the IoU of each class between runs of the same seed, with its 95 % confidence interval if there "
    )
    note += "are several."
    return Table("Over the network, by class", ["", *names], body, note)


def energies(records: Sequence[dict[str, Any]]) -> Table:
    """Energies of the rows that have them."""
    body = []
    for record in records:
        if record["energy"] is not None:
            cells = [spread(record[key], digits=0) for key in ("energy_network", "energy", "energy_switched")]
            lower = "" if record["lower"] is None else "{0} of {2}".format(*record["lower"])
            body.append([title(record["row"]), record["solver"] or "", *cells, lower])
    head = [
        "",
        "solver",
        "E(q^0)",
        "E(q^T)",
        "E(q^T) with the switched solver",
        "E lower than with the switched solver",
    ]
    note = "Mean over the test images. Each model has its own energy: compare within a row. Switched: mean field in "
    note += "place of projected gradient descent, projected gradient descent in place of any other solver, on the same "
    note += "energy; the images of all seeds are counted."
    return Table("Energy", head, body, note)


def widths(results: Sequence[Result]) -> Table:
    """What was chosen on the validation split."""
    chosen = [result for found in by_row(results).values() for result in found.values() if result["widths"]]
    names = list(dict.fromkeys(name for result in chosen for name in result["widths"]))
    body = [[title(each["row"]), str(each["seed"]), *(_width(each, name) for name in names)] for each in chosen]
    note = "The best of the grid on the validation split; free rows start at the bilateral values of full (G)."
    if any(EDGE in cell for line in body for cell in line):
        note += f" {EDGE} The lowest or highest that was tried: values beyond it may be better."
    return Table("Widths and strengths", ["", "seed", *names], body, note)


def _width(result: Result, name: str) -> str:
    """A chosen number, marked if it is at an edge of its grid; none for a width that goes with strength 0."""
    point, tried = result["widths"], result["settings"].get(f"grid: {name}", [])
    if name not in point or (not name.endswith("strength") and point.get(f"{name.partition('.')[0]}.strength") == 0):
        return ""
    at_edge = len(tried) > 1 and point[name] in (min(tried), max(tried)) and point[name] != 0
    return f"{point[name]:g}{EDGE if at_edge else ''}"


def origin(results: Sequence[Result]) -> str:
    """How the numbers were made: commands, seeds, time and versions, as Markdown."""
    commands = "\n".join(dict.fromkeys(result["command"] for result in results))
    used = dict.fromkeys(f"{name} {version}" for result in results for name, version in result["versions"].items())
    seeds = ", ".join(map(str, sorted({result["seed"] for result in results})))
    took = duration(sum(result["seconds"] for result in results))
    threads = ", ".join(map(str, sorted({result["threads"] for result in results})))
    made = f"{len(results)} runs, seeds {seeds}, {took} in all, CPU threads: {threads}; {', '.join(used)}."
    resumed = sum(result["resumed"] for result in results)
    if resumed:
        made += f" Resumed runs: {resumed}; their time before that is not counted."
    return f"## How it was made\n\n```\n{commands}\n```\n\n{made}"


def _numbers(record: dict[str, Any]) -> dict[str, Any]:
    """A record with a column for each number."""
    columns: dict[str, Any] = {"row": record["row"], "seeds": len(record["seeds"]), "paper": record["paper"]}
    named = {name: value for name, value in record.items() if isinstance(value, Mean)}
    named |= {f"iou/{name}": value for name, value in record["iou"].items() if value is not None}
    differences = {f"iou/{name} over the network": value for name, value in record["iou_over_network"].items()}
    differences |= {f"miou {name}": value for name, value in record["differences"].items()}
    differences |= {f"trimap_miou {name}": value for name, value in record["trimap_differences"].items()}
    named |= {name: value for name, value in differences.items() if value is not None}
    for name, summary in named.items():
        parts = {"mean": summary.mean, "std": summary.deviation}
        if name in differences:
            parts |= {"low": summary.low, "high": summary.high}
        columns |= {f"{name} {part}": "" if math.isnan(number) else number for part, number in parts.items()}
    if record["lower"] is not None:
        columns |= dict(zip(("images lower", "images higher", "images"), record["lower"], strict=True))
    return columns


def _run(result: Result) -> dict[str, Any]:
    """A run as a line of runs.csv."""
    return {
        "row": result["row"],
        "seed": result["seed"],
        "seconds": result["seconds"],
        "val/miou": result.get("validation"),
        **result["metrics"],
        **(result["widths"] or {}),
    }
