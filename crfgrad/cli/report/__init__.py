"""A page that shows what settings do: one HTML file, without network."""

import base64
import io
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from crfgrad.cli import outputs
from crfgrad.cli.errors import CommandError, sentence
from crfgrad.cli.grid import Setting
from crfgrad.cli.inputs import Maps, Sample
from crfgrad.cli.progress import progress
from crfgrad.cli.scores import load
from crfgrad.cli.search import Choice, Outcome
from crfgrad.cli.trajectories import trajectories
from crfgrad.cli.workers import each

IMAGES = 6
LIMIT = 20_000_000
SIDES = (480, 360, 270, 200, 140)  # of pictures, the longer one; the largest that fits is used
UNKNOWN = 255  # how unlabelled pixels are written


@dataclass(frozen=True)
class Pictures:
    """What is drawn of each image."""

    maps: Maps
    ignore: int
    settings: tuple[Setting, ...]
    iterations: int

    def draw(self, sample: Sample) -> dict[int, dict[str, Any]]:
        """Photograph, truth and all labels of an image, at each size.

        Labels after t iterations are written as their differences from those after t - 1, which are mostly 0 and hardly
        take any room.
        """
        image, probabilities, truth = load(sample, self.maps, self.ignore)
        truth = np.where(truth == self.ignore, UNKNOWN, truth).astype(np.uint8)
        height, width = truth.shape
        longer = max(height, width)
        scales = {side: side / longer for side in {min(side, longer) for side in SIDES}}
        places = {side: np.ix_(_nearest(height, scale), _nearest(width, scale)) for side, scale in scales.items()}
        drawn: dict[int, dict[str, Any]] = {}
        for side, (rows, columns) in places.items():
            size = columns.shape[1], len(rows)
            photo = Image.fromarray(image).resize(size, Image.Resampling.LANCZOS)
            buffer = io.BytesIO()
            photo.save(buffer, "JPEG", quality=85)
            drawn[side] = {
                "name": sample.name,
                "width": size[0],
                "height": size[1],
                "photo": "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode(),
                "truth": _packed(truth[rows, columns]),
                "states": [""] * len(self.settings),
            }
        for place, states in trajectories(probabilities, image, self.settings, self.iterations):
            for side, (rows, columns) in places.items():
                small = states[:, rows, columns].astype(np.uint8)
                drawn[side].setdefault("map", _packed(small[0]))
                drawn[side]["states"][place] = _packed(np.diff(small, axis=0))  # modulo 256
        return drawn


def check_num_labels(num_labels: int) -> None:
    """Raises a sentence if there are more labels than a page can show."""
    if num_labels > UNKNOWN:
        raise CommandError(f"a report shows up to {UNKNOWN} labels, the maps have {num_labels}: leave out --report")


def write_report(
    path: Path,
    outcome: Outcome,
    samples: Sequence[Sample],
    maps: Maps,
    ignore: int,
    class_names: Sequence[str],
    jobs: int,
) -> None:
    """Writes the page: at most 6 images, and 20 MB."""
    search = outcome.search
    num_labels = len(search.sums[0].true)
    check_num_labels(num_labels)
    gains = np.array([miou[outcome.best.setting, outcome.best.iterations] - miou[0, 0] for miou in search.images])
    shown = spread(gains, IMAGES)
    pictures = Pictures(maps, ignore, tuple(search.settings), search.sums[0].hit.shape[1] - 1)
    drawn: dict[str, dict[int, dict[str, Any]]] = {}
    with progress("report", len(shown)) as step:
        for sample, found in each(pictures.draw, [samples[place] for place in shown], jobs):
            if isinstance(found, Exception):
                raise CommandError(f"{sample.name}: {sentence(found)}")
            drawn[sample.name] = found
            step()
    facts = _facts(outcome, class_names or [f"label {label}" for label in range(num_labels)])
    for count in range(len(shown), 0, -1):
        for side in SIDES:
            images = [
                _at_most(side, drawn[samples[place].name]) | {"miou": _rounded(search.images[place])}
                for place in shown[:count]
            ]
            page = _page(facts | {"images": images}).encode()
            if len(page) <= LIMIT:
                outputs.write(path, page)
                return
    raise CommandError(f"no picture fits into a report of {LIMIT // 1_000_000} MB: try fewer settings")


def spread(gains: np.ndarray, most: int) -> list[int]:
    """Images from the one that gains most to the one that gains least, evenly over their order."""
    order = np.argsort(-np.nan_to_num(gains), kind="stable")
    return [int(order[place]) for place in np.linspace(0, len(order) - 1, min(most, len(order))).round().astype(int)]


def _facts(outcome: Outcome, class_names: Sequence[str]) -> dict[str, Any]:
    """All numbers of the page."""
    search = outcome.search
    whole = search.over(range(search.folds))
    folds = [
        {
            "images": int((search.parts == fold).sum()),
            "miou": _rounded(np.array(outcome.of_fold(fold))),
            "choice": _choice(choice),
        }
        for fold, choice in enumerate(outcome.by_fold)
    ]
    return {
        "parameters": Setting._fields,
        "settings": search.settings,
        "labels": [
            {"name": name, "colour": colour.tolist()}
            for name, colour in zip(class_names, outputs.colours(len(class_names)), strict=True)
        ],
        "count": len(search.parts),
        "miou": _rounded(whole.miou()),
        "iou": _rounded(whole.iou()),
        "best": _choice(outcome.best),
        "default": _choice(outcome.default),
        "figures": _rounded(np.array(outcome.over_all())),
        "folds": folds,
        "unknown": UNKNOWN,
    }


def _at_most(side: int, drawn: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The largest pictures up to a size."""
    return drawn[max(size for size in drawn if size <= side)]


def _choice(choice: Choice) -> list[int]:
    return [choice.setting, choice.iterations]


def _rounded(values: np.ndarray) -> Any:
    """Percent with two digits, null for NaN."""
    rounded = np.round(100 * values, 2).astype(object)
    rounded[np.isnan(values)] = None
    return rounded.tolist()


def _nearest(size: int, scale: float) -> np.ndarray:
    """The pixel in the middle of each pixel of a smaller picture."""
    small = max(1, round(size * scale))
    return ((np.arange(small) + 0.5) * size / small).astype(int)


def _packed(array: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 6)).decode()


def _page(data: dict[str, Any]) -> str:
    """The page with its style, script and data in it."""
    folder = Path(__file__).parent
    text = (folder / "page.html").read_text(encoding="utf-8")
    written = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {name: (folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js")} | {"data": written}
    for name, part in parts.items():
        text = text.replace(f"/* {name} */", part)
    return text
