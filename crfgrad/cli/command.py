"""The command ``crfgrad`` and its options."""

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from crfgrad.cli.errors import CommandError

# what to import, and what to install for it
PACKAGES = {"PIL": "pillow", "rich": "rich", "yaml": "pyyaml"}

RAW = argparse.RawDescriptionHelpFormatter
MAPS = """\
maps: .npy or .npz (labels, height, width) of float16, float32 or float64, or (height, width) for two labels; .png of
8 or 16 bits for two labels, whose values are the probability of label 1. A map belongs to the image of the same name,
in the same folder below --images and --probabilities, whatever the suffix. Images are turned as their camera was
held, as their EXIF data have it."""


def parser() -> argparse.ArgumentParser:
    """All options of all commands."""
    whole = argparse.ArgumentParser(prog="crfgrad", description="Refine segmentation maps with a dense CRF.")
    whole.add_argument("--version", action="version", version=f"crfgrad {_version()}")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _refine(
        commands.add_parser("refine", help="refine the maps of a folder of images", epilog=MAPS, formatter_class=RAW)
    )
    text = MAPS + "\nResults so far are kept beside the YAML file: a command that was stopped goes on when run again."
    _tune(
        commands.add_parser(
            "tune", help="choose settings on images with ground truth", epilog=text, formatter_class=RAW
        )
    )
    return whole


def main(given: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status: 0 if all went well, 1 if something failed, 2 for a wrong option."""
    arguments = parser().parse_args(given)
    missing = [PACKAGES[module] for module in PACKAGES if importlib.util.find_spec(module) is None]
    try:
        if missing:
            raise CommandError(f"it needs {', '.join(missing)}: pip install {' '.join(missing)}")
        if arguments.command == "refine":
            from crfgrad.cli.refine import refine

            return refine(arguments)
        from crfgrad.cli.tune import tune

        return tune(arguments)
    except BrokenPipeError:  # whoever reads the output, as head does, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (CommandError, OSError) as error:
        print(f"crfgrad {arguments.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"crfgrad {arguments.command}: stopped; the same command goes on from here", file=sys.stderr)
        return 130


def _refine(command: argparse.ArgumentParser) -> None:
    _inputs(command)
    command.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="folder for labels/NAME.png and the other results"
    )
    command.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML file with settings, as tune writes it; options win over it"
    )
    settings = command.add_argument_group("settings", "Those of DenseCRF, with its defaults.")
    settings.add_argument("--gaussian-sxy", type=float, nargs="+", metavar="S", help="width in pixels, or x, y")
    settings.add_argument("--gaussian-compat", type=float, metavar="W", help="strength; 0 leaves the kernel out")
    settings.add_argument("--bilateral-sxy", type=float, nargs="+", metavar="S", help="width in pixels, or x, y")
    settings.add_argument("--bilateral-srgb", type=float, nargs="+", metavar="S", help="width in colour, or R, G, B")
    settings.add_argument("--bilateral-compat", type=float, metavar="W", help="strength; 0 leaves the kernel out")
    settings.add_argument("--iterations", type=int, metavar="T")
    results = command.add_argument_group("results")
    results.add_argument(
        "--save-probabilities",
        nargs="?",
        const="float32",
        choices=["float16", "float32"],
        help="also write probabilities/NAME.npy (float32, the default) or probabilities_float16/NAME.npy",
    )
    results.add_argument("--overlays", action="store_true", help="also write overlays/NAME.jpg: before and after")
    results.add_argument("--shard", type=_shard, default=(1, 1), metavar="I/N", help="only the I-th of N parts: 3/16")


def _tune(command: argparse.ArgumentParser) -> None:
    _inputs(command)
    command.add_argument(
        "--truth", type=Path, metavar="FOLDER", required=True, help="folder of PNGs whose values are the labels"
    )
    command.add_argument("--ignore", type=int, default=255, metavar="VALUE", help="of unlabelled pixels (default: 255)")
    command.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="YAML file for the settings: settings.yaml"
    )
    command.add_argument(
        "--report", type=Path, metavar="FILE", help="HTML file for a page to look at what the settings do"
    )
    command.add_argument(
        "--class-names", type=Path, metavar="FILE", help="text file with the name of a label per line, for the report"
    )
    grid = command.add_argument_group("values to try", "A single value is kept; more are a coarse grid, refined later.")
    for option, values, what in (
        ("--gaussian-sxy", [3.0], "widths in pixels"),
        ("--gaussian-compat", [1.0, 3.0], "strengths"),
        ("--bilateral-sxy", [15.0, 30.0, 60.0, 120.0], "widths in pixels"),
        ("--bilateral-srgb", [3.0, 6.0, 12.0], "widths in colour"),
        ("--bilateral-compat", [2.5, 5.0, 10.0], "strengths"),
    ):
        shown = " ".join(f"{value:g}" for value in values)
        grid.add_argument(option, type=float, nargs="+", default=values, metavar="V", help=f"{what} (default: {shown})")
    grid.add_argument("--iterations", type=int, default=10, metavar="T", help="all from 0 to T are tried (default: 10)")
    grid.add_argument("--rounds", type=int, default=2, help="times to refine around the best (default: 2)")
    folds = command.add_argument_group("cross-validation")
    folds.add_argument("--folds", type=int, default=5, help="parts of the images, each held out once (default: 5)")
    folds.add_argument("--seed", type=int, default=0, help="of the parts (default: 0)")


def _inputs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--images", type=Path, metavar="FOLDER", required=True, help="folder of images, and of folders of images"
    )
    maps = command.add_argument_group("maps").add_mutually_exclusive_group(required=True)
    maps.add_argument("--probabilities", type=Path, metavar="FOLDER", help="folder of probability maps, see below")
    maps.add_argument(
        "--labels", type=Path, metavar="FOLDER", help="folder of label maps instead: PNGs whose values are the labels"
    )
    labels = command.add_argument_group("label maps")
    labels.add_argument("--num-labels", type=int, metavar="L", help="number of labels; needed with --labels")
    labels.add_argument(
        "--confidence", type=float, default=0.7, metavar="P", help="probability of a pixel's label (default: 0.7)"
    )
    labels.add_argument("--unsure", type=int, default=255, metavar="VALUE", help="where all labels are alike (255)")
    labels.add_argument("--binary", action="store_true", help="two labels, values from 128 on are label 1")
    command.add_argument("--key", help="name of the array in .npz files that hold several")
    command.add_argument("--resize", action="store_true", help="bring maps to the size of their image")
    command.add_argument("--list", type=Path, metavar="FILE", help="text file with a name per line: only these images")
    command.add_argument("--jobs", type=int, metavar="N", help="images at a time (default: one per processor)")


def _version() -> str:
    try:
        return version("crfgrad")
    except PackageNotFoundError:
        return "(not installed)"


def _shard(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text} is no part: write 1/{parts or 16} to {parts or 16}/{parts or 16}")
    return int(part), int(parts)
