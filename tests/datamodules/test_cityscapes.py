"""Cityscapes: its layout and ids on generated files, and result files for the evaluation server."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from datamodules import Cityscapes
from datamodules.tables import read_table
from tests.command_line import QUIET, STREETS, run

CITIES = {
    "train": ("aachen", "bochum"),
    "val": ("frankfurt", "lindau"),
    "test": ("berlin", "bonn"),
    "train_extra": ("augsburg",),
}
LICENSE_PLATE = 255  # -1 in 8 bits
HEIGHT, WIDTH = 32, 64


def ids_of(seed: int) -> np.ndarray:
    """Label ids (H, W) in which each of the 34 occurs."""
    ids = np.random.default_rng(seed).integers(0, 34, (HEIGHT, WIDTH), dtype=np.uint8)
    ids[0, :34] = np.arange(34)
    return ids


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root with two images in each city, labelled as the official ones are."""
    for split, cities in CITIES.items():
        for city in cities:
            for frame in (19, 20):
                pixels = np.random.default_rng(frame).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
                save(tmp_path, "leftImg8bit", split, f"{city}_000000_{frame:06d}_leftImg8bit.png", pixels)
                for labels, seed in (("gtFine", frame), ("gtCoarse", 100 + frame)):
                    if split != "test" and (split, labels) != ("train_extra", "gtFine"):
                        name = f"{city}_000000_{frame:06d}_{labels}"
                        save(tmp_path, labels, split, f"{name}_labelIds.png", ids_of(seed))
                        save(tmp_path, labels, split, f"{name}_color.png", pixels)  # which is not read
    return tmp_path


def save(root: Path, kind: str, split: str, name: str, pixels: np.ndarray) -> None:
    folder = root / "cityscapes" / kind / split / name.split("_")[0]
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(folder / name)


def test_the_table() -> None:
    rows = {int(label): (name, int(train_id)) for label, name, train_id, _ in read_table("cityscapes")}
    assert sorted(rows) == list(range(-1, 34))
    assert sorted(train_id for _, train_id in rows.values() if train_id != 255) == list(range(19))
    assert [rows[label][0] for label in Cityscapes.result_ids] == list(Cityscapes.classes)
    assert Cityscapes.classes[13] == "car"
    assert Cityscapes.colours[13] == (0, 0, 142)
    assert rows[-1] == ("license plate", 255)


def test_label_ids_become_train_ids_and_come_back(root: Path) -> None:
    sample = Cityscapes(root=str(root)).dataset("val", [])[0]
    labels, ids = sample["mask"], torch.from_numpy(ids_of(19)).long()
    assert labels.shape == sample["image"].shape[1:] == (HEIGHT, WIDTH)
    assert set(labels.unique().tolist()) == {*range(19), 255}
    evaluated = labels != 255
    back = torch.tensor(Cityscapes.result_ids)[labels[evaluated]]
    assert torch.equal(back, ids[evaluated])
    ignored = {0, 1, 2, 3, 4, 5, 6, 9, 10, 14, 15, 16, 18, 29, 30}
    assert set(ids[~evaluated].tolist()) == ignored


def test_splits(root: Path) -> None:
    def names(split: str, **options: bool) -> list[str]:
        return [sample["name"] for sample in Cityscapes(root=str(root), **options).dataset(split, [])]  # type: ignore[arg-type]

    fine = [f"{city}_000000_{frame}" for city in CITIES["train"] for frame in ("000019", "000020")]
    extra = ["augsburg_000000_000019", "augsburg_000000_000020"]
    assert names("train") == fine
    assert names("train", coarse=True) == fine + extra
    assert names("train", fine=False, coarse=True) == fine + extra
    assert (
        names("val", coarse=True)
        == names("test")
        == [name.replace("aachen", "frankfurt").replace("bochum", "lindau") for name in fine]
    )


def test_coarse_labels_are_read_where_they_are_asked_for(root: Path) -> None:
    def first_and_last(**options: bool) -> list[torch.Tensor]:
        dataset = Cityscapes(root=str(root), **options).dataset("train", [])  # type: ignore[arg-type]
        return [dataset[0]["mask"], dataset[len(dataset) - 1]["mask"]]

    train_ids = np.full(256, 255)
    train_ids[list(Cityscapes.result_ids)] = np.arange(19)
    fine, _ = first_and_last()
    both, extra = first_and_last(coarse=True)
    coarse, _ = first_and_last(fine=False, coarse=True)
    assert np.array_equal(fine, train_ids[ids_of(19)])
    assert torch.equal(both, fine)
    assert np.array_equal(extra, train_ids[ids_of(120)])
    assert np.array_equal(coarse, train_ids[ids_of(119)])


def test_loader_processes(root: Path) -> None:
    batches = list(Cityscapes(root=str(root), workers=2, eval_batch_size=4).val_dataloader())
    assert batches[0]["mask"].shape == (4, HEIGHT, WIDTH)


def test_errors_say_what_to_do(root: Path, tmp_path: Path) -> None:
    empty = Cityscapes(root=str(tmp_path / "elsewhere"), coarse=True)
    with pytest.raises(
        FileNotFoundError, match=r"leftImg8bit/train holds no images: .* download leftImg8bit_trainvaltest"
    ):
        empty.train_dataloader()
    with pytest.raises(FileNotFoundError, match=r"leftImg8bit/test holds no images: .* download"):
        empty.predict_dataloader()
    with pytest.raises(
        FileNotFoundError, match=r"train_extra holds no images: .* download leftImg8bit_trainextra\.zip"
    ):
        empty.images("train_extra")
    with pytest.raises(ValueError, match="fine and coarse are both false"):
        Cityscapes(fine=False)
    data = Cityscapes(root=str(root))
    mask = root / "cityscapes/gtFine/val/frankfurt/frankfurt_000000_000019_gtFine_labelIds.png"
    ids = ids_of(19)
    ids[3, 4] = LICENSE_PLATE
    Image.fromarray(ids).save(mask)
    assert data.dataset("val", [])[0]["mask"][3, 4] == 255
    ids[3, 4] = 34
    Image.fromarray(ids).save(mask)
    with pytest.raises(ValueError, match=r"000019_gtFine_labelIds\.png holds label id 34"):
        data.dataset("val", [])[0]
    Image.fromarray(ids[1:]).save(mask)
    with pytest.raises(ValueError, match=r"labelIds\.png has shape \(31, 64\) but its image"):
        data.dataset("val", [])[0]
    mask.unlink()
    with pytest.raises(FileNotFoundError, match=r"labelIds\.png is missing: download gtFine_trainvaltest\.zip"):
        data.dataset("val", [])


def test_predict_writes_what_the_evaluation_server_takes(root: Path, tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text(f"data:\n  class_path: Cityscapes\n  init_args: {{root: {root}}}\n")
    (tmp_path / "model.yaml").write_text("model:" + STREETS.read_text().split("\nmodel:")[1].split("\ndata:")[0] + "\n")
    given = [f"--config={tmp_path / 'model.yaml'}", f"--config={tmp_path / 'data.yaml'}", *QUIET]
    run("predict", *given, "--untrained=true", f"--output={tmp_path}", "--name=run")
    folder = tmp_path / "run" / "version_0" / "predictions"
    images = sorted((root / "cityscapes" / "leftImg8bit" / "test").glob("*/*.png"))
    written = sorted((folder / "results").rglob("*.png"))
    assert [path.name for path in written] == [path.name for path in images]
    assert len(written) == 4
    for path in written:
        result = Image.open(path)
        assert result.mode == "L"
        assert result.size == (WIDTH, HEIGHT)
        labels = np.array(Image.open(folder / "labels" / path.relative_to(folder / "results")))
        assert np.array_equal(np.array(result), np.array(Cityscapes.result_ids)[labels])


def test_crops_for_training_and_whole_images_in_evaluation(root: Path, tmp_path: Path) -> None:
    crop = "{class_path: albumentations.RandomCrop, init_args: {height: 32, width: 32}}"
    arguments = f"{{root: {root}, batch_size: 2, train_transforms: [{crop}]}}"
    (tmp_path / "data.yaml").write_text(f"data:\n  class_path: Cityscapes\n  init_args: {arguments}\n")
    (tmp_path / "model.yaml").write_text("model:" + STREETS.read_text().split("\nmodel:")[1].split("\ndata:")[0] + "\n")
    given = [f"--config={tmp_path / 'model.yaml'}", f"--config={tmp_path / 'data.yaml'}", *QUIET]
    cli = run("fit", *given, f"--output={tmp_path}", "--name=run")
    assert next(iter(cli.datamodule.train_dataloader()))["image"].shape == (2, 3, 32, 32)
    assert next(iter(cli.datamodule.val_dataloader()))["image"].shape == (1, 3, HEIGHT, WIDTH)
    assert "val/iou/traffic light" in cli.trainer.callback_metrics
