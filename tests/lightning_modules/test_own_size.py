"""Measured at the size of the masks: as a plain count does, in any batches, and as predictions in files."""

from pathlib import Path
from typing import Any

import albumentations as A
import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from datamodules import FolderDataModule
from lightning_modules import PredictionWriter, SegmentationModule
from lightning_modules.metrics import trimap
from lightning_modules.tiling import Tiling
from tests.command_line import read_metrics, run, start
from tests.lightning_modules.test_metrics import plain_iou
from tests.lightning_modules.test_segmentation import TinyNetwork, crf, trainer

SIZES = [(40, 60), (52, 44), (36, 80), (61, 47), (40, 60), (33, 90), (50, 50)]
HEADS = {"network": None, "crf": crf}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of many sizes with masks of boxes; some pixels are ignored."""
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for folder in ("images", "masks"):
        (root / folder).mkdir()
    for number, (height, width) in enumerate(SIZES):
        labels = rng.integers(0, 3, (4, 4)).repeat(25, 0).repeat(25, 1)[:height, :width].astype(np.uint8)
        noisy = np.clip(80 * labels[..., None] + rng.normal(40, 30, (height, width, 3)), 0, 255)
        Image.fromarray(noisy.astype(np.uint8)).save(root / "images" / f"{number}.png")
        labels[:3] = 255
        Image.fromarray(labels).save(root / "masks" / f"{number}.png")
    for split, names in {"train": "0", "val": "1", "test": "2\n3\n4\n5\n6"}.items():
        (root / f"{split}.txt").write_text(names)
    (root / "tested").mkdir()
    for number in range(2, 7):
        (root / "tested" / f"{number}.png").symlink_to(root / "images" / f"{number}.png")
    return root


def data_of(pictures: Path, **options: Any) -> FolderDataModule:
    splits: Any = tuple(str(pictures / f"{split}.txt") for split in ("train", "val", "test"))
    given = {"split_files": splits, "eval_transforms": [A.Resize(32, 48)], "predict_images": str(pictures / "tested")}
    classes = ["a", "b", "c"]
    return FolderDataModule(str(pictures / "images"), str(pictures / "masks"), classes=classes, **given | options)


def module_of(name: str, **options: Any) -> SegmentationModule:
    torch.manual_seed(3)
    module = SegmentationModule(3, TinyNetwork, HEADS[name], **options).eval()
    last: Any = module.network.last
    torch.nn.init.normal_(last.weight)  # so that the answer has several labels
    return module


def measured(pictures: Path, module: SegmentationModule, folder: Path, **options: Any) -> dict[str, float]:
    (logged,) = trainer(folder).test(module, data_of(pictures, **options), verbose=False)
    return dict(logged)


@pytest.mark.parametrize("name", HEADS)
def test_metrics_are_those_of_a_plain_count(name: str, pictures: Path, tmp_path: Path) -> None:
    module = module_of(name, trimap_width=2)
    logged = measured(pictures, module, tmp_path)
    predicted: dict[str, list[torch.Tensor]] = {"": [], "_network": []}
    masks, bands, losses = [], [], []
    for sample in data_of(pictures).dataset("test", [A.Resize(32, 48)]):
        mask = torch.from_numpy(np.array(Image.open(pictures / "masks" / f"{sample['name']}.png"))).long()
        with torch.no_grad():
            logits, q = module(sample["image"][None])
            scores = logits if name == "network" else q
            for key, each in (("", scores), ("_network", logits)):
                whole = interpolate(each, mask.shape, mode="bilinear", align_corners=False)
                predicted[key].append(whole.argmax(1).flatten())
            whole = interpolate(scores, mask.shape, mode="bilinear", align_corners=False)
            losses.append(module.score(whole, whole, mask[None]).item())
        masks.append(mask.flatten())
        bands.append(trimap(mask[None], 2, 255).flatten())  # pixels of the mask
    for suffix in ("",) if name == "network" else ("", "_network"):
        for prefix, truth in (("", masks), ("trimap_", bands)):
            ious = plain_iou(torch.cat(predicted[suffix]), torch.cat(truth), 3, 255)
            present = [iou for iou in ious if iou is not None]
            assert logged[f"test/{prefix}miou{suffix}"] == pytest.approx(sum(present) / len(present), abs=1e-6)
    assert logged["test/loss"] == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_masks_of_a_batch_may_differ_in_size(name: str, pictures: Path, tmp_path: Path) -> None:
    module = module_of(name, loss="JaccardLoss")
    one, three = (measured(pictures, module, tmp_path, eval_batch_size=size) for size in (1, 3))
    assert one == pytest.approx(three, rel=1e-5)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("tiled", [False, True])
def test_predictions_in_files_are_what_is_measured(name: str, tiled: bool, pictures: Path, tmp_path: Path) -> None:
    tiles = {"tiling": Tiling(24, 4)} | ({"head_tiling": Tiling(24, 4)} if name == "crf" else {}) if tiled else {}
    module = module_of(name, **tiles)
    logged = measured(pictures, module, tmp_path)
    writer = PredictionWriter(str(tmp_path / "written"), probabilities=True)
    predictor = trainer(tmp_path, callbacks=[writer])
    predictor.predict(module, data_of(pictures), return_predictions=False)
    both: list[list[torch.Tensor]] = [[], []]
    for number in range(2, 7):
        found = Image.open(tmp_path / "written" / "labels" / f"{number}.png")
        truth = Image.open(pictures / "masks" / f"{number}.png")
        assert found.size == Image.open(tmp_path / "written" / "overlays" / f"{number}.png").size == truth.size
        probabilities = np.load(tmp_path / "written" / "probabilities" / f"{number}.npy").astype(np.float32)
        assert np.allclose(probabilities.sum(0), 1, atol=5e-3)
        for pixels, picture in zip(both, (found, truth), strict=True):
            pixels.append(torch.from_numpy(np.array(picture)).long().flatten())
    ious = plain_iou(*map(torch.cat, both), 3, 255)  # type: ignore[arg-type]
    present = [iou for iou in ious if iou is not None]
    assert len(present) == 3
    assert logged["test/miou"] == pytest.approx(sum(present) / 3, abs=1e-7)


def test_both_resized_is_another_measure(pictures: Path, tmp_path: Path) -> None:
    module = module_of("crf")
    resized = measured(pictures, module, tmp_path, measure_at_own_size=False)
    samples = list(data_of(pictures).dataset("test", [A.Resize(32, 48)]))
    images, masks = (torch.stack([sample[key] for sample in samples]) for key in ("image", "mask"))
    with torch.no_grad():
        ious = plain_iou(module(images)[1].argmax(1), masks, 3, 255)
    present = [iou for iou in ious if iou is not None]
    assert resized["test/miou"] == pytest.approx(sum(present) / len(present), abs=1e-6)
    own = measured(pictures, module, tmp_path)
    assert resized["test/miou"] != own["test/miou"]
    for name in ("test/energy", "test/energy_network"):  # of the CRF, at the size at which it works
        assert resized[name] == pytest.approx(own[name], rel=1e-6)


def test_one_process_and_two(pictures: Path, tmp_path: Path) -> None:
    splits = [str(pictures / f"{split}.txt") for split in ("train", "val", "test")]
    (tmp_path / "data.yaml").write_text(
        f"""
model:
  class_path: SegmentationModule
  init_args:
    network: {{class_path: SMPNetwork, init_args: {{arch: fpn}}}}
    head: {{class_path: CRF, init_args: {{potentials: [{{class_path: SpatialPotential}}]}}}}
data:
  class_path: FolderDataModule
  init_args:
    images: {pictures / "images"}
    masks: {pictures / "masks"}
    classes: [a, b, c]
    split_files: {splits}
    eval_batch_size: 2
    eval_transforms: [{{class_path: albumentations.Resize, init_args: {{height: 32, width: 48}}}}]
"""
    )
    given = ["test", f"--config={tmp_path / 'data.yaml'}", "--untrained=true", f"--output={tmp_path}"]
    given += ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
    one = run(*given, "--name=one").trainer.callback_metrics
    process = start(*given, "--name=two", "--trainer.devices=2", "--trainer.strategy=ddp")
    printed = process.communicate(timeout=300)[0]
    assert process.returncode == 0, printed
    two = read_metrics(tmp_path / "two" / "version_0")[-1]
    for name in ("miou", "miou_network", "trimap_miou", "iou/b", "loss", "energy"):
        assert float(two[f"test/{name}"]) == pytest.approx(one[f"test/{name}"].item(), rel=1e-5)
