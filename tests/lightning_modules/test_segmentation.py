"""The LightningModule: its metrics are those of a plain count, its parts train as they are told to."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import albumentations as A
import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from crfgrad import CRF, BilateralPotential, MeanField, SpatialPotential
from datamodules import SyntheticStreets
from lightning_modules import SegmentationModule
from lightning_modules.callbacks import _panel_row
from lightning_modules.metrics import trimap
from tests.lightning_modules.test_metrics import plain_iou

POTENTIALS = [partial(SpatialPotential, radius=1), partial(BilateralPotential, sigma_xy=10)]


class TinyNetwork(nn.Module):
    """Two convolutions, with batch normalisation between them."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.last = nn.Conv2d(8, num_classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.last(self.layers(image.float() / 255 - 0.5))
        return logits


class AddBrightness(nn.Module):
    """A head that is no CRF."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_classes, 1, 1))

    def forward(self, logits: Tensor, image: Tensor) -> Tensor:
        return (logits + self.weight * image.float().mean(1, keepdim=True)).softmax(1)


class Streets(SyntheticStreets):
    """Tiny scenes, some of whose pixels are to be ignored."""

    def __init__(self, **options: Any) -> None:
        super().__init__(height=24, width=32, train_size=6, val_size=5, test_size=5, batch_size=3, **options)
        self.eval_batch_size = 2

    def dataset(self, split: str, transforms: Sequence[A.BasicTransform]) -> Any:
        return [
            sample | {"mask": sample["mask"].clone().index_fill_(0, torch.tensor([3, 4]), 255)}
            for sample in super().dataset(split, transforms)
        ]


def crf(num_classes: int) -> CRF:
    return CRF(num_classes, POTENTIALS)


def build(**options: Any) -> SegmentationModule:
    return SegmentationModule(8, TinyNetwork, class_names=SyntheticStreets.classes, **options)


def trainer(folder: Path, **options: Any) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )


@pytest.mark.parametrize("head", [None, crf, AddBrightness])
def test_metrics_are_those_of_a_plain_count(head: Any, tmp_path: Path) -> None:
    module, data = build(head=head), Streets()
    (logged,) = trainer(tmp_path).test(module, data, verbose=False)
    module.eval()
    images, masks = (torch.stack([sample[key] for sample in data.dataset("test", [])]) for key in ("image", "mask"))
    with torch.no_grad():
        logits, q = module(images)
    band = trimap(masks, 3, 255)
    outputs = {"": q} if head is None else {"": q, "_network": logits}
    for suffix, scores in outputs.items():
        for prefix, truth in (("", masks), ("trimap_", band)):
            ious = plain_iou(scores.argmax(1), truth, 8, 255)
            present = [iou for iou in ious if iou is not None]
            assert logged[f"test/{prefix}miou{suffix}"] == pytest.approx(sum(present) / len(present), abs=1e-6)
            for name, iou in zip(module.class_names, ious, strict=True):
                expected = float("nan") if iou is None else iou
                assert logged[f"test/{prefix}iou{suffix}/{name}"] == pytest.approx(expected, abs=1e-6, nan_ok=True)
    assert ("test/energy" in logged) == (head is crf)
    if head is crf:
        energy = module.head.energy(logits, images)  # type: ignore[operator,union-attr]
        assert logged["test/energy"] == pytest.approx(energy(q).mean().item(), rel=1e-5)
        assert logged["test/energy_network"] == pytest.approx(energy(logits.softmax(1)).mean().item(), rel=1e-5)


class Recorder(pl.Callback):
    """Remembers the weights at the end of each epoch."""

    def __init__(self) -> None:
        self.states: list[dict[str, Tensor]] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.states.append({key: value.clone() for key, value in module.state_dict().items()})


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_frozen_network_stays_as_it_is(epochs: int, tmp_path: Path) -> None:
    module, recorder = build(head=crf, freeze_network_epochs=1, weight_decay=0.5), Recorder()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    trainer(tmp_path, max_epochs=epochs, callbacks=[recorder]).fit(module, Streets())
    for key, value in recorder.states[0].items():
        if key.startswith("network."):
            assert torch.equal(value, before[key]), key  # batch statistics and weight decay too
    assert not torch.equal(recorder.states[0]["head.potentials.0.filters"], before["head.potentials.0.filters"])
    if epochs == 2:
        assert not torch.equal(recorder.states[1]["network.last.weight"], before["network.last.weight"])


class Failing(pl.Callback):
    """Fails in the first step."""

    def on_train_batch_start(self, *_: Any) -> None:
        raise RuntimeError("failed")


@pytest.mark.parametrize("failing", [False, True])
def test_a_network_can_be_trained_after_its_head(failing: bool, tmp_path: Path) -> None:
    module = build(head=crf, freeze_network_epochs=1)
    bias: Any = module.network.last.bias  # type: ignore[union-attr]
    bias.requires_grad_(False)  # by its owner
    if failing:
        with pytest.raises(RuntimeError, match="failed"):
            trainer(tmp_path, max_epochs=1, callbacks=[Failing()]).fit(module, Streets())
    else:
        trainer(tmp_path, max_epochs=1).fit(module, Streets())
    before = {name: value.clone() for name, value in module.network.named_parameters()}
    module.hparams["freeze_network_epochs"] = 0
    trainer(tmp_path, max_epochs=1).fit(module, Streets())
    for name, value in module.network.named_parameters():
        assert value.requires_grad == (name != "last.bias"), name
        assert torch.equal(value, before[name]) == (name == "last.bias"), name


def test_weights_that_need_no_gradient_are_not_read() -> None:
    module = build(head=crf, freeze_network_epochs=1).train()
    module.log = lambda *_, **__: None  # type: ignore[assignment,method-assign,misc]
    module.network.requires_grad_(False)
    for weight in module.network.parameters():
        weight.data.fill_(torch.nan)
    image, mask = torch.randint(256, (1, 3, 16, 20), dtype=torch.uint8), torch.randint(8, (1, 16, 20))
    loss = module.training_step({"image": image, "mask": mask, "logits": torch.randn(1, 8, 16, 20)}, 0)
    assert torch.isfinite(loss)


def test_network_and_head_have_their_own_rates() -> None:
    module = build(
        head=crf, learning_rate=0.1, weight_decay=0.2, head_learning_rate=0.3, head_weight_decay=0.4
    )  # AdamW is the default
    network, head = module.configure_optimizers().param_groups
    assert (network["lr"], network["weight_decay"], head["lr"], head["weight_decay"]) == (0.1, 0.2, 0.3, 0.4)
    assert len(network["params"]) == len(list(module.network.parameters()))
    assert len(head["params"]) == len(list(crf(8).parameters()))


class Vote(SpatialPotential):
    """Somebody's own potential: rates go by the class itself, not by what it inherits from."""


def test_a_potential_may_have_its_own_rate() -> None:
    def head(num_classes: int) -> CRF:
        return CRF(num_classes, [SpatialPotential(num_classes), BilateralPotential(num_classes), Vote(num_classes)])

    rates = {"SpatialPotential": 0.01, "Vote": 0.02, "GaussianSpatialPotential": 5.0}  # none of the last is there
    module = build(head=head, head_learning_rate=0.3, head_weight_decay=0.4, potential_learning_rates=rates)
    _, others, spatial, vote = module.configure_optimizers().param_groups
    assert [group["lr"] for group in (others, spatial, vote)] == [0.3, 0.01, 0.02]
    decays = [group["lr"] * group["weight_decay"] for group in (others, spatial, vote)]  # in a step of SGD or AdamW
    assert decays == pytest.approx([0.3 * 0.4] * 3)
    potentials: Any = module.head.potentials  # type: ignore[union-attr]
    assert spatial["params"][0] is potentials[0].filters
    assert vote["params"][0] is potentials[2].filters
    assert any(parameter is potentials[1].filters for parameter in others["params"])
    assert len(others["params"]) + 2 == len(list(module.head.parameters()))  # type: ignore[union-attr]


def test_a_potential_that_is_not_to_learn() -> None:
    module = build(head=crf, head_weight_decay=0.4, potential_learning_rates={"SpatialPotential": 0.0})
    _, others, spatial = module.configure_optimizers().param_groups
    assert (others["lr"], others["weight_decay"]) == (0.03, 0.4)
    assert (spatial["lr"], spatial["weight_decay"]) == (0.0, 0.0)


def test_a_rate_for_no_potential_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Spatial is no potential: give one of Bilateral.*SpatialPotential"):
        build(head=crf, potential_learning_rates={"Spatial": 1.0})
    with pytest.raises(ValueError, match=r"SpatialPotential has the rate -1\.0: give 0 or more"):
        build(head=crf, potential_learning_rates={"SpatialPotential": -1.0})


def test_the_second_stage_starts_from_the_network_of_the_first(tmp_path: Path) -> None:
    first = build()
    path = tmp_path / "network.ckpt"
    run = trainer(tmp_path, max_epochs=1)
    run.fit(first, Streets())
    run.save_checkpoint(path)
    torch.manual_seed(5)
    second = build(head=crf, unary_checkpoint=str(path))
    for key, value in first.network.state_dict().items():
        assert torch.equal(second.network.state_dict()[key], value)
    again = SegmentationModule.load_from_checkpoint(path, network=TinyNetwork, weights_only=True)
    assert torch.equal(again.network.last.weight, first.network.last.weight)
    assert again.class_names == first.class_names


@pytest.mark.parametrize("loss", ["CrossEntropyLoss", "DiceLoss", "JaccardLoss", "FocalLoss", "LovaszLoss"])
@pytest.mark.parametrize("head", [None, crf])
def test_every_loss_trains(loss: str, head: Any, tmp_path: Path) -> None:
    module = build(head=head, loss=loss)
    before = module.network.last.weight.detach().clone()  # type: ignore[union-attr,operator]
    trainer(tmp_path, max_epochs=1, detect_anomaly=True).fit(module, Streets())
    assert torch.isfinite(module.network.last.weight).all()  # type: ignore[union-attr,arg-type]
    assert not torch.equal(module.network.last.weight, before)  # type: ignore[union-attr,arg-type]


def test_the_evaluation_solver_acts_in_evaluation_only() -> None:
    module = build(head=crf, eval_solver=MeanField(iterations=2))
    image = torch.randint(256, (1, 3, 16, 20), dtype=torch.uint8)
    assert module.solver is module.head.solver  # type: ignore[union-attr]
    module.eval()
    with torch.no_grad():
        logits, q = module(image)
        energy = module.head.energy(logits, image)  # type: ignore[operator,union-attr]
        assert torch.allclose(q, MeanField(iterations=2)(energy, logits.softmax(1)), atol=1e-6)


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="is for a module with a head"):
        build(freeze_network_epochs=1)
    with pytest.raises(ValueError, match="is for a module with a CRF as its head"):
        build(head=AddBrightness, eval_solver=MeanField())
    with pytest.raises(ValueError, match="eval_solver is never trained"):
        build(head=crf, eval_solver=MeanField(learn_step_size=True))


def test_panels_show_each_step(tmp_path: Path) -> None:
    module = build(head=crf)
    module.trainer = trainer(tmp_path)
    sample = Streets().dataset("val", [])[0]
    row = _panel_row(module.eval(), sample["image"], sample["mask"])
    assert list(row) == ["image", "truth", "network", *(f"$q^{{{t}}}$" for t in range(1, 6)), "result"]
    assert set(np.unique(row["truth"][3:5])) == {90, 165}  # ignored pixels are grey stripes
    assert np.abs(row["$q^{1}$"] - row["$q^{5}$"]).max() > 0
