"""crfgrad refine: the maps of a folder, refined."""

import argparse
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from crfgrad.cli import outputs
from crfgrad.cli.errors import CommandError, sentence
from crfgrad.cli.inputs import Maps, Sample, find_samples, read_image
from crfgrad.cli.progress import duration, progress
from crfgrad.cli.settings import DEFAULTS, Settings, build, chosen_settings
from crfgrad.cli.workers import checked_jobs, each

RECORD = "refine.yaml"
SHOWN = 20


@dataclass(frozen=True)
class Task:
    """What is done with each image."""

    maps: Maps
    settings: Settings
    output: Path
    save_probabilities: str | None
    overlays: bool

    def results(self, sample: Sample) -> dict[str, Path]:
        """The files that an image gets."""
        files = {"labels": Path("labels", f"{sample.name}.png")}
        if self.save_probabilities:
            folder = "probabilities" if self.save_probabilities == "float32" else "probabilities_float16"
            files["probabilities"] = Path(folder, f"{sample.name}.npy")
        if self.overlays:
            files["overlays"] = Path("overlays", f"{sample.name}.jpg")
        return {kind: self.output / path for kind, path in files.items()}

    def record(self, images: Path) -> dict[str, Any]:
        """What all results of a folder have in common."""
        kept: dict[str, Any] = {"settings": self.settings, "images": str(images.resolve())}
        kept["labels" if self.maps.are_labels else "probabilities"] = str(self.maps.folder.resolve())
        if self.maps.are_labels:
            kept |= {name: getattr(self.maps, name) for name in ("num_labels", "confidence", "unsure", "binary")}
        return kept | {"key": self.maps.key, "resize": self.maps.resize}


def refine(arguments: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    started = time.monotonic()
    settings = chosen_settings(arguments)
    jobs = checked_jobs(arguments.jobs)
    maps = Maps.of(arguments)
    task = Task(maps, settings, arguments.output, arguments.save_probabilities, arguments.overlays)
    if arguments.output.exists() and not arguments.output.is_dir():
        raise CommandError(f"--output {arguments.output} is a file: give a folder")
    for folder in (arguments.images, maps.folder):
        if arguments.output.resolve().is_relative_to(folder.resolve()):
            raise CommandError(f"--output {arguments.output} is within {folder}, which is read: give another folder")
        if folder.resolve().is_relative_to(arguments.output.resolve()):
            raise CommandError(
                f"{folder}, which is read, is within --output {arguments.output}, where results could overwrite it: "
                "give another folder"
            )
    samples, missing = find_samples(arguments.images, maps, None, arguments.list)
    part, parts = arguments.shard
    mine = set(sorted([*(sample.name for sample in samples), *missing])[part - 1 :: parts])
    samples = [sample for sample in samples if sample.name in mine]
    failures = {name: failure for name, failure in missing.items() if name in mine}
    _check_record(arguments.output / RECORD, task.record(arguments.images))

    due = [sample for sample in samples if not all(path.is_file() for path in task.results(sample).values())]
    outputs.remove_partial(arguments.output, {path for sample in due for path in task.results(sample).values()})
    for name in list(failures)[:SHOWN]:
        print(f"{name}: {failures[name]}", file=sys.stderr)
    if len(failures) > SHOWN:
        print(f"and {len(failures) - SHOWN} more without one of their files", file=sys.stderr)
    if due:
        with progress("refine", len(due)) as step:
            for sample, failure in each(partial(_refine_one, task), due, jobs):
                if failure is not None:
                    failures[sample.name] = sentence(failure)
                step(f"{sample.name}: {failures[sample.name]}" if failure is not None else None)
    refined = len(due) - sum(sample.name in failures for sample in due)
    skipped = len(samples) - len(due)
    print(
        f"{refined} images refined in {duration(time.monotonic() - started)}, {skipped} were finished before, "
        f"{len(failures)} failed; results are in {arguments.output}"
    )
    if failures:
        first = ", ".join(list(failures)[:SHOWN]) + (", ..." if len(failures) > SHOWN else "")
        print(f"failed: {first}; run the same command again once they are mended", file=sys.stderr)
    return 1 if failures else 0


def _refine_one(task: Task, sample: Sample) -> None:
    image = read_image(sample.image)
    probabilities = task.maps.read(sample.map, image.shape[:2])
    try:
        refined = build(task.settings)(probabilities, image)
    except ValueError as error:
        raise ValueError(f"{sample.map}: {error}") from None
    labels = refined.argmax(0)
    contents = {
        "labels": lambda: outputs.label_png(labels, len(refined)),
        "probabilities": lambda: outputs.array_npy(refined.astype(task.save_probabilities)),
        "overlays": lambda: outputs.overlay_jpeg(image, probabilities.argmax(0), labels, len(refined)),
    }
    for kind, path in task.results(sample).items():
        outputs.write(path, contents[kind]())


def _check_record(path: Path, wanted: dict[str, Any]) -> None:
    """Results of other settings are not mixed: refuses them, or notes the settings of new ones."""
    wanted = yaml.safe_load(yaml.safe_dump(wanted))
    # looked for before the record: another shard that starts at the same time writes the record first
    has_results = any((path.parent / "labels").rglob("*.png"))
    try:
        kept = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (UnicodeDecodeError, yaml.YAMLError):
        raise CommandError(f"{path} is no record of settings: give another --output") from None
    if kept is None:
        if has_results:
            raise CommandError(
                f"{path.parent} holds results without {path.name}, so of unknown settings: give another --output"
            )
        outputs.write(path, yaml.safe_dump(wanted, sort_keys=False).encode())
        return
    if not isinstance(kept, dict) or not isinstance(kept.get("settings"), dict):
        raise CommandError(f"{path} is no record of settings: give another --output")
    before, now = ({**DEFAULTS, **record, **record["settings"]} for record in (kept, wanted))
    differing = [name for name in {**now, **before} if name != "settings" and before.get(name) != now.get(name)]
    if differing:
        told = "; ".join(f"{name} {before.get(name)}, not {now.get(name)}" for name in differing)
        raise CommandError(f"{path.parent} holds results of other settings ({told}): give another --output")
