"""Settings that are not learned, chosen on the validation split: every combination of the given values.

python -m experiments.cross_validation --vary bilateral_sxy=20,40,80 --vary bilateral_srgb=5,10 -- \
    --config experiments/weizmann_horse/network.yaml --config experiments/heads/dense_crf.yaml \
    --model.init_args.unary_checkpoint outputs/weizmann_horse/network/version_0/checkpoints/best.ckpt

What stands after -- goes to ``main.py validate``. A name without dots is an argument of the head. Results are kept
in a CSV; a combination that it has is not computed again.
"""

import argparse
import csv
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.files import check_arguments
from main import main as run_main

HEAD = "model.init_args.head.init_args."
SCORE = "val/miou"
Setting = dict[str, str]


def combinations(varied: Sequence[str]) -> Iterator[Setting]:
    """All combinations of "name=value,value,..."."""
    names, values = [], []
    for text in varied:
        name, given, listed = text.partition("=")
        if not given or not all(listed.split(",")):
            raise SystemExit(f"--vary {text} names no values: write --vary {name or 'NAME'}=VALUE,VALUE,...")
        names.append(name)
        values.append(listed.split(","))
    for combination in itertools.product(*values):
        yield dict(zip(names, combination, strict=True))


def score(setting: Setting, output: Path, arguments: Sequence[str]) -> float:
    """The mIoU of one setting on the validation split."""
    run = run_main(["validate", *arguments, *_given(setting), "--untrained=true", f"--output={output}", "--name=runs"])
    return run.trainer.callback_metrics[SCORE].item()


def main(varied: Sequence[str], output: Path, arguments: Sequence[str]) -> list[tuple[float, Setting]]:
    """Scores all combinations, best first; writes OUTPUT/scores.csv."""
    sys.argv = sys.argv[:1]  # or Lightning warns that it was given arguments twice
    settings = list(combinations(varied))
    path = output / "scores.csv"
    finished: list[dict[str, str]] = []
    if path.is_file():
        with path.open() as file:
            finished = list(csv.DictReader(file))
        if finished and set(finished[0]) != {*settings[0], SCORE}:
            raise SystemExit(f"{path} is of other settings ({', '.join(finished[0])}): give another --output")
    check_arguments(output / "arguments.json", arguments, "scores")
    known = {tuple(row[name] for name in settings[0]): float(row[SCORE]) for row in finished}
    scores = []
    for number, setting in enumerate(settings, start=1):
        key = tuple(setting.values())
        if key not in known:
            known[key] = score(setting, output, arguments)
            new = not path.is_file()
            with path.open("a", newline="") as file:
                writer = csv.DictWriter(file, [*setting, SCORE])
                if new:
                    writer.writeheader()
                writer.writerow({**setting, SCORE: known[key]})
        scores.append((known[key], setting))
        print(f"{number} of {len(settings)}: {_listed(setting)}: {100 * known[key]:.2f}", flush=True)
    scores.sort(key=lambda scored: -scored[0])
    print(f"best: {_listed(scores[0][1])}: {100 * scores[0][0]:.2f}; all are in {path}; to use it:")
    print("  " + " ".join(_given(scores[0][1])))
    return scores


def _given(setting: Setting) -> list[str]:
    """The arguments of main.py that make a setting."""
    return [f"--{name if '.' in name else HEAD + name}={value}" for name, value in setting.items()]


def _listed(setting: Setting) -> str:
    return ", ".join(f"{name} {value}" for name, value in setting.items())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vary", action="append", required=True, metavar="NAME=VALUE,VALUE,...", dest="varied")
    parser.add_argument("--output", type=Path, default=Path("outputs/cross_validation"))
    parser.add_argument("arguments", nargs="+", help="of main.py validate, after --")
    main(**vars(parser.parse_args()))
