"""The rows of the table: the network alone, and a head for each other row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

HEADS = Path(__file__).parents[1] / "heads"
TITLES = {
    "network": "network",
    "unary": "+ unary (control)",
    "spatial_gaussian": "+ spatial (G)",
    "spatial": "+ spatial",
    "full_gaussian": "+ full (G)",
    "full": "+ full",
    "full_mean_field": "+ full (MF)",
}
GAUSSIAN = {"spatial": "spatial_gaussian", "full": "full_gaussian", "full_mean_field": "full_gaussian"}
"""The row of Gaussian shape that a row of free filters is compared with."""
CONTROL = "unary"
"""The row without pairwise terms, whose gain is due to training the network for longer."""


@dataclass(frozen=True)
class Published:
    """IoU of a paper in percent, by row: the mean over the classes, or of one class."""

    iou: Mapping[str, float] = field(default_factory=dict)
    label: str | None = None


PAPER = {
    "WeizmannHorse": Published(
        {
            "network": 80.0,
            "spatial_gaussian": 81.3,
            "spatial": 82.0,
            "full_gaussian": 82.9,
            "full": 84.0,
            "full_mean_field": 83.3,
        },
        label="horse",
    ),
    "NYUv2": Published({"crf_as_rnn": 54.4, "full": 55.0}),
    "Cityscapes": Published({"network": 71.8, "full": 71.9}),
}
"""The paper's results, by data set."""


@dataclass(frozen=True)
class Row:
    """A row: its name, which is that of its folder, and the configuration of its head."""

    name: str
    head: Path | None = None

    @property
    def title(self) -> str:
        """What the tables call it."""
        return title(self.name)

    @property
    def cross_validated(self) -> bool:
        """Whether its widths are chosen on the validation split."""
        return self.name in GAUSSIAN.values()

    @property
    def trained(self) -> bool:
        """False for a head in which there is nothing to learn."""
        return self.head is None or not str(head_settings(self.read())["class_path"]).endswith("DenseCRFHead")

    def read(self) -> dict[str, Any]:
        """The configuration of its head."""
        assert self.head is not None
        content = yaml.safe_load(self.head.read_text())
        try:
            head_settings(content)["class_path"]
        except (KeyError, TypeError):
            raise SystemExit(
                f"{self.head} configures no head: give model.init_args.head a class_path, as experiments/heads/ do"
            ) from None
        return dict(content)


NETWORK = Row("network")


def title(name: str) -> str:
    """What the tables call a row."""
    return TITLES.get(name, f"+ {name}")


def compared_with(name: str) -> dict[str, str | None]:
    """The rows that a row is compared with, by what the tables call the difference."""
    return {
        "over the network": NETWORK.name,
        "over the control": None if name == NETWORK.name else CONTROL,
        "over its (G) row": GAUSSIAN.get(name),
        "over (MF)": "full_mean_field" if name == "full" else None,
    }


def in_order(names: set[str]) -> list[str]:
    """Names of rows in the order of the paper's table, others after them."""
    known = list(TITLES)
    return sorted(names, key=lambda name: (known.index(name) if name in known else len(known), name))


def head_settings(content: dict[str, Any]) -> dict[str, Any]:
    """The head in a configuration."""
    settings: dict[str, Any] = content["model"]["init_args"]["head"]
    return settings


def find_rows(asked: Sequence[str]) -> list[Row]:
    """Rows by name, or by the path of a head's configuration; the network comes first, asked for or not."""
    rows = {NETWORK.name: NETWORK}
    for text in asked:
        if text == NETWORK.name:
            continue
        path = HEADS / f"{text}.yaml" if text in TITLES else Path(text)
        if not path.is_file():
            names = ", ".join(TITLES)
            raise SystemExit(f"--rows {text} is neither a file nor a row: give the path of a head, or some of {names}")
        if path.stem in rows and rows[path.stem].head != path.resolve():
            raise SystemExit(f"--rows {text} has the name of another row, {path.stem}: rename the file")
        if path.stem in TITLES and path.resolve() != (HEADS / path.name).resolve():
            raise SystemExit(f"--rows {text} has the name of a row of the paper, {path.stem}: rename the file")
        rows[path.stem] = Row(path.stem, path.resolve())
    for row in rows.values():
        if row.head is not None:
            row.read()
    return list(rows.values())
