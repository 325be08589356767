"""NYU Depth V2: both sources, all class sets, the split, and the real frames where they are at hand."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from datamodules import NYUv2
from datamodules.nyu_v2 import CLASSES, FORTY, labels_of_forty, make_split, read_split
from datamodules.tables import read_table

FRAMES = 14
TEST = [1, 2, 9]
HEIGHT, WIDTH = 16, 24


def ids_of(number: int) -> np.ndarray:
    """Label ids (H, W) without any symmetry: corners differ, and so do rows and columns."""
    ids = np.random.default_rng(number).integers(0, 895, (HEIGHT, WIDTH))
    ids[0, 0], ids[0, -1], ids[-1, 0], ids[-1, -1] = 157, 21, 11, 4  # bed, wall, floor, ceiling
    return ids


def forty_of(ids: np.ndarray) -> np.ndarray:
    """The 40 classes of label ids by name, pixel by pixel."""
    names = {int(number): label for number, _, label in read_table("nyu_v2_894")}
    return np.vectorize(lambda value: CLASSES[40].index(names[value]) + 1 if value else 0)(ids)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the folder of image files."""
    root = tmp_path_factory.mktemp("exported")
    for folder in ("images", "labels40"):
        (root / "nyu_v2" / folder).mkdir(parents=True)
    for number in range(1, FRAMES + 1):
        pixels = np.random.default_rng(100 + number).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "nyu_v2" / "images" / f"{number:04d}.jpg")
        labels = Image.fromarray(forty_of(ids_of(number)).astype(np.uint8))
        labels.save(root / "nyu_v2" / "labels40" / f"{number:04d}.png")
    train = [number for number in range(1, FRAMES + 1) if number not in TEST]
    for part, numbers in (("train", train), ("test", TEST)):
        (root / "nyu_v2" / f"{part}.txt").write_text("".join(f"{number:04d}\n" for number in numbers))
    return root


@pytest.fixture(scope="module")
def official(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the same frames as MATLAB stores them: axes reversed, names behind references."""
    root = tmp_path_factory.mktemp("official")
    images = [np.array(Image.open(path)) for path in sorted((exported / "nyu_v2" / "images").iterdir())]
    with h5py.File(root / "nyu_depth_v2_labeled.mat", "w") as file:
        file["images"] = np.stack(images, axis=-1).T  # (H, W, 3, N) -> (N, 3, W, H)
        ids = np.stack([ids_of(number) for number in range(1, FRAMES + 1)], axis=-1)
        file["labels"] = ids.astype(np.uint16).T  # (H, W, N) -> (N, W, H)
        rows = read_table("nyu_v2_894")
        names = file.create_dataset("names", (1, len(rows)), dtype=h5py.ref_dtype)
        for index, (_, name, _) in enumerate(rows):
            text = file.create_dataset(f"#refs#/{index}", data=np.array([[ord(c)] for c in name], dtype=np.uint16))
            names[0, index] = text.ref
    train = [[number] for number in range(FRAMES, 0, -1) if number not in TEST]
    scipy.io.savemat(root / "splits.mat", {"trainNdxs": train, "testNdxs": [[number] for number in TEST]})
    return root


def test_the_tables_agree() -> None:
    ids = read_table("nyu_v2_894")
    assert [int(row[0]) for row in ids] == list(range(1, 895))
    assert [int(row[0]) for row in FORTY] == list(range(1, 41))
    assert {label for _, _, label in ids} == set(CLASSES[40])
    assert [name for _, name, label in ids if name in CLASSES[40] and name != label] == []
    collective = {"otherstructure", "otherfurniture", "otherprop"}
    assert all(name == label for _, name, label in ids if label not in collective)
    assert CLASSES[13] == (
        *("bed", "books", "ceiling", "chair", "floor", "furniture", "objects"),
        *("picture", "sofa", "table", "tv", "wall", "window"),
    )
    for count, classes in CLASSES.items():
        assert len(classes) == count
        assert set(labels_of_forty(count)[1:].tolist()) == set(range(count))
        assert len(set(NYUv2(num_labels=count).colours)) == count  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (40, ["bed", "wall", "floor", "ceiling"]),
        (13, ["bed", "wall", "floor", "ceiling"]),
        (5, ["furniture", "vertical", "ground", "ceiling"]),
    ],
)
def test_frames_stand_upright(official: Path, exported: Path, count: int, expected: list[str]) -> None:
    for root in (official, exported):
        sample = NYUv2(root=str(root), num_labels=count).dataset("test", [])[0]  # type: ignore[arg-type]
        mask = sample["mask"]
        corners = [mask[0, 0], mask[0, -1], mask[-1, 0], mask[-1, -1]]
        assert [CLASSES[count][int(label)] for label in corners] == expected
        pixels = np.array(Image.open(exported / "nyu_v2" / "images" / "0001.jpg"))
        assert np.array_equal(sample["image"].movedim(0, -1).numpy(), pixels)
        assert torch.equal(mask == 255, torch.from_numpy(ids_of(1) == 0))


@pytest.mark.parametrize("count", [5, 13, 40])
def test_both_sources_are_one_data_set(official: Path, exported: Path, count: int) -> None:
    for split, size in (("train", 7), ("val", 4), ("test", 3)):
        ours, theirs = (NYUv2(root=str(root), num_labels=count).dataset(split, []) for root in (official, exported))
        assert len(ours) == len(theirs) == size
        for first, second in zip(ours, theirs, strict=True):
            assert first["name"] == second["name"]
            assert torch.equal(first["image"], second["image"])
            assert torch.equal(first["mask"], second["mask"])


def test_the_split_of_the_frames(official: Path) -> None:
    def names(split: str, **options: bool) -> list[str]:
        data = NYUv2(root=str(official), **options)  # type: ignore[arg-type]
        return [sample["name"] for sample in data.dataset(split, [])]

    assert names("train") == ["0003", "0004", "0005", "0006", "0007", "0008", "0014"]
    assert names("val") == ["0010", "0011", "0012", "0013"]
    assert names("test") == ["0001", "0002", "0009"]
    assert names("train", train_on_all=True) == sorted(names("train") + names("val"))


def test_loader_processes_read_the_same_frames(official: Path) -> None:
    alone, two = NYUv2(root=str(official)), NYUv2(root=str(official), workers=2, eval_batch_size=2)
    batches = list(two.test_dataloader())
    assert [name for batch in batches for name in batch["name"]] == ["0001", "0002", "0009"]
    masks = torch.cat([batch["mask"] for batch in batches])
    assert torch.equal(masks, torch.stack([sample["mask"] for sample in alone.dataset("test", [])]))


def test_extra_training_images(official: Path, tmp_path: Path) -> None:
    Image.fromarray(np.full((10, 12, 3), 7, dtype=np.uint8)).save(tmp_path / "old.png")
    Image.fromarray(np.full((10, 12), 4, dtype=np.uint8)).save(tmp_path / "mask.png")
    (tmp_path / "more.txt").write_text("old.png mask.png\n\n")
    data = NYUv2(root=str(official), num_labels=40, extra_train=str(tmp_path / "more.txt"))
    dataset = data.dataset("train", [])
    assert len(dataset) == 8
    assert dataset[7]["name"] == "old"
    assert torch.equal(dataset[7]["mask"], torch.full((10, 12), CLASSES[40].index("bed")))
    assert len(data.dataset("val", [])) == 4
    (tmp_path / "more.txt").write_text("old.png\n")
    with pytest.raises(ValueError, match=r"more\.txt has a line 'old\.png': write the path"):
        data.dataset("train", [])
    (tmp_path / "more.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"more\.txt: check extra_train"):
        data.dataset("train", [])


def test_errors_say_what_to_do(official: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds neither nyu_depth_v2_labeled\.mat nor nyu_v2/images: download"):
        NYUv2(root=str(tmp_path)).train_dataloader()
    with pytest.raises(ValueError, match="num_labels is 7"):
        NYUv2(num_labels=7)  # type: ignore[arg-type]
    path = tmp_path / "nyu_depth_v2_labeled.mat"
    whole = (official / path.name).read_bytes()
    path.write_bytes(whole)
    with pytest.raises(FileNotFoundError, match=r"splits\.mat is missing: download"):
        NYUv2(root=str(tmp_path)).train_dataloader()
    with h5py.File(path, "r+") as file:
        file["#refs#/156"][0] = ord("r")  # bed -> red, as in a file with other classes
    with pytest.raises(ValueError, match="has other class names than the 894"):
        NYUv2(root=str(tmp_path)).train_dataloader()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cannot read .*labeled\.mat .*: download it again"):
        NYUv2(root=str(tmp_path)).train_dataloader()


def test_wrong_files_are_named(tmp_path: Path) -> None:
    for folder in ("images", "labels40"):
        (tmp_path / "nyu_v2" / folder).mkdir(parents=True)
    data = NYUv2(root=str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"test\.txt is missing"):
        data.dataset("test", [])
    (tmp_path / "nyu_v2" / "test.txt").write_text("0001\n")
    dataset = data.dataset("test", [])
    Image.fromarray(np.zeros((10, 12, 3), dtype=np.uint8)).save(tmp_path / "nyu_v2" / "images" / "0001.jpg")
    mask = tmp_path / "nyu_v2" / "labels40" / "0001.png"
    Image.fromarray(np.full((10, 12), 41, dtype=np.uint8)).save(mask)
    with pytest.raises(ValueError, match=r"0001\.png holds label 41"):
        dataset[0]
    Image.fromarray(np.zeros((12, 10), dtype=np.uint8)).save(mask)
    with pytest.raises(ValueError, match=r"0001\.jpg is 10 x 12 but its mask .* \(12, 10\)"):
        dataset[0]


def test_real_frames(data_root: Path) -> None:
    if not (data_root / "nyu_v2").is_dir():
        pytest.skip("no NYU V2 frames")
    data = NYUv2(root=str(data_root), num_labels=40)
    train = data.frames().numbers("train")
    held_out = read_split()
    assert held_out == set(make_split(train))
    assert all({number - 1, number + 1} & set(train) <= held_out for number in held_out)  # no run is cut
    forty = {}
    for split, size in (("train", 695), ("val", 100), ("test", 654)):
        dataset = data.dataset(split, [])
        assert len(dataset) == size
        forty[split] = np.zeros(256, dtype=np.int64)
        for index in range(size):
            image, mask, _ = dataset.read(index)
            assert image.shape[:2] == mask.shape  # type: ignore[union-attr]
            forty[split] += np.bincount(mask.ravel(), minlength=256)  # type: ignore[union-attr]
        assert forty[split][:39].all()
        assert not forty[split][40:255].any()
    assert forty["test"][39]
    for count in (5, 13):
        labels = labels_of_forty(count)
        assert all(len(set(labels[1:][counts[:40] > 0])) == count for counts in forty.values())
