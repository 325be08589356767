"""The dense CRF behind a network, with settings chosen on the validation split."""

import re
from pathlib import Path

import pytest

from experiments import dense_crf
from experiments.dense_crf import HEAD
from tests.command_line import ROOT, STREETS, TINY, run

GRID = ["--bilateral-sxy", "20", "--bilateral-srgb", "13", "--bilateral-compat", "0", "10", "--gaussian-compat", "3"]
GRID += ["--iterations", "2", "--rounds", "0", "--folds", "3", "--jobs", "1"]


def test_what_is_chosen_scores_as_promised_behind_the_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"--config={STREETS}", *TINY, "--untrained=true", "--seed_everything=1"]
    settings = dense_crf.main(tmp_path / "tuned", GRID, given)
    printed = capsys.readouterr().out
    for kind, suffix in (("images", "png"), ("probabilities", "npy"), ("truth", "png")):
        assert len(list((tmp_path / "tuned" / kind).glob(f"*.{suffix}"))) == 3
    maps, defaults, _ = map(float, next(x for x in printed.splitlines() if x.strip().startswith("all")).split()[2:5])
    head = f"--config={ROOT / 'experiments' / 'heads' / 'dense_crf.yaml'}"

    def behind(*values: str) -> dict[str, float]:
        validated = run("validate", *given, head, *values, f"--output={tmp_path}", "--name=run")
        return {name: value.item() for name, value in validated.trainer.callback_metrics.items()}

    found = behind(f"--{HEAD}iterations=5")
    assert maps == pytest.approx(100 * found["val/miou_network"], abs=0.02)
    assert defaults == pytest.approx(100 * found["val/miou"], abs=0.02)
    chosen = behind(*(f"--{HEAD}{name}={value}" for name, value in settings.items()))
    reached = re.search(r"where it has (\S+):", printed)
    assert reached
    assert 100 * chosen["val/miou"] == pytest.approx(float(reached[1]), abs=0.02)
    assert chosen["val/miou"] != found["val/miou"]
    assert f"--{HEAD}bilateral_compat={settings['bilateral_compat']}" in printed
