"""Tiles give what the whole image gives: exactly where they can, closely elsewhere."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from crfgrad import CRF, BilateralPotential, MeanField, ProjectedGradient, SpatialPotential
from datamodules.street_scene import street_scene
from lightning_modules import SegmentationModule, SMPNetwork, Tiling
from tests.command_line import streets


@pytest.mark.parametrize("length", [1, 7, 16, 17, 40, 41])
@pytest.mark.parametrize(("size", "margin"), [(16, 0), (16, 3), (16, 7)])
def test_each_pixel_is_kept_once_and_inside_its_margin(length: int, size: int, margin: int) -> None:
    kept = []
    for start, stop, first, last in Tiling(size, margin).spans(length):
        assert 0 < stop - start <= size
        assert first - start >= margin or start == 0
        assert stop - last >= margin or stop == length
        kept += range(first, last)
    assert kept == list(range(length))


def test_a_network_within_its_margin_is_exact() -> None:
    layers = [
        nn.Conv2d(3, 4, 5, padding=2),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 3, padding=1),
        nn.Upsample(scale_factor=2),
    ]
    network = nn.Sequential(*layers)  # reaches 2 + 2 * 1 pixels, and up to one more within a cell of the pooling
    image = torch.rand(2, 3, 50, 70)
    with torch.no_grad():
        whole = network(image)
        assert torch.allclose(Tiling(24, 6)(network, image), whole, atol=1e-6)
        assert not torch.allclose(Tiling(24, 2)(network, image), whole, atol=1e-4)


@pytest.mark.parametrize("solver", [ProjectedGradient(), MeanField()])
def test_a_spatial_crf_within_its_margin_is_exact(solver: nn.Module) -> None:
    crf = CRF(3, [SpatialPotential(3, radius=2)], solver).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        crf.potentials[0].filters.normal_(std=7.2)  # type: ignore[union-attr,operator]
        logits, image = torch.randn(1, 3, 60, 80), torch.zeros(1, 3, 60, 80)
        whole = crf(logits, image)
        assert torch.allclose(Tiling(40, 10)(crf, logits, image), whole, atol=1e-5)
        assert not torch.allclose(Tiling(40, 4)(crf, logits, image), whole, atol=1e-3)


def test_a_bilateral_crf_is_close() -> None:
    image, labels = street_scene(0, 120, 160)
    scene = torch.from_numpy(image).movedim(-1, 0)[None].float()
    truth = torch.from_numpy(labels).long()
    logits = 2 * nn.functional.one_hot(truth.clamp_max(5), 6).movedim(-1, 0)[None] + torch.randn(1, 6, 120, 160)
    crf = CRF(6, [BilateralPotential(6, sigma_xy=15.0)]).eval()
    with torch.no_grad():
        whole = crf(logits, scene).argmax(1)
        agreement = {margin: _agreement(whole, Tiling(100, margin)(crf, logits, scene)) for margin in (0, 40)}
    assert agreement[40] > 0.99
    assert agreement[40] > agreement[0]


def _agreement(labels: Tensor, q: Tensor) -> float:
    return (labels == q.argmax(1)).float().mean().item()


def test_an_image_of_one_tile_is_left_alone() -> None:
    network = SMPNetwork(num_classes=3).eval()
    image = torch.randint(256, (1, 3, 45, 70), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.equal(Tiling(96, 32)(network, image), network(image))


def test_memory_is_that_of_a_tile() -> None:
    seen = []

    def function(image: Tensor) -> Tensor:
        seen.append(tuple(image.shape[2:]))
        return image

    image = torch.rand(1, 2, 100, 230)
    assert torch.equal(Tiling(32, 8)(function, image), image)
    assert all(max(size) <= 32 for size in seen)


def test_a_module_evaluates_in_tiles() -> None:
    options = {"network": SMPNetwork, "head": lambda classes: CRF(classes, [SpatialPotential(classes)])}
    module = SegmentationModule(3, **options, tiling=Tiling(64, 16), head_tiling=Tiling(64, 24)).eval()
    image = torch.randint(256, (1, 3, 100, 130), dtype=torch.uint8)
    with torch.no_grad():
        logits, q = module(image)
        module.tiling = module.head_tiling = None
        whole_logits, _ = module(image)
        assert torch.allclose(q, module.head(logits, image), atol=1e-5)  # type: ignore[misc]
        assert not torch.equal(logits, whole_logits)
        module.tiling = Tiling(64, 16)
        assert module.train()(image)[0].shape == logits.shape  # training is never tiled


def test_by_the_command_line(tmp_path: Path) -> None:
    tiles = ["--model.init_args.tiling=Tiling", "--model.init_args.tiling.init_args.size=32"]
    tiles += ["--model.init_args.tiling.init_args.margin=4"]
    metrics = streets("test", tmp_path, *tiles, "--untrained=true").trainer.callback_metrics
    assert 0 <= metrics["test/miou"] <= 1


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="tiles of size 64 have nothing inside a margin of 32"):
        Tiling(64, 32)
    with pytest.raises(ValueError, match="head_tiling is for a module with a head"):
        SegmentationModule(3, network=SMPNetwork, head_tiling=Tiling())
