"""One's own data: pairing, kinds of masks, splits, and an error for each thing that can be wrong."""

from pathlib import Path

import albumentations as A
import numpy as np
import pytest
import torch
from PIL import Image

from datamodules import FolderDataModule, SyntheticStreets
from datamodules.colours import spread_hues
from datamodules.dataset import collate, read_image

COLOURS = [(0, 0, 0), (255, 0, 0), (0, 255, 0)]


def write_data(root: Path, count: int = 10, kind: str = "index") -> tuple[str, str]:
    """Images whose mask can be told from their colour: (images, masks)."""
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    for i in range(count):
        labels = np.random.default_rng(i).integers(0, 3, (20 + i, 30)).astype(np.uint8)
        labels[0, 0] = 2
        Image.fromarray(labels * 100).convert("RGB").save(root / "images" / f"scene{i}.png")
        if kind == "colour":
            mask = Image.fromarray(np.array(COLOURS, dtype=np.uint8)[labels])
        else:
            mask = Image.fromarray(labels)
            if kind == "palette":
                mask.putpalette([channel for colour in COLOURS for channel in colour])
        mask.save(root / "masks" / f"scene{i}.png")
    return str(root / "images"), str(root / "masks")


def build(images: str, masks: str, **options: object) -> FolderDataModule:
    return FolderDataModule(images, masks, classes=["a", "b", "c"], colours=COLOURS, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["index", "palette", "colour"])
def test_each_kind_of_mask_gives_the_labels(tmp_path: Path, kind: str) -> None:
    data = build(*write_data(tmp_path, kind=kind))
    samples = [sample for split in ("train", "val", "test") for sample in data.dataset(split, [])]
    assert len(samples) == 10
    for sample in samples:
        assert sample["image"].dtype == torch.uint8
        assert torch.equal(sample["mask"], (sample["image"][0] // 100).long())
        assert sample["size"].tolist() == list(sample["mask"].shape)


def test_splits_by_fraction_are_disjoint_and_repeatable(tmp_path: Path) -> None:
    images, masks = write_data(tmp_path, 20)
    first, again, other = build(images, masks), build(images, masks), build(images, masks, split_seed=1)
    names = [first.names(split, list(first.pairs())) for split in ("train", "val", "test")]
    assert [len(part) for part in names] == [14, 3, 3]
    assert len(set().union(*names)) == 20
    assert names[0] == again.names("train", list(again.pairs()))
    assert names[0] != other.names("train", list(other.pairs()))


def test_split_files_and_globs(tmp_path: Path) -> None:
    images, masks = write_data(tmp_path)
    files = []
    for split, numbers in (("train", (0, 1, 2)), ("val", (3,)), ("test", (4, 5))):
        files.append(tmp_path / f"{split}.txt")
        files[-1].write_text("\n".join(f"scene{i}" for i in numbers) + "\n\n")
    data = build(images + "/*.png", masks + "/**/*.png", split_files=tuple(map(str, files)))
    assert [data.dataset("test", [])[i]["name"] for i in range(2)] == ["scene4", "scene5"]
    files[1].write_text("scene99\n")
    with pytest.raises(FileNotFoundError, match=r"val\.txt names scene99"):
        data.dataset("val", [])
    files[1].write_text("scene4\n")
    with pytest.raises(ValueError, match=r"scene4 is in .*val\.txt and again in .*test\.txt"):
        data.dataset("val", [])
    files[1].write_text("scene3\nscene3\n")
    with pytest.raises(ValueError, match=r"scene3 is in .*val\.txt and again in .*val\.txt"):
        data.dataset("val", [])
    files[1].write_text("")
    with pytest.raises(ValueError, match="val split is empty"):
        data.dataset("val", [])


def test_transforms_act_on_image_and_mask_alike(tmp_path: Path) -> None:
    data = build(*write_data(tmp_path), batch_size=3, train_transforms=[A.RandomCrop(16, 16), A.HorizontalFlip()])
    batch = next(iter(data.train_dataloader()))
    assert batch["image"].shape == (3, 3, 16, 16)
    assert torch.equal(batch["mask"], (batch["image"][:, 0] // 100).long())


def test_augmentation_follows_the_seed(tmp_path: Path) -> None:
    dataset = build(*write_data(tmp_path)).dataset("train", [A.RandomCrop(8, 8)])
    torch.manual_seed(1)
    first = [dataset[0]["image"] for _ in range(4)]
    torch.manual_seed(1)
    assert all(torch.equal(image, dataset[0]["image"]) for image in first)
    assert any(not torch.equal(first[0], image) for image in first[1:])


def test_every_fault_names_the_file(tmp_path: Path) -> None:
    images, masks = write_data(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere is neither a folder nor a glob"):
        build("nowhere", masks).pairs()
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty holds no image files"):
        build(str(tmp_path / "empty"), masks).pairs()

    def read_all() -> None:
        data = build(images, masks, fractions=(1.0, 0.0, 0.0))
        list(data.dataset("train", []))

    mask = tmp_path / "masks" / "scene3.png"
    good = mask.read_bytes()
    Image.fromarray(np.full((23, 30), 7, dtype=np.uint8)).save(mask)
    with pytest.raises(ValueError, match=r"scene3\.png holds label 7, but there are 3 classes"):
        read_all()
    Image.fromarray(np.full((23, 30, 3), 7, dtype=np.uint8)).save(mask)
    with pytest.raises(ValueError, match=r"scene3\.png holds colour \(7, 7, 7\)"):
        read_all()
    Image.fromarray(np.zeros((5, 6), dtype=np.uint8)).save(mask)
    with pytest.raises(ValueError, match=r"scene3\.png is 23 x 30 but its mask .* is 5 x 6"):
        read_all()
    mask.write_bytes(good[: len(good) // 2])
    with pytest.raises(ValueError, match=r"cannot read .*scene3\.png"):
        read_all()
    Image.fromarray(np.zeros((23, 30, 2), dtype=np.uint8), mode="LA").save(mask)
    with pytest.raises(ValueError, match=r"scene3\.png has LA pixels: save it as"):
        read_all()
    mask.unlink()
    with pytest.raises(FileNotFoundError, match=r"scene3\.png has no mask"):
        read_all()
    Image.fromarray(np.zeros((23, 30), dtype=np.uint8)).save(mask.with_suffix(".jpg"))
    with pytest.raises(ValueError, match=r"scene3\.jpg is a JPEG, which blurs labels"):
        read_all()
    mask.with_suffix(".jpg").unlink()
    for suffix in (".png", ".bmp"):
        Image.fromarray(np.zeros((23, 30), dtype=np.uint8)).save(mask.with_suffix(suffix))
    with pytest.raises(ValueError, match=r"scene3\.bmp and .*scene3\.png are masks of one name"):
        read_all()


def test_ignored_pixels_are_allowed(tmp_path: Path) -> None:
    images, masks = write_data(tmp_path, 3)
    Image.fromarray(np.full((20, 30), 255, dtype=np.uint8)).save(tmp_path / "masks" / "scene0.png")
    data = build(images, masks, fractions=(1.0, 0.0, 0.0))
    assert data.dataset("train", [])[0]["mask"].unique().tolist() == [255]


def test_black_and_white_masks(tmp_path: Path) -> None:
    images, masks = write_data(tmp_path)
    for path in (tmp_path / "masks").iterdir():
        Image.fromarray(np.where(np.array(Image.open(path)) > 0, 255, 0).astype(np.uint8)).save(path)
    with pytest.raises(ValueError, match=r"hold only the labels 0, 255 \(255 is ignored\).* give mask_values"):
        build(images, masks).train_dataloader()
    mask = build(images, masks, mask_values={0: 0, 255: 1}).dataset("train", [])[0]["mask"]
    assert mask.unique().tolist() == [0, 1]


def test_coloured_masks_have_a_colour_to_ignore(tmp_path: Path) -> None:
    images, masks = write_data(tmp_path, 3, kind="colour")
    path = tmp_path / "masks" / "scene0.png"
    colours = np.array(Image.open(path))
    colours[:5] = 255
    Image.fromarray(colours).save(path)
    data = build(images, masks, fractions=(1.0, 0.0, 0.0), ignore_colour=(255, 255, 255))
    mask = data.dataset("train", [])[0]["mask"]
    assert (mask[:5] == 255).all()
    assert (mask[5:] < 3).all()


def test_images_are_turned_and_not_squeezed_into_8_bits(tmp_path: Path) -> None:
    picture = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(4, 6))
    exif = Image.Exif()
    exif[274] = 6  # the camera was held on its side
    picture.save(tmp_path / "turned.png", exif=exif)
    assert read_image(tmp_path / "turned.png").shape == (6, 4, 3)
    Image.fromarray(np.full((4, 6), 30000, dtype=np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(ValueError, match=r"deep\.png has I;16 pixels, more than 8 bits"):
        read_image(tmp_path / "deep.png")
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\.png: add it"):
        read_image(tmp_path / "none.png")


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="3 classes but 1 colours"):
        FolderDataModule("i", "m", classes=["a", "b", "c"], colours=[(0, 0, 0)])
    with pytest.raises(ValueError, match="must sum to 1"):
        FolderDataModule("i", "m", classes=["a", "b"], fractions=(0.5, 0.1, 0.1))
    with pytest.raises(ValueError, match=r"2 sizes \(4 x 5, 5 x 5\)"):
        collate([{"image": torch.zeros(3, height, 5)} for height in (4, 5)])
    with pytest.raises(TypeError, match="leave out Normalize"):
        _ = SyntheticStreets(height=32, width=48).dataset("train", [A.Normalize()])[0]
    assert len(set(spread_hues(19))) == 19
