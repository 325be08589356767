"""The best of all combinations on the validation split; finished ones are not computed again."""

from pathlib import Path

import pytest

from experiments import cross_validation
from tests.command_line import ROOT, STREETS, TINY

HEAD = f"--config={ROOT / 'experiments' / 'heads' / 'dense_crf.yaml'}"
VARIED = ["bilateral_compat=0,100", "model.init_args.trimap_width=2"]


def test_scores_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    given = [f"--config={STREETS}", HEAD, *TINY]
    scores = cross_validation.main(VARIED, tmp_path, given)
    assert {setting["bilateral_compat"] for _, setting in scores} == {"0", "100"}
    assert scores[0][0] > scores[1][0]  # so that the values have reached the head
    assert "best: bilateral_compat" in capsys.readouterr().out
    monkeypatch.setattr(cross_validation, "score", lambda *_: pytest.fail("computed again"))
    assert cross_validation.main(VARIED, tmp_path, given) == scores
    with pytest.raises(SystemExit, match="has scores for other arguments"):
        cross_validation.main(VARIED, tmp_path, [*given, "--seed_everything=1"])


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--vary compat= names no values"):
        list(cross_validation.combinations(["compat="]))
    (tmp_path / "scores.csv").write_text("other,val/miou\n1,0.5\n")
    with pytest.raises(SystemExit, match="is of other settings"):
        cross_validation.main(VARIED, tmp_path, [])
