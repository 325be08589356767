"""crfgrad tune: settings chosen on images with ground truth."""

import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from crfgrad import DenseCRF
from crfgrad.cli import report, scores
from crfgrad.cli.grid import Setting, checked_values, coarse_grid, neighbours
from crfgrad.cli.scores import Counts, count, folds_of
from crfgrad.cli.search import Choice, Outcome, Search
from crfgrad.cli.trajectories import trajectories
from tests.crfgrad.cli.conftest import Folder, write_data

ROOT = Path(__file__).parents[3]
SMALL = ["--bilateral-sxy", "10", "40", "--bilateral-srgb", "10", "--bilateral-compat", "2", "8"]
SMALL += ["--gaussian-compat", "0", "1", "--iterations", "5", "--rounds", "1"]
SETTINGS = [Setting(3, 3, 80, 13, 10), Setting(1.5, 0, 20, 13, 4), Setting(3, 1, 20, 13, 0), Setting(3, 0, 20, 5, 0)]


def test_trajectories_are_those_of_the_library(folder: Folder) -> None:
    maps, image = folder.maps("picture0"), folder.image("picture0")
    found = dict(trajectories(maps, image, SETTINGS, 4))
    assert sorted(found) == [0, 1, 2, 3]
    for place, setting in enumerate(SETTINGS):
        for t in range(5):
            refined = DenseCRF(**setting._asdict(), iterations=t)(maps, image)
            np.testing.assert_array_equal(found[place][t], refined.argmax(0))
    assert (found[0][4] != found[0][0]).any()


def plain_miou(pairs: Sequence[tuple[np.ndarray, np.ndarray]], labels: int = 3) -> float:
    """Over all images at once, written down plainly."""
    ious = []
    for label in range(labels):
        both = sum(int(((a == label) & (b == label)).sum()) for a, b in pairs)
        any_ = sum(int((((a == label) | (b == label)) & (b != 255)).sum()) for a, b in pairs)
        if any_:
            ious.append(both / any_)
    return float(np.mean(ious))


def test_counts_give_the_plain_miou(folder: Folder) -> None:
    counts, pairs = [], []
    for name in folder.names:
        maps, image, truth = folder.maps(name), folder.image(name), folder.truth(name)
        counts.append(count(maps, image, truth, 255, SETTINGS, 3))
        refined = DenseCRF(**SETTINGS[1]._asdict(), iterations=3)(maps, image).argmax(0)
        pairs.append((refined, truth))
        assert counts[-1].miou()[1, 3] == pytest.approx(plain_miou(pairs[-1:]))
        assert counts[-1].miou()[1, 0] == pytest.approx(plain_miou([(maps.argmax(0), truth)]))
    together = Counts(*(sum(part.astype(int) for part in parts) for parts in zip(*counts, strict=True)))
    assert together.miou()[1, 3] == pytest.approx(plain_miou(pairs))


def test_a_label_that_is_nowhere_has_no_iou() -> None:
    counts = Counts(np.array([[[5, 0, 0]]]), np.array([[[6, 1, 0]]]), np.array([7, 0, 0]))
    np.testing.assert_allclose(counts.iou(), [[[5 / 8, 0, np.nan]]])
    np.testing.assert_allclose(counts.miou(), [[5 / 16]])


VALUES = {
    "gaussian_sxy": [3.0],
    "gaussian_compat": [0.0, 1.0, 4.0],
    "bilateral_sxy": [10.0, 40.0],
    "bilateral_srgb": [5.0],
    "bilateral_compat": [2.0, 8.0],
}


def test_neighbours_lie_halfway() -> None:
    assert len(coarse_grid(VALUES)) == 12
    near = neighbours(Setting(3, 1, 10, 5, 8), VALUES, 1)
    assert {one.bilateral_sxy for one in near} == {5, 10, 20}
    assert {one.bilateral_compat for one in near} == {4, 8, 16}
    assert {one.gaussian_compat for one in near} == {0.5, 1, 2}
    assert {(one.gaussian_sxy, one.bilateral_srgb) for one in near} == {(3, 5)}
    assert Setting(3, 0.5, 10, 5, 16) in near
    closer = neighbours(Setting(3, 0, 10, 5, 8), VALUES, 2)
    assert {one.bilateral_sxy for one in closer} == {7.07, 10, 14.1}
    assert {one.gaussian_compat for one in closer} == {0, 0.25}


class Hill:
    """Counts of images whose mIoU is the higher, the closer a setting is to a peak of theirs."""

    def __init__(self, peaks: Sequence[float]) -> None:
        self.peaks = peaks
        self.scored: list[Setting] = []

    def __call__(self, settings: Sequence[Setting]) -> list[Counts]:
        self.scored += settings
        found = []
        for peak in self.peaks:
            far = np.array([abs(np.log(one.bilateral_sxy / peak)) + (one.gaussian_compat - 1) ** 2 for one in settings])
            right = 100_000 / (1 + far[:, None] + np.array([3.0, 1, 0, 1]))  # best after two iterations
            hit = np.stack([right, right], -1).astype(np.uint32)
            found.append(Counts(hit, np.full_like(hit, 100_000), np.array([100_000, 100_000])))
        return found


DEFAULT = Setting(3, 3, 80, 13, 10)


def test_the_search_climbs() -> None:
    hill = Hill([23.0] * 6)
    search = Search(hill, np.arange(6) % 3, 3)
    best, by_fold = search.run(VALUES, 3, DEFAULT)
    assert search.settings[best.setting].bilateral_sxy == pytest.approx(23, rel=0.1)
    assert search.settings[best.setting].gaussian_compat == 1
    assert best.iterations == 2
    assert by_fold == [best] * 3
    assert len(set(hill.scored)) == len(hill.scored) < 60


def test_iterations_that_are_only_there_for_the_defaults_are_not_chosen() -> None:
    search = Search(Hill([23.0] * 3), np.arange(3), 1)
    assert search.run(VALUES, 1, DEFAULT)[0].iterations == 1


def test_a_fold_does_not_profit_from_its_own_images() -> None:
    """Whatever these say, what is chosen for them is the same."""
    parts = np.arange(6) % 3
    chosen = []
    for own in (10.0, 24.0, 90.0):
        search = Search(Hill([own, 17.0, 30.0, own, 30.0, 17.0]), parts, 3)
        best, by_fold = search.run(VALUES, 2, DEFAULT)
        chosen.append((search.settings[by_fold[0].setting], search.settings[best.setting]))
        outcome = Outcome(search, best, by_fold, Choice(search.settings.index(DEFAULT), 2))
        place = by_fold[0].setting, by_fold[0].iterations
        assert outcome.of_fold(0)[2] == pytest.approx(search.over([0]).miou()[place])
        assert min(search.over([0]).miou()[place], 1) <= search.over([0]).miou().max()
    assert len({one for one, _ in chosen}) == 1
    assert len({best for _, best in chosen}) > 1


def test_folds_are_even_and_the_same_on_every_machine() -> None:
    names = [f"image{number}" for number in range(11)]
    parts = folds_of(names, 4, 0)
    assert sorted(np.bincount(parts)) == [2, 3, 3, 3]
    assert parts.tolist() == [2, 2, 0, 0, 1, 3, 1, 1, 0, 2, 3]
    assert dict(zip(names[::-1], folds_of(names[::-1], 4, 0), strict=True)) == dict(zip(names, parts, strict=True))
    assert (folds_of(names, 4, 1) != parts).any()


def test_settings_serve_refine_and_the_library(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert folder.tune(*SMALL) == 0
    printed = capsys.readouterr().out
    settings = yaml.safe_load((folder.root / "settings.yaml").read_text())
    assert list(settings) == [*Setting._fields, "iterations"]
    assert folder.refine("--config", str(folder.root / "settings.yaml")) == 0
    pairs = {"maps": [], "defaults": [], "best": []}
    for name in folder.names:
        maps, image, truth = folder.maps(name), folder.image(name), folder.truth(name)
        np.testing.assert_array_equal(folder.result(name), DenseCRF(**settings)(maps, image).argmax(0))
        pairs["maps"].append((maps.argmax(0), truth))
        pairs["defaults"].append((DenseCRF()(maps, image).argmax(0), truth))
        pairs["best"].append((folder.result(name), truth))
    last = next(line for line in printed.splitlines() if line.strip().startswith("all"))
    _, images, *figures = last.split()
    maps, defaults, held_out = map(float, figures)
    assert images == "6"
    assert maps == pytest.approx(100 * plain_miou(pairs["maps"]), abs=0.006)
    assert defaults == pytest.approx(100 * plain_miou(pairs["defaults"]), abs=0.006)
    assert maps + 10 < held_out <= 100 * plain_miou(pairs["best"]) + 0.006
    assert f"where it has {100 * plain_miou(pairs['best']):.2f}: " in printed
    assert "improves" not in printed
    first = next(line for line in printed.splitlines() if line.strip().startswith("1 "))
    names = [name for name, part in zip(folder.names, folds_of(folder.names, 3, 0), strict=True) if part == 0]
    found = re.search(r"gaussian (\S+) x (\S+), bilateral \((\S+), (\S+)\) x (\S+), (\d+) iterations", first)
    assert found
    crf = DenseCRF(*map(float, found.groups()[:5]), iterations=int(found[6]))
    own = [(crf(folder.maps(name), folder.image(name)).argmax(0), folder.truth(name)) for name in names]
    assert float(first.split()[4]) == pytest.approx(100 * plain_miou(own), abs=0.006)


def test_maps_that_nothing_improves(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    for name in folder.names:
        truth = folder.truth(name)
        truth[truth == 255] = 0
        np.save(folder.root / "maps" / f"{name}.npy", 0.97 * np.eye(3)[truth].transpose(2, 0, 1) + 0.01)
    strong = ["--bilateral-srgb", "100", "--bilateral-compat", "30", "--gaussian-compat", "0", "--rounds", "0"]
    assert folder.tune(*strong) == 0
    assert "on images held out no setting that was tried improves the maps" in capsys.readouterr().out


def test_what_was_scored_is_not_scored_again(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder.tune(*SMALL) == 0
    before = (folder.root / "settings.yaml").read_text()
    scored = []
    monkeypatch.setattr(scores, "count", lambda *given: scored.append(given) or count(*given))
    assert folder.tune(*SMALL) == 0
    assert not scored
    assert (folder.root / "settings.yaml").read_text() == before
    np.save(folder.root / "maps" / "picture1.npy", folder.maps("picture2"))
    path = next((folder.root / "settings.scores").glob("picture3.*"))
    path.write_bytes(path.read_bytes()[:100])
    assert folder.tune(*SMALL, "--rounds", "0") == 0
    assert len(scored) in (1, 2)  # the changed one, and the broken one if it was of this round


def test_a_killed_search_goes_on(tmp_path: Path) -> None:
    folder = write_data(tmp_path, count=10, height=30, width=40)
    given = ["--images", "images", "--probabilities", "maps", "--truth", "truth", "--output", "settings.yaml"]
    command = [sys.executable, "-m", "crfgrad", "tune", *given, *SMALL, "--jobs", "2"]
    options = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(ROOT)}}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, **options)
    kept = tmp_path / "settings.scores"
    while len(list(kept.glob("*.npz"))) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "settings.yaml").exists()
    finished = {path: path.stat().st_mtime_ns for path in kept.glob("*.npz")}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **options)
    assert all(path.stat().st_mtime_ns == when for path, when in finished.items())
    resumed = (tmp_path / "settings.yaml").read_text()
    assert folder.tune(*SMALL, "--output", str(tmp_path / "whole.yaml"), "--folds", "5") == 0
    assert (tmp_path / "whole.yaml").read_text() == resumed


@pytest.mark.parametrize(
    ("spoiled", "told"),
    [
        (lambda root: (root / "truth/picture1.png").unlink(), "picture1: there is no ground truth of this name"),
        (lambda root: Image.new("L", (32, 24), 3).save(root / "truth/picture1.png"), "holds 3, but labels are 0 to 2"),
        (lambda root: Image.new("L", (32, 24), 255).save(root / "truth/picture1.png"), "is 255 everywhere"),
        (
            lambda root: Image.new("L", (31, 24)).save(root / "truth/picture1.png"),
            "has 24 x 31 pixels and its image 24",
        ),
        (lambda root: Image.new("RGB", (32, 24)).save(root / "truth/picture1.png"), "is a PNG of kind RGB"),
        (
            lambda root: np.save(root / "maps/picture1.npy", np.full((4, 24, 32), 0.25)),
            "its map has 4 labels, most have 3",
        ),
        (lambda root: np.save(root / "maps/picture1.npy", np.zeros((3, 24, 32))), "normalise them"),
    ],
)
def test_wrong_inputs_are_named_before_anything_is_computed(
    spoiled: object, told: str, folder: Folder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "count", lambda *_: pytest.fail("computed"))
    spoiled(folder.root)
    assert folder.tune() == 1
    printed = capsys.readouterr().err
    assert "picture1: " in printed
    assert told in printed
    assert "1 images cannot be used" in printed


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--folds", "7"], "6 images cannot be parted into 7 folds"),
        (["--folds", "1"], "--folds must be 2 or more"),
        (["--iterations", "0"], "--iterations must be 1 or more"),
        (["--bilateral-sxy", "0", "5"], "--bilateral-sxy 0 must be positive"),
        (["--bilateral-compat", "-3", "5"], "--bilateral-compat -3 must not be negative"),
        (["--bilateral-sxy", "nan"], "--bilateral-sxy nan is no finite number"),
        (["--gaussian-compat", "1", "inf"], "--gaussian-compat inf is no finite number"),
        (["--output", "."], ". is a folder"),
        (["--output", "latin.txt/settings.yaml"], "latin.txt/settings.yaml cannot be written"),
        (["--report", "latin.txt/report.html"], "latin.txt/report.html cannot be written"),
        (["--class-names", "nowhere"], "--class-names nowhere cannot be read"),
        (["--class-names", "latin.txt"], "--class-names latin.txt cannot be read, it is no text in UTF-8"),
    ],
)
def test_wrong_options(
    given: list[str],
    told: str,
    folder: Folder,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scores, "count", lambda *_: pytest.fail("computed"))
    monkeypatch.chdir(folder.root)
    (folder.root / "latin.txt").write_bytes("bäume\n".encode("latin-1"))
    assert folder.tune(*given) == 1
    assert told in capsys.readouterr().err


def test_more_labels_than_a_report_shows_are_refused_before_anything_is_computed(
    folder: Folder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "count", lambda *_: pytest.fail("computed"))
    for name in folder.names:
        np.save(folder.root / "maps" / f"{name}.npy", np.full((256, 24, 32), 1 / 256, dtype=np.float32))
    assert folder.tune("--report", str(folder.root / "report.html")) == 1
    assert "a report shows up to 255 labels, the maps have 256: leave out --report" in capsys.readouterr().err
    assert not (folder.root / "report.html").exists()


class Page(HTMLParser):
    """What a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def unpacked(text: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8).reshape(shape)


def test_the_report_stands_alone_and_shows_what_the_library_computes(tmp_path: Path) -> None:
    folder = write_data(tmp_path, count=8)
    (tmp_path / "names.txt").write_text("ground\n<b>box</b>\n</script>\n")
    path = tmp_path / "report.html"
    assert folder.tune(*SMALL, "--report", str(path), "--class-names", str(tmp_path / "names.txt")) == 0
    text = path.read_text()
    page = Page(text)
    assert len(text) < report.LIMIT
    for tag, attributes in page.tags:
        assert tag not in {"link", "iframe", "object", "embed", "base"}
        assert "src" not in attributes
        assert "href" not in attributes
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", text)
    assert set(re.findall(r"https?://[^\"' )]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    data = page.data
    assert [label["name"] for label in data["labels"]] == ["ground", "<b>box</b>", "</script>"]
    assert text.count("</script>") == 2
    assert len(data["images"]) == report.IMAGES
    gains = [one["miou"][data["best"][0]][data["best"][1]] - one["miou"][0][0] for one in data["images"]]
    assert gains == sorted(gains, reverse=True)
    image = data["images"][0]
    shape = image["height"], image["width"]
    assert shape == (24, 32)
    assert Image.open(io.BytesIO(base64.b64decode(image["photo"].partition(",")[2]))).size == (32, 24)
    np.testing.assert_array_equal(unpacked(image["truth"], shape), folder.truth(image["name"]))
    first = unpacked(image["map"], shape)
    np.testing.assert_array_equal(first, folder.maps(image["name"]).argmax(0))
    for place in (0, len(data["settings"]) - 1, data["best"][0]):
        changes = unpacked(image["states"][place], (5, *shape))
        states = np.cumsum(np.concatenate([first[None], changes]), axis=0, dtype=np.uint8)
        settings = dict(zip(data["parameters"], data["settings"][place], strict=True))
        for t in (1, 5):
            refined = DenseCRF(**settings, iterations=t)(folder.maps(image["name"]), folder.image(image["name"]))
            np.testing.assert_array_equal(states[t], refined.argmax(0))
            pair = (refined.argmax(0), folder.truth(image["name"]))
            assert image["miou"][place][t] == pytest.approx(100 * plain_miou([pair]), abs=0.006)
    chosen = yaml.safe_load((tmp_path / "settings.yaml").read_text())
    assert [*data["settings"][data["best"][0]], data["best"][1]] == list(chosen.values())


def test_a_report_that_would_be_too_large_has_smaller_and_fewer_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_data(tmp_path, count=4, height=60, width=80)
    sizes = {}
    monkeypatch.setattr(report, "SIDES", (80, 40))
    for limit in (10**7, 90_000, 60_000):
        monkeypatch.setattr(report, "LIMIT", limit)
        path = tmp_path / f"{limit}.html"
        assert folder.tune(*SMALL, "--report", str(path)) == 0
        assert path.stat().st_size <= limit
        images = Page(path.read_text()).data["images"]
        sizes[limit] = len(images), images[0]["width"]
    assert sizes[10**7] == (4, 80)
    assert sizes[90_000][1] == 40
    assert sizes[60_000] < sizes[90_000]
    monkeypatch.setattr(report, "LIMIT", 10_000)
    assert folder.tune(*SMALL, "--report", str(tmp_path / "none.html")) == 1


def test_shown_images_run_from_the_largest_gain_to_the_smallest() -> None:
    gains = np.array([0.1, 0.9, np.nan, 0.5, 0.3, 0.7, -0.2, 0.2])
    assert report.spread(gains, 4) == [1, 3, 0, 6]
    assert report.spread(gains[:2], 6) == [1, 0]


def test_values_are_sorted() -> None:
    assert checked_values({"bilateral_sxy": [40, 10, 40]}) == {"bilateral_sxy": [10, 40]}
