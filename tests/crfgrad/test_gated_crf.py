"""The energy within a window: against a plain version that unfolds all windows, in both ways to call it."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import adaptive_avg_pool2d, interpolate, normalize, unfold

from crfgrad import GatedCRFLoss
from crfgrad.regularizers.window import WindowKernel, half_of_the_shifts, received, window_energy
from experiments.benchmark.measure import peak_memory
from experiments.scene import make_logits, make_scene


@pytest.fixture(autouse=True)
def backend() -> str:
    """In place of both backends: nothing here is on a lattice."""
    return "auto"


KERNELS: list[Any] = [{"weight": 0.9, "xy": 6, "rgb": 0.1}, {"weight": 0.1, "xy": 3}]


def windows(field: Tensor, radius: int) -> Tensor:
    """All windows of a field (N, C, H, W), with zeros beyond the border: (N, C, D * D, H, W)."""
    diameter = 2 * radius + 1
    return unfold(field, diameter, 1, radius).unflatten(1, (field.shape[1], -1)).unflatten(-1, field.shape[2:])


def unfolded(
    y: Tensor,
    kernels: list[Any],
    radius: int,
    sample: dict[str, Tensor],
    source: Tensor | None = None,
    destination: Tensor | None = None,
    compatibility: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss as its authors compute it, and the windows (N, 1, D * D, H, W) of its kernel."""
    count, labels, height, width = y.shape
    kernel: Any = 0
    for one in kernels:
        features = []
        for name in one:
            if name == "xy":
                rows, columns = torch.arange(height, dtype=y.dtype), torch.arange(width, dtype=y.dtype)
                grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"))
                features.append(grid.expand(count, -1, -1, -1) / one[name])
            elif name != "weight":
                features.append(adaptive_avg_pool2d(sample[name], (height, width)) / one[name])
        around = windows(torch.cat(features, 1), radius)
        middle = around.shape[2] // 2
        kernel = kernel + one["weight"] * (-0.5 * (around - around[:, :, middle, None]) ** 2).sum(1, True).exp()
    others = torch.ones(kernel.shape[2], dtype=y.dtype)
    others[middle] = 0
    kernel = kernel * others[:, None, None]
    pixels = torch.tensor(count * height * width, dtype=y.dtype)
    if source is not None:
        pixels, kernel = source.sum().clamp_min(1), kernel * windows(source, radius)
    if destination is not None:
        pixels, kernel = destination.sum().clamp_min(1), kernel * destination[:, :, None]
    message = (kernel * windows(y, radius)).sum(2)
    if compatibility is None:
        return (kernel.sum() - (message * y).sum()) / pixels, kernel
    cost = (labels - 1) * normalize(compatibility, p=1, dim=1)
    return torch.einsum("ab,nahw,nbhw->", cost, y, message) / pixels, kernel


def inputs(height: int = 17, width: int = 21, labels: int = 4) -> tuple[Tensor, Tensor]:
    scenes = [make_scene(height, width, seed=seed) for seed in (0, 1)]
    images = torch.stack([image for image, _ in scenes]).double().round()
    return images, torch.randn(2, labels, height, width, dtype=torch.float64).softmax(1).requires_grad_()


def gradient(value: Tensor, leaf: Tensor) -> Tensor:
    return torch.autograd.grad(value, leaf)[0]


MASKS = ["none", "source", "destination", "both"]


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("costs", [False, True])
@pytest.mark.parametrize("radius", [1, 5, 30])
def test_their_call_gives_what_unfolding_gives(radius: int, costs: bool, masks: str) -> None:
    images, y = inputs()
    sample = {"rgb": images / 255, "depth": torch.rand(2, 1, 17, 21, dtype=torch.float64)}
    kernels = [*KERNELS, {"weight": 0.3, "depth": 0.2, "xy": 4}]
    source = (torch.rand(2, 1, 17, 21) < 0.8).double() if masks in ("source", "both") else None
    destination = (torch.rand(2, 1, 17, 21) < 0.6).double() if masks in ("destination", "both") else None
    mu = torch.rand(4, 4, dtype=torch.float64) * (1 - torch.eye(4)) if costs else None
    expected, _ = unfolded(y, kernels, radius, sample, source, destination, mu)
    result = GatedCRFLoss()(y, kernels, radius, sample, 17, 21, source, destination, mu)
    assert list(result) == ["loss"]
    assert result["loss"].shape == ()
    assert torch.allclose(result["loss"], expected, rtol=1e-10)
    wanted = gradient(expected, y)
    assert wanted.abs().max() > 0
    assert torch.allclose(gradient(result["loss"], y), wanted, atol=1e-10 * float(wanted.abs().max()))


def test_their_call_with_a_prediction_of_lower_resolution_and_pictures_of_kernels() -> None:
    images, _ = inputs(24, 32)
    y = torch.randn(2, 3, 12, 16, dtype=torch.float64).softmax(1).requires_grad_()
    mask = torch.ones(2, 1, 24, 32, dtype=torch.float64)
    mask[:, :, :5] = 0
    mask[0, 0, 10, 10] = torch.nan
    small = adaptive_avg_pool2d(mask, (12, 16)).nan_to_num(0)
    small = (small >= 1).double()
    expected, kernel = unfolded(y, KERNELS, 2, {"rgb": images / 255}, small, small)
    before = mask.clone()
    result = GatedCRFLoss()(y, KERNELS, 2, {"rgb": images / 255}, 24, 32, mask, mask, out_kernels_vis=True)
    assert torch.equal(mask.nan_to_num(7), before.nan_to_num(7))
    assert torch.allclose(result["loss"], expected, rtol=1e-10)
    some = kernel.unflatten(2, (5, 5))[..., 2::5, 2::5].permute(0, 1, 4, 2, 5, 3).flatten(4).flatten(2, 3)
    picture = torch.zeros(2, 1, 12, 16, dtype=torch.float64)
    picture[..., : some.shape[2], : some.shape[3]] = some[..., :12, :16]
    assert torch.allclose(result["kernels_vis"], interpolate(picture, (24, 32)), atol=1e-12)
    nearest = {"rgb": lambda image, size: image[..., ::2, ::2]}
    other = GatedCRFLoss()(y, KERNELS, 2, {"rgb": images / 255}, 24, 32, custom_modality_downsamplers=nearest)
    assert torch.allclose(other["loss"], unfolded(y, KERNELS, 2, {"rgb": images[..., ::2, ::2] / 255})[0], rtol=1e-10)


def test_our_call_is_the_energy_of_pixels_without_a_label() -> None:
    images, y = inputs()
    rois = torch.ones(2, 17, 21, dtype=torch.float64)
    rois[0, :, :4] = 0
    labels = torch.where(torch.rand(2, 1, 17, 21) < 0.3, 1, 255)
    loss = GatedCRFLoss(KERNELS, radius=3, weight=0.2)
    value = loss(images, y, rois, labels)
    source, destination = rois[:, None], rois[:, None] * (labels == 255)
    expected = 0.2 * unfolded(y, KERNELS, 3, {"rgb": images / 255}, source, destination)[0]
    assert value.shape == ()
    assert torch.allclose(value, expected, rtol=1e-10)
    assert torch.allclose(gradient(value, y), gradient(expected, y), atol=1e-14)
    everywhere = torch.ones(2, 1, 17, 21, dtype=torch.float64)
    whole = 0.2 * unfolded(y, KERNELS, 3, {"rgb": images / 255}, everywhere)[0]
    assert torch.allclose(loss(images, y), whole, rtol=1e-10)


def test_gradcheck() -> None:
    images, _ = inputs(5, 6)
    y = torch.rand(2, 3, 5, 6, dtype=torch.float64).requires_grad_()
    labels = torch.where(torch.rand(2, 1, 5, 6) < 0.3, 1, 255)
    assert gradcheck(lambda p: GatedCRFLoss(KERNELS, radius=2)(images, p, None, labels), y)


def test_half_of_the_shifts_is_every_pair_once() -> None:
    pairs = set()
    pixels = torch.arange(4 * 5).view(1, 1, 4, 5)
    for here, there in half_of_the_shifts(4, 5, 3):
        for i, j in zip(pixels[here].flatten().tolist(), pixels[there].flatten().tolist(), strict=True):
            assert (i, j) not in pairs
            assert (j, i) not in pairs
            pairs.add((i, j))
    near = {(i, j) for i in range(20) for j in range(i) if max(abs(i // 5 - j // 5), abs(i % 5 - j % 5)) <= 3}
    assert len(pairs) == len(near)


def test_memory_does_not_grow_with_the_window() -> None:
    y = torch.rand(1, 8, 96, 96).requires_grad_()
    kernel = WindowKernel(1.0, torch.rand(1, 3, 96, 96))

    def step(radius: int) -> None:
        window_energy(y, [kernel], radius).backward()

    step(1)
    small, large = (peak_memory(lambda radius=radius: step(radius)) for radius in (1, 9))
    assert large < small + 2  # MB; all windows of this radius are 106 MB
    sums, total = received(y.detach(), [kernel], 9)
    assert sums.shape == y.shape
    assert total > 0


@pytest.mark.parametrize("size", [(3, 4), (1, 9), (13, 11)])
@pytest.mark.parametrize("labels", [1, 2])
@pytest.mark.parametrize("channels", [1, 4])
def test_odd_sizes_and_any_number_of_labels_and_channels(size: tuple[int, int], labels: int, channels: int) -> None:
    images = torch.randint(256, (2, channels, *size), dtype=torch.uint8)
    probs = (0.5 * torch.ones(2, labels, *size)).requires_grad_()
    value = GatedCRFLoss()(images, probs, torch.ones(2, *size), torch.full((2, 1, *size), 255))
    value.backward()
    assert float(value.detach()) > 0
    assert probs.grad is not None
    assert probs.grad.abs().max() > 0


def test_inputs_are_never_changed_and_empty_regions_give_nothing() -> None:
    given = [torch.randint(256, (2, 3, 9, 11)).float(), torch.rand(2, 2, 9, 11), torch.zeros(2, 9, 11)]
    given += [torch.full((2, 1, 9, 11), 255, dtype=torch.uint8)]
    before = [each.clone() for each in given]
    given[1].requires_grad_()
    value = GatedCRFLoss()(*given)
    assert float(value.detach()) == 0
    assert not gradient(value, given[1]).any()
    given[2] += 1
    assert float(GatedCRFLoss()(*given[:3], torch.zeros(2, 1, 9, 11)).detach()) == 0  # all is known
    given[2] -= 1
    for each, copy in zip(given, before, strict=True):
        assert torch.equal(each, copy)


def test_certain_probabilities_and_half_precision() -> None:
    image, labels = make_scene(24, 32)
    certain = torch.nn.functional.one_hot(labels, 4).movedim(-1, 0)[None].float().requires_grad_()
    value = GatedCRFLoss()(image[None], certain)
    assert torch.isfinite(gradient(value, certain)).all()
    agreed = torch.zeros(1, 4, 24, 32).index_fill_(1, torch.tensor([2]), 1)
    assert abs(float(GatedCRFLoss()(image[None], agreed))) < 1e-5
    probs = make_logits(labels).softmax(0)[None].half()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = GatedCRFLoss()(image[None].half(), probs.requires_grad_())
    assert half.dtype == torch.float32
    assert float(half.detach()) == pytest.approx(float(GatedCRFLoss()(image[None], probs.float()).detach()), rel=1e-3)
    assert gradient(half, probs).dtype == torch.float16


def test_widths_of_numpy() -> None:
    images, probs = inputs()
    plain, theirs = ([{"weight": 1.0, "xy": xy, "rgb": rgb}] for xy, rgb in ((6, 0.1), (np.int64(6), np.float32(0.1))))
    assert torch.allclose(GatedCRFLoss(plain)(images, probs), GatedCRFLoss(theirs)(images, probs))  # type: ignore[arg-type]


def test_bad_input_gets_one_clear_sentence() -> None:
    images, y = inputs()
    colours = {"rgb": images / 255}
    with pytest.raises(ValueError, match=r'sample\["rgb"\] runs from .* 0\.\.1: divide colours 0\.\.255 by 255'):
        GatedCRFLoss()(y, KERNELS, 5, {"rgb": images}, 17, 21)
    with pytest.raises(ValueError, match="looks normalised"):
        GatedCRFLoss()(images / 255, y)
    with pytest.raises(ValueError, match=r"widths of xy, rgb, such as .* got {'weight': 1, 'depth': 2}"):
        GatedCRFLoss()(y, [{"weight": 1, "depth": 2}], 5, colours, 17, 21)
    with pytest.raises(ValueError, match="the input is 34 x 21 and y_hat_softmax 17 x 21"):
        GatedCRFLoss()(y, KERNELS, 5, colours, 34, 21)
    with pytest.raises(ValueError, match=r"mask_src must be floating-point \(2, 1, H, W\), got torch.bool"):
        GatedCRFLoss()(y, KERNELS, 5, colours, 17, 21, torch.ones(2, 1, 17, 21, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"compatibility must be \(4, 4\) of costs"):
        GatedCRFLoss()(y, KERNELS, 5, colours, 17, 21, compatibility=torch.ones(4, 4))
    with pytest.raises(ValueError, match=r'sample\["rgb"\] is \(1, 3, 17, 21\) on cpu'):
        GatedCRFLoss()(y, KERNELS, 5, {"rgb": images[:1] / 255}, 17, 21)
    with pytest.raises(ValueError, match=r"width 15 of colours, which are 0\.\.1 here: give 0\.0588 if you meant"):
        GatedCRFLoss([{"weight": 1, "rgb": 15}])
    with pytest.raises(ValueError, match="radius must be a whole number, 1 or more, got 0"):
        GatedCRFLoss(radius=0)
