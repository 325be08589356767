"""The head alone: as if the network were computed at every step, in memory, in files, and only where that is right."""

from functools import partial
from pathlib import Path
from typing import Any

import albumentations as A
import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from crfgrad import CRF, SpatialPotential
from datamodules import SyntheticStreets
from datamodules.stages import two_stages
from lightning_modules import KeptLogits, SegmentationModule
from lightning_modules.logit_stores import InFolder
from tests.lightning_modules.test_segmentation import Failing, TinyNetwork

RESIZE, FLIP = A.Resize(20, 28), A.HorizontalFlip(p=0.5)


class Counting(TinyNetwork):
    """Counts its calls."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + len(image)
        return super().forward(image)


def streets(train: list[Any] | None = None, **options: Any) -> SyntheticStreets:
    sizes: dict[str, Any] = {"height": 24, "width": 32, "train_size": 6, "val_size": 4, "batch_size": 3}
    sizes |= {"eval_batch_size": 2, "eval_transforms": [RESIZE]}
    return SyntheticStreets(train_transforms=[RESIZE] if train is None else train, **sizes | options)


def build(**options: Any) -> SegmentationModule:
    torch.manual_seed(1)
    module = SegmentationModule(
        8,
        Counting,
        partial(CRF, potentials=[partial(SpatialPotential, radius=1)]),
        **{"freeze_network_epochs": 2, "head_learning_rate": 0.3} | options,
    )
    last: Any = module.network.last
    torch.nn.init.normal_(last.weight)
    return module


def fit(folder: Path, module: SegmentationModule, data: Any, kept: KeptLogits | None, **options: Any) -> pl.Trainer:
    torch.manual_seed(2)
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    quiet |= {"enable_checkpointing": False, "accelerator": "cpu", "num_sanity_val_steps": 0, "max_epochs": 2}
    quiet |= {"callbacks": [] if kept is None else [kept], "default_root_dir": folder}
    trainer = pl.Trainer(**quiet | options)
    trainer.fit(module, data)
    return trainer


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("where", ["memory", "folder"])
def test_a_head_trains_as_behind_its_network(where: str, half: bool, tmp_path: Path) -> None:
    folder = None if where == "memory" else str(tmp_path / "logits")
    ordinary, alone = build(), build()
    expected = fit(tmp_path, ordinary, streets(), KeptLogits(use=False)).callback_metrics
    start = {key: value.clone() for key, value in build().state_dict().items()}
    found = fit(tmp_path, alone, streets(), KeptLogits(folder=folder, half=half)).callback_metrics
    assert ordinary.network.calls == 2 * (6 + 4)
    assert alone.network.calls == 6 + 4  # each image once
    tolerance = 2e-3 if half else 1e-4
    for name, value in ordinary.state_dict().items():
        assert torch.allclose(alone.state_dict()[name], value, atol=tolerance), name
        assert torch.equal(value, start[name]) == name.startswith("network"), name
    assert found["val/miou_network"] == expected["val/miou_network"]
    for name in ("val/loss", "val/miou", "val/energy", "train/loss"):
        assert found[name].item() == pytest.approx(expected[name].item(), rel=10 * tolerance)


def test_they_are_kept_by_themselves_where_that_is_right(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for options, train, calls, said in (
        ({}, [RESIZE, FLIP, A.RandomCrop(16, 16)], 10, "trains on kept logits of 6 images"),
        ({}, [], 10, "trains on kept logits of 6 images"),
        ({"freeze_network_epochs": 1}, [RESIZE], 20, ""),
        ({}, [A.RandomResizedCrop((20, 28))], 20, "computed at every step: RandomResizedCrop makes another picture"),
        ({}, [FLIP, RESIZE], 20, "computed at every step: HorizontalFlip|Resize makes another picture"),
    ):
        caplog.clear()
        module = build(**options)
        with caplog.at_level("INFO"):
            fit(tmp_path, module, streets(train), KeptLogits())
        assert module.network.calls == calls, (options, train)
        assert any(part in caplog.text for part in said.split("|"))
        assert ("trains on kept" in caplog.text) == ("trains on kept" in said)


def test_what_is_refused(tmp_path: Path) -> None:
    for kept in (KeptLogits(use=True), KeptLogits(folder=str(tmp_path / "logits"))):
        with pytest.raises(ValueError, match="RandomResizedCrop makes another picture of an image each time"):
            fit(tmp_path, build(), streets([A.RandomResizedCrop((20, 28))]), kept)
        with pytest.raises(ValueError, match="ColorJitter makes another picture"):
            fit(tmp_path, build(), streets([RESIZE, A.ColorJitter()]), kept)
        with pytest.raises(ValueError, match=r"freeze_network_epochs of at least max_epochs \(2\)"):
            fit(tmp_path, build(freeze_network_epochs=1), streets(), kept)
    with pytest.raises(ValueError, match=r"more than kept_logits\.most_memory: give kept_logits\.folder"):
        fit(tmp_path, build(), streets(), KeptLogits(use=True, most_memory=1e-6))


def test_transforms_in_two_stages() -> None:
    size, crop, pad = A.LongestMaxSize(30), A.RandomCrop(8, 8), A.RandomCrop(8, 8, pad_if_needed=True)
    either = A.OneOf([A.HorizontalFlip(), A.RandomRotate90()])
    assert two_stages([size, RESIZE, crop, either]) == ([size, RESIZE], [crop, either])
    for refused in ([pad], [A.LongestMaxSize([20, 30])], [FLIP, RESIZE], [A.Resize(8, 8, p=0.5)], [A.Rotate()]):
        with pytest.raises(ValueError, match="makes another picture of an image each time"):
            two_stages(refused)


def test_logits_move_with_their_pixels() -> None:
    """Their first channel is the image itself here."""
    moving = [FLIP, A.VerticalFlip(), A.RandomRotate90(), A.OneOf([A.Transpose(), A.D4()]), A.RandomCrop(14, 14)]
    data = streets([A.Resize(24, 32), *moving])
    pictures = data.pictures("train")
    data.logits["train"] = lambda index, name: pictures[index]["image"].numpy().astype(np.float16)  # (3, H, W)
    truth = {sample["name"]: sample["mask"] for sample in pictures}
    dataset: Any = data.train_dataloader().dataset
    seen = set()
    for index in range(60):
        sample = dataset[index % 6]
        assert torch.equal(sample["image"].half(), sample["logits"])
        seen.add(sample["image"].numpy().tobytes())
        assert sample["mask"].shape == (14, 14)
        counts = torch.bincount(sample["mask"].flatten(), minlength=8)
        assert (counts <= torch.bincount(truth[sample["name"]].flatten(), minlength=8)).all()
    assert len(seen) > 50


def test_a_folder_is_used_again_and_only_for_what_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "logits"
    kept = partial(KeptLogits, folder=str(folder))
    fit(tmp_path, build(), streets(), kept())
    (folder / "000003.npz").unlink()  # as after a kill
    times = {path: path.stat().st_mtime_ns for path in folder.glob("*.npz")}
    again = build()
    fit(tmp_path, again, streets([RESIZE, FLIP]), kept())
    assert again.network.calls == 1 + 4
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    assert (folder / "000003.npz").is_file()
    other: Any = build()
    with torch.no_grad():
        other.network.last.weight.add_(1)
    with pytest.raises(ValueError, match="differ from those asked for in: network; give another folder"):
        fit(tmp_path, other, streets(), kept())
    with pytest.raises(ValueError, match="differ from those asked for in: dtype; give another folder"):
        fit(tmp_path, build(), streets(), kept(half=False))
    with pytest.raises(ValueError, match="differ from those asked for in: precision; give another folder"):
        fit(tmp_path, build(), streets(), kept(), precision="bf16-mixed")
    with pytest.raises(ValueError, match="differ from those asked for in: transforms"):
        fit(tmp_path, build(), streets([A.Resize(16, 16)]), kept())
    with pytest.raises(ValueError, match=r"has logits of image street\d+ and not of street300000\d: give another"):
        fit(tmp_path, build(), streets(seed=1), kept())


def test_out_of_fold_logits_are_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = streets().pictures("train")
    written = InFolder(tmp_path / "logits", 6, repr(pictures.transform), np.float16)
    written.claim({"folds": 3, "precision": "32-true"})
    for index, sample in enumerate(pictures):
        written.write(index, sample["name"], np.zeros((8, 20, 28), dtype=np.float32))
    for name in ("write_bytes", "mkdir"):
        monkeypatch.delattr(Path, name)
    again = InFolder(tmp_path / "logits", 6, repr(pictures.transform), np.float32)
    again.check_complete()
    assert again(0, pictures[0]["name"]).dtype == np.float16
    with pytest.raises(ValueError, match="differ from those asked for in: count; give another folder"):
        InFolder(tmp_path / "logits", 5, repr(pictures.transform), np.float16).check_complete()


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_logits_that_are_not_finite_are_refused(where: str, tmp_path: Path) -> None:
    module, folder = build(), None if where == "memory" else str(tmp_path / "logits")
    with torch.no_grad():
        module.network.last.bias.fill_(1e5)  # type: ignore[union-attr,operator]
    with pytest.raises(ValueError, match=r"image street\d+ reach 1e\+05, which is not finite in float16: check the"):
        fit(tmp_path, module, streets(), KeptLogits(folder=folder))
    fit(tmp_path, module, streets(), KeptLogits(half=False), max_epochs=1)


def test_a_fit_that_fails_leaves_none(tmp_path: Path) -> None:
    data = streets()
    with pytest.raises(RuntimeError, match="failed"):
        fit(tmp_path, build(), data, None, callbacks=[KeptLogits(), Failing()])
    assert data.logits == {}


def test_another_fit_of_the_same_data_has_its_own(tmp_path: Path) -> None:
    data = streets()
    fit(tmp_path, build(), data, KeptLogits())
    assert data.logits == {}
    module = build(freeze_network_epochs=0)
    fit(tmp_path, module, data, KeptLogits())
    assert module.network.calls == 20
