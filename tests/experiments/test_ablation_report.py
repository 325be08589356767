"""The report of an ablation, from made-up results: its statistics, its columns, and the time that is left."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from experiments.ablation import report, runs
from experiments.ablation.plot import plot
from experiments.ablation.rows import NETWORK, find_rows
from experiments.ablation.summary import by_row, summarise
from experiments.files import duration
from tests.command_line import read_table


def made_up(row: str, seed: int, miou: float, **further: Any) -> dict[str, Any]:
    """A result as a run would write it."""
    metrics = {"miou": miou, "trimap_miou": miou - 0.1, "iou/background": miou + 0.05, "iou/horse": miou - 0.05}
    shared = {"data": "WeizmannHorse", "classes": ["background", "horse"], "seconds": 3600.0, "resumed": False}
    shared |= {"command": "python -m experiments.ablation --seeds 0", "versions": {"torch": "2.0"}, "threads": 1}
    if row == "full":
        metrics |= {"energy_network": 50.0 + seed, "energy": 2.0, "miou_network": miou - 0.02}
        energies = {"own": [1.0, 2.0, 3.0], "switched": [2.0, 2.0, 1.0]}
        further = {"solvers": {"solver": "ProjectedGradient", "switched_solver": "MeanField", **energies}} | further
    return (
        {"row": row, "seed": seed, "metrics": metrics, "solvers": None, "widths": None, "settings": {}}
        | shared
        | further
    )


IOU = {"full": [0.85, 0.85, 0.89, 0.99], "full_gaussian": [0.84, 0.83, 0.86], "network": [0.80, 0.82, 0.81]}
MADE_UP = [made_up(row, seed, miou) for row, values in IOU.items() for seed, miou in enumerate(values)]


def test_the_report_against_numpy(tmp_path: Path) -> None:
    text = report.write_report(MADE_UP, tmp_path)
    rows = {line["row"]: line for line in read_table(tmp_path / "results.csv")}
    assert list(rows) == ["network", "full_gaussian", "full"]
    free = np.array(IOU["full"])
    expected = {"miou mean": 100 * free.mean(), "miou std": 100 * free.std(ddof=1)}
    expected |= {"iou/horse mean": 100 * free.mean() - 5, "energy_network mean": 51.5, "energy_switched mean": 5 / 3}
    expected |= {"images lower": 4, "images higher": 4, "images": 12}
    for column, other in (("miou over the network", "network"), ("miou over its (G) row", "full_gaussian")):
        own, its = IOU["full"][:3], IOU[other]  # not the last seed, which only one of them has
        paired = stats.ttest_rel(own, its).confidence_interval(0.95)
        expected |= {f"{column} low": 100 * paired.low, f"{column} high": 100 * paired.high}
        expected[f"{column} mean"] = 100 * (np.mean(own) - np.mean(its))
    assert {name: float(rows["full"][name]) for name in expected} == pytest.approx(expected)
    columns = [f"miou over its (G) row {part}" for part in ("mean", "low", "high")]
    assert [float(rows["full"][name]) for name in columns] == pytest.approx(
        [float(rows["full"][f"trimap_{name}"]) for name in columns]
    )
    by_hand = 2 + 4.30265 / 3**0.5  # differences 1, 2, 3, and t of a printed table for two degrees of freedom
    assert float(rows["full"]["miou over its (G) row high"]) == pytest.approx(by_hand, abs=1e-4)
    gain = "+5.3 [-0.9, +11.6]"
    gains = f"{gain} | +2.0 [-0.5, +4.5] |"
    assert f"| + full | 0, 1, 2, 3 | 89.5 ± 6.6 | 84.5 ± 6.6 | 84.0 | 87.5 ± 6.6 | {gains}" in text
    assert "Rows have other seeds: compare them by their differences." in text
    assert f"| + full | 79.5 ± 6.6 | {gains}" in text  # near boundaries
    assert f"| + full | {gain} | {gain} |" in text  # each class over the network
    assert "```\npython -m experiments.ablation --seeds 0\n```" in text
    assert "10 runs, seeds 0, 1, 2, 3, 10.0 h in all, CPU threads: 1; torch 2.0." in text
    assert "| + full | ProjectedGradient | 52 ± 1 | 2 ± 0 | 2 ± 0 | 4 of 12 |" in text
    assert (tmp_path / "results.md").read_text() == text
    assert r"+ full & 0, 1, 2, 3 & 89.5 $\pm$ 6.6 & 84.5 $\pm$ 6.6 & 84.0 &" in (tmp_path / "results.tex").read_text()
    assert "+5.3 [$-$0.9, +11.6]" in (tmp_path / "results.tex").read_text()
    assert len(read_table(tmp_path / "runs.csv")) == 10
    assert all((tmp_path / f"iou.{kind}").stat().st_size > 5000 for kind in ("png", "pdf"))


def test_control_and_mean_field_have_their_columns(tmp_path: Path) -> None:
    miou = {"network": 0.7, "unary": 0.72, "full": 0.8, "full_mean_field": 0.79}
    text = report.write_report([made_up(row, 0, value) for row, value in miou.items()], tmp_path, "none")
    assert "| over the network | over the control | over (MF) |" in text
    assert "| network | 1 | 70.0 |  |  |  |  |" in text
    assert "| + unary (control) | 1 | 72.0 |  | +2.0 |  |  |" in text
    assert "| + full | 1 | 80.0 | 78.0 | +10.0 | +8.0 | +1.0 |" in text
    assert "| + full | 70.0 | +10.0 | +8.0 | +1.0 |" in text
    assert [line["row"] for line in read_table(tmp_path / "results.csv")] == list(miou)


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    text = report.write_report([made_up("full", 0, 0.8), made_up("network", 0, 0.7)], tmp_path, "none")
    assert "| + full | 1 | 80.0 | 78.0 | +10.0 |\n" in text
    assert "One seed: no standard deviation and no confidence interval." in text
    assert not any(word in text for word in ("paper", "nan"))
    assert "nan" not in (tmp_path / "results.csv").read_text() + (tmp_path / "results.tex").read_text()


def test_the_papers_values_are_of_its_data_sets(tmp_path: Path) -> None:
    horse = ["background", "horse"]
    data = (("WeizmannHorse", horse), ("NYUv2", list("abcde")), ("NYUv2", horse), ("SyntheticStreets", horse))
    found = [report.published([{"data": name, "classes": labels}], None) for name, labels in data]
    assert [(paper.iou.get("full"), paper.label) for paper in found] == [
        (84.0, "horse"),
        (55.0, None),
        (None, None),
        (None, None),
    ]
    assert report.published(MADE_UP, "Cityscapes").iou == {"network": 71.8, "full": 71.9}
    with pytest.raises(
        SystemExit, match="--paper WeizmannHorse has the IoU of horse, which is none of the classes a, b"
    ):
        report.published([{"data": "NYUv2", "classes": list("ab")}], "WeizmannHorse")
    text = report.write_report(MADE_UP, tmp_path, "Cityscapes")
    assert "| + full | 0, 1, 2, 3 | 89.5 ± 6.6 | 71.9 | 87.5 ± 6.6 |" in text  # the mean beside the mean


def test_the_plot_shows_what_the_paper_gives(tmp_path: Path) -> None:
    missing = [made_up(row, 4, 0.7) for row in ("network", "full")]
    for result in missing:
        del result["metrics"]["iou/horse"]  # the class is nowhere in the images of this run
    results = [*MADE_UP, *missing]
    for label, mean, paper in (("horse", 100 * np.mean(IOU["full"]) - 5, 84.0), (None, None, 71.9)):
        records = summarise(results, report.published(results, "WeizmannHorse" if label else "Cityscapes"))
        axis = plot(records, by_row(results), label, tmp_path).axes[0]
        assert axis.get_xlabel() == f"{'IoU of horse' if label else 'mIoU'} on the test split, percent"
        assert [text.get_text() for text in axis.get_yticklabels()] == ["network", "+ full (G)", "+ full"]
        lines = [tuple(map(tuple, line.get_data())) for line in axis.lines]
        assert ((paper,), (2,)) in lines
        if mean is not None:
            assert any(xs == pytest.approx([mean, mean]) and np.mean(ys) == 2 for xs, ys in lines)
        dots = [xs for xs, _ in lines[-4:]]
        assert [len(xs) for xs in dots] == ([3, 3, 3, 1] if label else [3, 3, 1, 2])
        assert max(dots[0]) == pytest.approx(80 if label else 85)
    plot(summarise(missing, report.published(missing, None)), by_row(missing), "horse", tmp_path)


def test_runs_of_other_settings_are_not_one_row(tmp_path: Path) -> None:
    def run(row: str, seed: int, **settings: Any) -> dict[str, Any]:
        return made_up(row, seed, 0.8, settings=settings)

    for mixed, message in (
        (
            [run("full", 0, epochs=6), run("full", 1, epochs=60)],
            "full of seed 0 and full of seed 1 were run with other",
        ),
        (
            [run("network", 0, epochs=6), run("full", 0, **{"epochs": 1, "network: epochs": 5})],
            "epochs is 6 there and 5",
        ),
        ([run("full", 0, **{"network: a": None}), run("spatial", 0, **{"network: b": 1})], "a is None there and not"),
    ):
        with pytest.raises(SystemExit, match=message):
            report.write_report(mixed, tmp_path)
    assert not list(tmp_path.iterdir())
    report.write_report([run("network", 0, epochs=6), run("full", 0, **{"epochs": 1, "network: epochs": 6})], tmp_path)


def test_widths_at_an_edge_are_marked(tmp_path: Path) -> None:
    point = {"spatial.sigma": 1.0, "spatial.strength": 0.0, "bilateral.sigma_value": 5.0, "bilateral.strength": 3.0}
    grid = {"grid: spatial.sigma": [1.0, 3.0], "grid: spatial.strength": [0.0, 2.0]}
    grid |= {"grid: bilateral.sigma_value": [3.0, 5.0, 10.0], "grid: bilateral.strength": [1.0, 3.0]}
    text = report.write_report([made_up("full_gaussian", 7, 0.8, widths=point, settings=grid)], tmp_path)
    assert "| + full (G) | 7 |  | 0 | 5 | 3* |" in text
    assert "* The lowest or highest that was tried" in text


def test_the_time_that_is_left() -> None:
    times = (("network", 10.0, False), ("full", 30.0, False), ("full", 50.0, False), ("full", 1.0, True))
    done = [made_up(row, 0, 0.8, seconds=seconds, resumed=resumed) for row, seconds, resumed in times]
    _, full, spatial = find_rows(["full", "spatial"])
    assert runs.remaining(done, [(NETWORK, 1), (full, 3)]) == "; about 50 s left"
    assert runs.remaining(done, [(spatial, 0)]) == "; about 40 s left"  # that of the other heads
    assert runs.remaining(done[:1], [(spatial, 0)]) == "; 1 left, of a kind that has not been timed yet"
    assert [duration(seconds) for seconds in (600, 7200)] == ["10 min", "2.0 h"]
