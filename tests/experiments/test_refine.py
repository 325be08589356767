"""The example: every solver improves the scores, and the picture is drawn."""

from pathlib import Path

import pytest
from PIL import Image

from experiments.refine import main


def test_every_solver_improves_the_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    iou = main(tmp_path / "refine.png", seed=1)
    scores = iou.pop("scores")
    assert len(iou) == 4
    assert all(refined > scores + 5 for refined in iou.values())
    assert "ProjectedGradient" in capsys.readouterr().out
    assert Image.open(tmp_path / "refine.png").size == (1440, 518)
