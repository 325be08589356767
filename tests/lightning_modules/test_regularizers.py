"""A loss without labels in training: on whom it acts, from when, where no label is known, and that it is logged."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from crfgrad import CRF, DenseEnergyLoss, EnergyLoss, GatedCRFLoss, SpatialPotential
from lightning_modules import Regularizer, SegmentationModule
from tests.lightning_modules.test_segmentation import Streets, TinyNetwork, build, crf, trainer


class Recorder(nn.Module):
    """Remembers what it is called with; its weight is 2, its result as that of DenseEnergyLoss."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def forward(self, *given: Any) -> Tensor:
        self.calls.append(given)
        probs: Tensor = given[1]
        return 2 * probs[:, :1].mean()[None]


def batch(ignore_index: int = 255) -> dict[str, Tensor]:
    mask = torch.randint(8, (2, 16, 20))
    mask[:, :, 5:] = ignore_index
    return {"image": torch.randint(256, (2, 3, 16, 20), dtype=torch.uint8), "mask": mask}


def step(module: SegmentationModule, given: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a training step, and what it logs."""
    logged: dict[str, Tensor] = {}
    module.log = lambda name, value, **_: logged.update({name: value})  # type: ignore[assignment,method-assign,misc]
    return module.train().training_step(given, 0), logged  # type: ignore[arg-type]


@pytest.mark.parametrize("on", ["network", "head"])
@pytest.mark.parametrize("ignore_index", [255, -1])
def test_it_is_added_and_logged(on: Any, ignore_index: int) -> None:
    recorder, given = Recorder(), batch(ignore_index)
    module = build(head=crf, regularizer=Regularizer(recorder, on), ignore_index=ignore_index)
    loss, logged = step(module, given)
    ((images, probs, rois, seg_label),) = recorder.calls
    assert torch.equal(images, given["image"])
    assert rois is None
    assert torch.equal(seg_label == 255, (given["mask"] == ignore_index)[:, None])
    assert torch.allclose(loss, logged["train/loss"] + logged["train/regularizer"])
    assert torch.allclose(logged["train/regularizer"], 2 * probs[:, 0].mean())
    inside = bool((probs >= 0).all())
    assert inside or on == "head"  # the leak of the projection
    loss.backward()


def test_labels_alone_come_first(tmp_path: Path) -> None:
    recorder = Recorder()
    module = build(regularizer=Regularizer(recorder, from_epoch=1))
    trainer(tmp_path, max_epochs=1).fit(module, Streets())
    assert not recorder.calls
    trainer(tmp_path, max_epochs=2).fit(module, Streets())
    assert len(recorder.calls) == 2  # two batches of three


LOSSES = [
    DenseEnergyLoss(1.0, normalization="symmetric", reduction="pixel"),
    EnergyLoss(CRF(8).potentials),  # type: ignore[arg-type]
    GatedCRFLoss(),
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize(("head", "on"), [(None, "network"), (crf, "network"), (crf, "head")])
def test_every_regularizer_trains(loss: nn.Module, head: Any, on: Any, tmp_path: Path) -> None:
    module = build(head=head, regularizer=Regularizer(loss, on))
    given = batch()
    given["mask"][:] = 255  # nothing but the regulariser can move the network
    ours = [parameter.detach().clone() for parameter in module.network.parameters()]
    value, logged = step(module, given)
    value.backward()
    assert float(logged["train/loss"].detach()) == 0
    assert torch.isfinite(value)
    for parameter, before in zip(module.network.parameters(), ours, strict=True):
        assert torch.equal(parameter, before)
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
    assert any(parameter.grad.abs().max() > 0 for parameter in module.network.parameters())  # type: ignore[union-attr]
    assert {parameter for parameter in loss.parameters() if parameter.requires_grad} == set()


def test_a_checkpoint_is_tested_without_the_regularizer(tmp_path: Path) -> None:
    teacher: Any = CRF(8).potentials
    module, path = build(regularizer=Regularizer(EnergyLoss(teacher))), tmp_path / "last.ckpt"
    run = trainer(tmp_path, max_epochs=1)
    run.fit(module, Streets())
    run.save_checkpoint(path)
    without, other = build(), build(regularizer=Regularizer(EnergyLoss([SpatialPotential(8)])))
    for tested in (without, other):
        trainer(tmp_path).test(tested, Streets(), ckpt_path=path, weights_only=True, verbose=False)
        for key, value in tested.network.state_dict().items():
            assert torch.equal(value, module.network.state_dict()[key]), key
    loaded = SegmentationModule.load_from_checkpoint(path, network=TinyNetwork, weights_only=True)
    assert loaded.regularizer is None
    resumed = build(regularizer=Regularizer(EnergyLoss(teacher)))
    run = trainer(tmp_path, max_epochs=2)
    run.fit(resumed, Streets(), ckpt_path=path, weights_only=True)
    assert run.current_epoch == 2
    for key, value in resumed.state_dict().items():
        assert not key.startswith("regularizer.") or torch.equal(value, module.state_dict()[key]), key


def test_settings_that_cannot_be() -> None:
    for loss in (DenseEnergyLoss(ignore_index=-1), GatedCRFLoss(ignore_index=-1)):
        with pytest.raises(ValueError, match="has ignore_index -1, but is called with 255 where no label is known"):
            Regularizer(loss)
    with pytest.raises(ValueError, match="a regularizer on the head is for a module with a head"):
        build(regularizer=Regularizer(DenseEnergyLoss(), "head"))
    with pytest.raises(ValueError, match='is on the "network" or the "head", not on "both"'):
        Regularizer(DenseEnergyLoss(), "both")  # type: ignore[arg-type]
