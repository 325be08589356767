"""The benchmark runs on a small photograph, and its report holds what was measured."""

import json
import os
from pathlib import Path

import pytest

from experiments.benchmark import computed, growth
from experiments.benchmark.__main__ import main
from experiments.benchmark.measure import fitted_exponent, interleaved, ratio, summary


def test_everything_on_a_small_photograph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [{"height": 30, "width": 40, "labels": 3}, {"height": 60, "width": 80, "labels": 6}]
    monkeypatch.setattr("experiments.benchmark.__main__.SERIES", {"pixels": small})
    monkeypatch.setattr("experiments.benchmark.__main__.TRAINING", {"30 x 40": small[0]})
    monkeypatch.setattr("experiments.benchmark.__main__.SIZES", {"height": 32, "width": 48, "labels": 3, "batch": 2})
    main(tmp_path, 30, 40, 3, repetitions=2, growth=True, images=12)
    measured = json.loads((tmp_path / "results.json").read_text())
    for case in measured["cases"].values():
        assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in case["seconds"].values())
    report = (tmp_path / "results.md").read_text()
    assert report in capsys.readouterr().out
    assert "| simplex projection, forward and backward | crfgrad |" in report
    assert "| dense CRF (67, 3, 4), 3 labels, 10 iterations | crfgrad.pydensecrf, 2 threads |" in report
    assert f"| 12 images on {os.cpu_count()} cores | crfgrad.pydensecrf, processes |" in report
    assert "| energy of a dense CRF as a loss, 2 images of 32 x 48, 3 labels, at scale 0.5 | crfgrad |" in report
    assert "unfolded / ours | 3.00 |" in report
    assert "| 2 x 32 x 48, 3 labels, energy loss |" in report
    assert "dense: exponent of time by pixels" in report
    assert (tmp_path / "growth.png").is_file()


def test_calls_are_interleaved() -> None:
    calls: list[str] = []
    seconds = interleaved({name: lambda name=name: calls.append(name) for name in "ab"}, repetitions=2, warm_up=1)  # type: ignore[misc]
    assert calls == list("ababab")
    assert [len(times) for times in seconds.values()] == [2, 2]


def test_statistics() -> None:
    assert ratio([1.0, 2.0, 1.0], [3.0, 2.0, 2.0]) == 2.0
    assert summary([0.001, 0.002, 0.004])["median"] == pytest.approx(2)
    assert fitted_exponent([1, 10, 100], [5, 50, 500]) == pytest.approx(1)
    assert growth.size("images", {"height": 2, "width": 3, "labels": 4, "batch": 5}) == 5


def test_what_is_computed_of_a_gpu() -> None:
    of = computed.Sizes(pixels=1000, vertices=300, links=4000, labels=10)
    splat = next(kernel for kernel in computed.kernels(of) if kernel.name == "splat")
    # 10 labels of each pixel and vertex, and of each corner a weight, its place and its pixel
    assert splat.bytes == 4 * (10 * 1000 + 10 * 300 + 6 * 1000 * 3 + 300)
    assert splat.operations == 2 * 6 * 1000 * 10
    assert splat.seconds("A100 (40 GB)") == 10 * splat.bytes / 1.555e12
    assert computed.table(of).startswith("Computed, not measured: 1000 pixels")
    doubled = computed.Sizes(2000, 600, 8000, 10)
    assert computed.memory(doubled) == 2 * computed.memory(of)
