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


def test_the_table_of_the_readme_is_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(tmp_path / "refine.png")
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for line in capsys.readouterr().out.splitlines()[1:6]:
        name, *numbers = line.split()
        published = next(row.split()[1:] for row in readme.splitlines() if row.startswith(f"{name} "))
        assert [float(number) for number in published] == pytest.approx([float(n) for n in numbers], rel=2e-3)
