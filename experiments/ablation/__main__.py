"""The ablation of the paper's Table 1 on any data set, and its tables.

python -m experiments.ablation --config experiments/weizmann_horse/lite0.yaml \
    --head_config experiments/second_stage.yaml --output outputs/ablation/weizmann_horse --seeds 0 1 2

What stands after -- goes to ``main.py fit`` in all runs. A run that is finished is not run again, one that was killed
goes on from its last epoch: give the same command. docs/ablation.md says more.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.ablation.plan import GRID, Plan
from experiments.ablation.report import read_results, write_report
from experiments.ablation.rows import PAPER, TITLES, find_rows
from experiments.ablation.runs import run_all


def read_grid(varied: Sequence[str]) -> dict[str, list[float]]:
    """The default grid with the given "name=value,value,..." in place of its own."""
    grid = dict(GRID)
    for text in varied:
        name, _, values = text.partition("=")
        if name not in GRID:
            raise SystemExit(f"--vary {text} names nothing that can be varied: take one of {', '.join(GRID)}")
        try:
            grid[name] = [float(value) for value in values.split(",")]
        except ValueError:
            raise SystemExit(f"--vary {text} has no list of numbers: write --vary {name}=VALUE,VALUE,...") from None
        if len(set(grid[name])) < len(grid[name]) or min(grid[name]) < 0 or ("sigma" in name and min(grid[name]) == 0):
            raise SystemExit(f"--vary {text} repeats a number or has one that cannot be: give positive numbers")
    return grid


def main(arguments: Sequence[str] | None = None) -> str:
    """Runs what is not there yet, writes the report and returns it."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.ablation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, nargs="+", default=[], help="configurations of data and network")
    parser.add_argument("--output", type=Path, required=True, help="folder of all runs and of the report")
    parser.add_argument("--seeds", type=int, nargs="+", help="the default is 0")
    parser.add_argument("--rows", nargs="+", help=f"some of {', '.join(TITLES)}, or paths of heads; the default is all")
    parser.add_argument("--network_config", type=Path, nargs="+", default=[], help="further ones for the first stage")
    parser.add_argument("--head_config", type=Path, nargs="+", default=[], help="further ones for the second stage")
    parser.add_argument("--vary", action="append", default=[], metavar="NAME=VALUE,VALUE,...", help="grid of (G) rows")
    parser.add_argument("--free_widths", action="store_true", help="free rows start at the widths of their (G) row")
    parser.add_argument("--paper", choices=[*PAPER, "none"], help="data set of the paper to compare with")
    parser.add_argument("--report_only", action="store_true", help="tables and plots from what is there")
    parser.add_argument("arguments", nargs="*", help="of main.py fit, after --")
    asked = parser.parse_args(arguments)
    output = asked.output.resolve()  # checkpoints know their folder; a run resumes where that has not changed
    rows = find_rows(asked.rows or list(TITLES))
    if asked.report_only:
        names = None if asked.rows is None else [row.name for row in rows]
        return finish(output, names, asked.seeds, asked.paper)
    if not asked.config:
        parser.error("which data and network? give --config experiments/.../network.yaml")
    seeds = list(dict.fromkeys(asked.seeds or [0]))
    plan = Plan(
        output,
        asked.config,
        asked.network_config,
        asked.head_config,
        asked.arguments,
        read_grid(asked.vary),
        asked.free_widths,
        shlex.join(["python", "-m", "experiments.ablation", *(sys.argv[1:] if arguments is None else arguments)]),
    )
    argv, sys.argv = sys.argv, sys.argv[:1]  # or Lightning warns that it was given arguments twice
    try:
        run_all(plan, rows, seeds)
    except FileNotFoundError as missing:  # data, above all, and what to do about it
        raise SystemExit(str(missing)) from None
    finally:
        sys.argv = argv
    return finish(output, [row.name for row in rows], seeds, asked.paper)


def finish(output: Path, rows: Sequence[str] | None, seeds: Sequence[int] | None, paper: str | None) -> str:
    """Writes and prints the report."""
    text = write_report(read_results(output, rows, seeds), output, paper)
    print(f"\n{text}\nwritten to {output}: results.md, results.csv, results.tex, runs.csv, iou.png, iou.pdf")
    return text


if __name__ == "__main__":
    main()
