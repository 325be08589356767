"""crfgrad refine: folders in, folders out."""

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from crfgrad import DenseCRF
from crfgrad.cli import outputs
from tests.crfgrad.cli.conftest import Folder, write_data

ROOT = Path(__file__).parents[3]


def test_results_are_those_of_the_library(folder: Folder) -> None:
    given = ["--bilateral-sxy", "20", "10", "--bilateral-srgb", "8", "9", "10", "--gaussian-compat", "2"]
    assert folder.refine(*given, "--iterations", "3", "--save-probabilities", "--overlays") == 0
    crf = DenseCRF(bilateral_sxy=(20, 10), bilateral_srgb=(8, 9, 10), gaussian_compat=2, iterations=3)
    for name in folder.names:
        expected = crf(folder.maps(name), folder.image(name))
        np.testing.assert_array_equal(folder.result(name), expected.argmax(0))
        np.testing.assert_array_equal(np.load(folder.root / "out" / "probabilities" / f"{name}.npy"), expected)
        overlay = Image.open(folder.root / "out" / "overlays" / f"{name}.jpg")
        assert overlay.size == (2 * 32 + 4, 24)
    assert (folder.result("picture0") != folder.maps("picture0").argmax(0)).any()
    written = Image.open(folder.root / "out" / "labels" / "picture0.png")
    assert written.mode == "P"
    assert written.getpalette()[:9] == [0, 0, 0, 128, 0, 0, 0, 128, 0]


def save_two_labels(root: Path, kind: str) -> None:
    """Maps of label 1 of two, as 16-bit PNGs or the same values in other kinds."""
    root.mkdir()
    for number in range(6):
        grey = np.random.default_rng(number).integers(0, 65536, (24, 32), dtype=np.uint16)
        p = grey / 65535
        path = root / f"picture{number}"
        both = np.stack([1 - p, p])
        match kind:
            case "16 bits":
                Image.fromarray(grey).save(f"{path}.png")
            case "float16" | "float32" | "float64":
                np.save(f"{path}.npy", both.astype(kind))
            case "one map":
                np.save(f"{path}.npy", p)
            case "npz":
                np.savez_compressed(f"{path}.npz", both)
            case "key":
                np.savez_compressed(f"{path}.npz", logits=7 * both, probabilities=both)


def test_all_kinds_of_maps_give_the_same(folder: Folder) -> None:
    save_two_labels(folder.root / "16 bits", "16 bits")
    weak = ["--bilateral-compat", "1", "--gaussian-compat", "1"]
    assert folder.refine(*weak, maps="16 bits", output="from 16 bits") == 0
    assert 0.1 < folder.result("picture0", "from 16 bits").mean() < 0.9
    for kind in ("float16", "float32", "float64", "one map", "npz", "key"):
        save_two_labels(folder.root / kind, kind)
        given = ["--key", "probabilities"] if kind == "key" else []
        assert folder.refine(*weak, *given, maps=kind, output=f"from {kind}") == 0
        for name in folder.names:
            equal = folder.result(name, f"from {kind}") == folder.result(name, "from 16 bits")
            assert equal.mean() > (0.99 if kind == "float16" else 0.9999), kind


def test_maps_of_eight_bits_and_label_maps(folder: Folder) -> None:
    for name in ("grey", "hard", "masks"):
        (folder.root / name).mkdir()
    for name in folder.names:
        hard = folder.maps(name).argmax(0).astype(np.uint8)
        hard[:, :3] = 255
        Image.fromarray(hard).save(folder.root / "hard" / f"{name}.png")
        Image.fromarray((hard == 1).astype(np.uint8) * 255).save(folder.root / "masks" / f"{name}.png")
        Image.fromarray(np.where(hard == 1, 204, 51).astype(np.uint8)).save(folder.root / "grey" / f"{name}.png")
    hard = ["--labels", str(folder.root / "hard"), "--num-labels", "3", "--confidence", "0.8"]
    assert folder.refine(*hard, output="from hard") == 0
    masks = ["--labels", str(folder.root / "masks"), "--binary", "--confidence", "0.8"]
    assert folder.refine(*masks, output="from masks") == 0
    assert folder.refine(maps="grey", output="from grey") == 0
    for name in folder.names:
        np.testing.assert_array_equal(folder.result(name, "from masks"), folder.result(name, "from grey"))
        labels = np.array(Image.open(folder.root / "hard" / f"{name}.png"))
        probabilities = np.full((3, 24, 32), 0.1, dtype=np.float32)
        for label in range(3):
            probabilities[label][labels == label] = 0.8
        probabilities[:, labels == 255] = 1 / 3
        expected = DenseCRF()(probabilities, folder.image(name)).argmax(0)
        np.testing.assert_array_equal(folder.result(name, "from hard"), expected)


def save_masks(folder: Folder, high: int, bits: int = 8) -> list[np.ndarray]:
    """Masks of label 1, and what they hold."""
    (folder.root / "masks").mkdir(exist_ok=True)
    masks = [folder.maps(name).argmax(0) == 1 for name in folder.names]
    for name, mask in zip(folder.names, masks, strict=True):
        image = Image.fromarray(mask.astype(np.uint8) * high)
        (image.convert("1") if bits == 1 else image).save(folder.root / "masks" / f"{name}.png")
    return masks


def test_masks_of_one_bit(folder: Folder) -> None:
    masks = save_masks(folder, 255, bits=1)
    given = ["--labels", str(folder.root / "masks"), "--binary", "--iterations", "0"]
    assert folder.refine(*given) == 0
    for name, mask in zip(folder.names, masks, strict=True):
        np.testing.assert_array_equal(folder.result(name), mask)


def test_masks_of_zero_and_one_are_not_taken_for_empty_ones(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    masks = save_masks(folder, 1)
    given = ["--labels", str(folder.root / "masks"), "--iterations", "0"]
    assert folder.refine(*given, "--binary") == 1
    assert "picture0.png holds values up to 1, but with --binary those from 128 on" in capsys.readouterr().err
    assert folder.refine(*given, "--num-labels", "2", output="other") == 0
    np.testing.assert_array_equal(folder.result("picture0", "other"), masks[0])


def test_folders_in_folders_and_other_kinds_of_images(tmp_path: Path) -> None:
    folder = write_data(tmp_path)
    (tmp_path / "images" / "a" / "b").mkdir(parents=True)
    (tmp_path / "maps" / "a" / "b").mkdir(parents=True)
    image = Image.open(tmp_path / "images" / "picture0.png")
    kinds = {"grey.png": "L", "clear.png": "RGBA", "palette.png": "P", "ink.tif": "CMYK"}
    for name, mode in kinds.items():
        image.convert(mode).save(tmp_path / "images" / "a" / "b" / name)
        shutil.copy(tmp_path / "maps" / "picture0.npy", tmp_path / "maps" / "a" / "b" / f"{Path(name).stem}.npy")
    turned, exif = image.transpose(Image.Transpose.ROTATE_90), Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    turned.save(tmp_path / "images" / "turned.png", exif=exif)
    shutil.copy(tmp_path / "maps" / "picture0.npy", tmp_path / "maps" / "turned.npy")
    assert folder.refine() == 0
    np.testing.assert_array_equal(folder.result("turned"), folder.result("picture0"))
    np.testing.assert_array_equal(folder.result("a/b/clear"), folder.result("picture0"))
    grey = np.array(image.convert("L").convert("RGB"))
    np.testing.assert_array_equal(folder.result("a/b/grey"), DenseCRF()(folder.maps("picture0"), grey).argmax(0))


@pytest.mark.parametrize(
    ("spoiled", "told"),
    [
        (lambda root: (root / "maps/picture1.npy").unlink(), "there is no probability map of this name"),
        (lambda root: (root / "images/picture1.png").unlink(), "there is no image of this name"),
        (lambda root: (root / "images/picture1.jpg").touch(), "2 files for its image: picture1.jpg, picture1.png"),
        (lambda root: os.truncate(root / "images/picture1.png", 300), "picture1.png cannot be read .*truncated"),
        (
            lambda root: (root / "images/picture1.png").write_text("no image"),
            "picture1.png cannot be read .*cannot identify",
        ),
        (lambda root: os.truncate(root / "maps/picture1.npy", 300), "picture1.npy cannot be read"),
        (lambda root: np.save(root / "maps/picture1.npy", np.zeros((3, 24, 32), np.uint8)), "holds uint8"),
        (lambda root: np.save(root / "maps/picture1.npy", np.full((3, 24, 32), 2.0)), "give softmax"),
        (lambda root: np.save(root / "maps/picture1.npy", np.full((3, 24, 32), np.nan)), "NaN or infinity"),
        (lambda root: np.save(root / "maps/picture1.npy", np.full((3, 24, 31), 1 / 3)), "24 x 31 pixels .* --resize"),
        (
            lambda root: np.save(root / "maps/picture1.npy", np.full((24, 32, 3), 1 / 3)),
            "looks like .height, width, lab",
        ),
        (lambda root: np.save(root / "maps/picture1.npy", np.full((1, 3, 24, 32), 1 / 3)), "must be .labels, height"),
        (lambda root: np.save(root / "maps/picture1.npy", np.array([{}])), "pickle"),
    ],
)
def test_a_missing_or_wrong_file_is_named_and_the_rest_goes_on(
    spoiled: Callable[[Path], object], told: str, folder: Folder, capfd: pytest.CaptureFixture[str]
) -> None:
    spoiled(folder.root)
    assert folder.refine() == 1
    printed = capfd.readouterr()
    lines = [line for line in printed.err.splitlines() if line.startswith("picture1: ")]
    assert len(lines) == 1, printed.err
    assert re.search(told, lines[0])
    assert "5 images refined" in printed.out
    assert "1 failed" in printed.out
    assert sorted(path.stem for path in (folder.root / "out" / "labels").iterdir()) == [
        f"picture{number}" for number in (0, 2, 3, 4, 5)
    ]


def test_a_folder_is_finished_where_it_was_left(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    broken = folder.root / "images" / "picture1.png"
    content = broken.read_bytes()
    broken.write_bytes(content[:300])
    assert folder.refine() == 1
    broken.write_bytes(content)
    before = {path: path.stat().st_mtime_ns for path in (folder.root / "out" / "labels").iterdir()}
    (folder.root / "out" / "labels" / ".picture1.png.17.partial").write_text("half")
    assert folder.refine() == 0
    assert "1 images refined" in capsys.readouterr().out
    assert len(before) == 5
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())
    assert folder.refine("--overlays") == 0
    left = {path.name for path in (folder.root / "out").rglob("*") if path.is_file()}
    assert left == {f"{name}{end}" for name in folder.names for end in (".png", ".jpg")} | {"refine.yaml"}


def test_results_of_other_settings_are_not_mixed(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert folder.refine("--iterations", "3") == 0
    before = folder.result("picture0")
    assert folder.refine("--iterations", "4") == 1
    assert "out holds results of other settings (iterations 3, not 4): give another --output" in capsys.readouterr().err
    shutil.copytree(folder.root / "maps", folder.root / "others")
    assert folder.refine("--iterations", "3", maps="others") == 1
    assert "other settings (probabilities" in capsys.readouterr().err
    np.testing.assert_array_equal(folder.result("picture0"), before)
    (folder.root / "out" / "refine.yaml").unlink()
    assert folder.refine("--iterations", "3") == 1
    assert "out holds results without refine.yaml" in capsys.readouterr().err


def test_shards_share_a_folder(folder: Folder) -> None:
    for part, expected in ((1, [0, 4]), (2, [1, 5]), (3, [2]), (4, [3])):
        done = set((folder.root / "out").rglob("*.png"))
        assert folder.refine("--shard", f"{part}/4") == 0
        new = set((folder.root / "out").rglob("*.png")) - done
        assert sorted(path.stem for path in new) == [f"picture{number}" for number in expected]


def _shard(folder: Folder, part: int, met: Barrier) -> None:
    """Refines a part, but waits for the other one before either has noted its settings."""
    write_bytes = Path.write_bytes

    def write(path: Path, content: bytes) -> int:
        written = write_bytes(path, content)
        if "refine.yaml" in path.name:
            met.wait(20)
        return written

    Path.write_bytes = write  # type: ignore[method-assign]
    os.getpid = lambda: 1  # as in a container
    sys.exit(folder.refine("--shard", f"{part}/2"))


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_shards_in_containers_start_at_once(folder: Folder) -> None:
    context = multiprocessing.get_context("fork")
    met = context.Barrier(2)
    processes = [context.Process(target=_shard, args=(folder, part, met)) for part in (1, 2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    left = {path.name for path in (folder.root / "out").rglob("*") if path.is_file()}
    assert left == {f"{name}.png" for name in folder.names} | {"refine.yaml"}


def test_a_file_is_whole_though_another_process_writes_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = Path.replace

    def meanwhile(beside: Path, path: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replace)
        outputs.write(tmp_path / "result", b"of the other one")
        return replace(beside, path)

    monkeypatch.setattr(Path, "replace", meanwhile)
    outputs.write(tmp_path / "result", b"of this one")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("result", b"of this one")]


def test_a_folder_called_like_an_image_is_none(folder: Folder) -> None:
    for name in ("images/picture0.jpg", "images/z.png", "maps/z.npy"):
        (folder.root / name).mkdir()
    assert folder.refine("--iterations", "0") == 0


def test_a_list_says_which_images(folder: Folder) -> None:
    (folder.root / "maps" / "picture5.npy").unlink()
    (folder.root / "list.txt").write_text("picture2\npicture4.png\n\n")
    assert folder.refine("--list", str(folder.root / "list.txt")) == 0
    assert sorted(path.stem for path in (folder.root / "out" / "labels").iterdir()) == ["picture2", "picture4"]


def test_maps_of_another_size_are_brought_to_the_image(folder: Folder) -> None:
    for name in folder.names:
        np.save(folder.root / "maps" / f"{name}.npy", folder.maps(name)[:, ::2, ::2])
    assert folder.refine("--resize") == 0
    assert folder.result("picture0").shape == (24, 32)
    agree = [np.mean((folder.result(name) == folder.truth(name))[1:]) for name in folder.names]
    assert np.mean(agree) > 0.9


def test_what_is_resized_is_refused_like_any_other_map(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    for name in folder.names:  # between 0 and 1 they would sum to 1
        logits = np.zeros((2, 12, 16), dtype=np.float32)
        logits[1] = np.where(np.arange(16) < 8, -5, 7)
        logits[0] = np.where(np.arange(16) < 8, 7, -5)
        np.save(folder.root / "maps" / f"{name}.npy", logits)
    assert folder.refine("--resize") == 1
    assert "probabilities run from -5 to 7, not 0 to 1: give softmax" in capsys.readouterr().err


def test_settings_from_a_file_and_from_options(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    config = folder.root / "settings.yaml"
    config.write_text("iterations: 2\nbilateral_sxy: 25\ngaussian_compat: [[-1, 0, 1], [0, -2, 0], [1, 0, -3]]\n")
    assert folder.refine("--config", str(config), "--iterations", "1") == 0
    matrix = [[-1, 0, 1], [0, -2, 0], [1, 0, -3]]
    expected = DenseCRF(bilateral_sxy=25, gaussian_compat=matrix, iterations=1)(
        folder.maps("picture0"), folder.image("picture0")
    )
    np.testing.assert_array_equal(folder.result("picture0"), expected.argmax(0))
    assert yaml.safe_load((folder.root / "out" / "refine.yaml").read_text())["settings"]["bilateral_sxy"] == 25
    for content, told in (("bilateral_xy: 3", "settings are gaussian_sxy"), ("- 3", "no settings"), ("{", "be read")):
        config.write_text(content)
        assert folder.refine("--config", str(config)) == 1
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--bilateral-sxy", "0"], "bilateral_sxy must be positive"),
        (["--gaussian-sxy", "1", "2", "3"], "3 numbers for 2"),
        (["--iterations", "-1"], "iterations must be a whole number"),
        (["--bilateral-srgb", "0"], "wrong settings: bilateral_srgb must be positive"),
        (["--bilateral-srgb", "3", "5"], "wrong settings: bilateral_srgb has 2 numbers for 3 channels"),
        (["--gaussian-compat", "nan"], "wrong settings: gaussian_compat must be a number, a vector or a square"),
        (["--config", "words.yaml"], "wrong settings: bilateral_compat must be a number, a vector or a square"),
        (["--config", "rows.yaml"], "wrong settings: gaussian_compat must be a number, a vector or a square"),
        (["--config", "oblong.yaml"], "wrong settings: gaussian_compat must be a number, a vector or a square"),
        (["--jobs", "0"], "--jobs must be 1 or more"),
        (["--num-labels", "3"], "give their folder by --labels"),
        (["--labels", "maps"], "--num-labels 21"),
        (["--labels", "maps", "--num-labels", "3", "--confidence", "0.2"], "--confidence 0.2 must be above 1/3"),
        (["--labels", "nowhere", "--num-labels", "3"], "nowhere is not a folder"),
        (["--output", "images/out"], "images/out is within"),
        (["--output", "."], "which is read, is within --output ., where results could overwrite it"),
        (["--list", "latin.txt"], "--list latin.txt cannot be read, it is no text in UTF-8"),
        (["--output", "list"], "--output list is a file"),
        (["--list", "nowhere.txt"], "--list nowhere.txt cannot be read"),
        (["--config", "nowhere.yaml"], "--config nowhere.yaml cannot be read"),
    ],
)
def test_wrong_options(
    given: list[str],
    told: str,
    folder: Folder,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder.root)
    (folder.root / "list").touch()
    (folder.root / "latin.txt").write_bytes("bäume\n".encode("latin-1"))
    (folder.root / "words.yaml").write_text("bilateral_compat: strong\n")
    (folder.root / "rows.yaml").write_text("gaussian_compat: [[1, 2], [3]]\n")
    (folder.root / "oblong.yaml").write_text("gaussian_compat: [[1, 2, 3], [3, 4, 5]]\n")
    assert folder.refine(*given) == 1
    printed = capsys.readouterr().err
    assert told in printed
    assert printed.count("\n") == 1


def test_maps_are_not_overwritten_by_results(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    (folder.root / "maps").rename(folder.root / "probabilities")
    before = np.load(folder.root / "probabilities" / "picture0.npy")
    assert folder.refine("--save-probabilities", maps="probabilities", output=".") == 1
    assert "give another folder" in capsys.readouterr().err
    np.testing.assert_array_equal(np.load(folder.root / "probabilities" / "picture0.npy"), before)


def test_photographs(tmp_path: Path, data_root: Path) -> None:
    """Masks at an eighth of their size, as coarse maps of 8 bits, come closer to what they were made of."""
    horses = data_root / "weizmann_horse_db"
    if not horses.is_dir():
        pytest.skip(f"no Weizmann Horse data set: {horses} is missing")
    truths = {}
    for name in ("images", "maps"):
        (tmp_path / name).mkdir()
    for name in [f"horse{number:03d}" for number in range(1, 7)]:
        mask = Image.open(horses / "figure_ground" / f"{name}.jpg").convert("L")
        Image.open(horses / "rgb" / f"{name}.jpg").resize(mask.size).save(tmp_path / "images" / f"{name}.png")
        mask.reduce(8).resize(mask.size, Image.Resampling.BILINEAR).save(tmp_path / "maps" / f"{name}.png")
        truths[name] = np.array(mask) >= 128
    folder = Folder(tmp_path)
    assert folder.refine("--bilateral-sxy", "30", "--bilateral-srgb", "6", "--bilateral-compat", "4") == 0
    ious = []
    for name, truth in truths.items():
        before = np.array(Image.open(tmp_path / "maps" / f"{name}.png")) >= 128
        ious.append([(labels & truth).sum() / (labels | truth).sum() for labels in (before, folder.result(name) == 1)])
    before, after = np.mean(ious, axis=0)
    assert after > before + 0.005, ious


def processes_of(marker: str) -> list[int]:
    """The processes with a word among their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_killed_command_leaves_whole_files_and_no_processes(tmp_path: Path) -> None:
    folder = write_data(tmp_path, count=40, height=90, width=120)
    output = tmp_path / "out"
    command = [sys.executable, "-m", "crfgrad", "refine", "--images", tmp_path / "images", "--jobs", "2"]
    command += ["--probabilities", tmp_path / "maps", "--output", output, "--iterations", "20"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    while len(list(output.glob("labels/*.png"))) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 20
    while processes_of(str(output)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes_of(str(output))
    finished = list(output.glob("labels/*.png"))
    assert 3 <= len(finished) < 40
    assert all(np.array(Image.open(path)).shape == (90, 120) for path in finished)
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"{len(finished)} were finished before, 0 failed" in printed
    assert "of 40 images" not in printed
    assert {path.name for path in (output / "labels").iterdir()} == {f"{name}.png" for name in folder.names}
    crf = DenseCRF(iterations=20)
    for name in folder.names[::10]:
        np.testing.assert_array_equal(folder.result(name), crf(folder.maps(name), folder.image(name)).argmax(0))


WITHOUT = """
import sys, crfgrad
assert not {"PIL", "rich", "yaml", "crfgrad.cli"} & set(sys.modules)
sys.modules.update(PIL=None, yaml=None)
from crfgrad.cli import main
given = ["--images", "i", "--probabilities", "p", "--output", "o"]
assert main(["refine", *given]) == main(["tune", *given, "--truth", "t"]) == 1
"""


def test_the_library_does_without_what_the_command_line_needs_and_that_names_it() -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True, check=True)
    needs = "it needs pillow, pyyaml: pip install pillow pyyaml\n"
    assert run.stderr == "".join(f"crfgrad {command}: {needs}" for command in ("refine", "tune"))
