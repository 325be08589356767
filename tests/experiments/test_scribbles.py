"""The comparison on scribbles runs to its table and picture, on tiny scenes."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.scribbles.__main__ import ROWS, main
from experiments.scribbles.picture import draw_kinds
from tests.command_line import QUIET, SMALL


def test_table_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = main(tmp_path, [*QUIET, *SMALL, "--data.init_args.test_size=4", "--data.init_args.batch_size=2"])
    assert list(rows) == list(ROWS)
    printed = capsys.readouterr().out
    for name, metrics in rows.items():
        line = next(line for line in printed.splitlines() if line.startswith(f"{name}  "))
        assert f"{100 * metrics['test/miou']:.1f}" in line
    assert len({metrics["test/miou"] for metrics in rows.values()}) > 1
    assert np.array(Image.open(tmp_path / "scribbles.png")).std() > 10


def test_kinds_of_weak_labels(tmp_path: Path) -> None:
    draw_kinds(tmp_path / "kinds.png", scenes=2)
    assert np.array(Image.open(tmp_path / "kinds.png")).std() > 10
