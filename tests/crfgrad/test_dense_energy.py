"""The dense CRF's energy as a loss: against sums over all pairs, the established loss, and what people complain of."""

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.nn.functional import avg_pool2d
from torch.nn.parallel import DistributedDataParallel

from crfgrad import DenseEnergyLoss, PermutohedralLattice
from experiments.scene import make_logits, make_scene
from tests.crfgrad.oracles import operator_matrix
from tests.recorded import make_dense_energy as recorded


def inputs(height: int = 12, width: int = 16) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, probabilities, regions and labels of two pictures, in float64."""
    scenes = [make_scene(height, width, seed=seed) for seed in (0, 1)]
    images = torch.stack([image for image, _ in scenes]).double().round()
    probs = torch.stack([make_logits(labels, stride=4) for _, labels in scenes]).double().softmax(1)
    rois = torch.ones(2, height, width, dtype=torch.float64)
    rois[0, :, -5:] = 0
    labels = torch.stack([labels for _, labels in scenes])[:, None]
    known = torch.rand(labels.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    return images, probs, rois, torch.where(known, labels, 255)


def kernel_matrix(image: Tensor, widths: tuple[float, ...], exact: bool) -> Tensor:
    """The kernel of one image (3, h, w) over all pairs of pixels, exact or raw as on the lattice: (N, N)."""
    y, x = torch.meshgrid(*(torch.arange(size, dtype=image.dtype) for size in image.shape[1:]), indexing="ij")
    features = torch.cat([torch.stack([x, y]), image])[: len(widths)] / image.new_tensor(widths)[:, None, None]
    if exact:
        rows = features.flatten(1).T
        return (-((rows[:, None] - rows) ** 2).sum(-1) / 2).exp()
    size = features[0].numel()
    columns = torch.eye(size, dtype=image.dtype).reshape(1, size, *image.shape[1:])
    dimension = len(widths)
    return (
        2 ** (dimension + 1)
        / (1 + 2.0**-dimension)
        * (PermutohedralLattice(features[None]).gaussian(columns).reshape(size, size).T)
    )


def halved(images: Tensor, probs: Tensor, rois: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """What the loss sees at half the size: every second pixel, and means of four probabilities."""
    return images[..., ::2, ::2], avg_pool2d(probs, 2), rois[:, ::2, ::2], labels[:, 0, ::2, ::2]


def over_all_pairs(
    images: Tensor, probs: Tensor, rois: Tensor, labels: Tensor, matrices: list[Tensor], offset: bool = False
) -> Tensor:
    """The energy of each image, summed over pairs of pixels; the gate is held."""
    energies = []
    for p, roi, label, matrix in zip(probs, rois, labels, matrices, strict=True):
        gate = torch.where(label == 255, 1, (roi - p.detach().amax(0)).clamp_min(0)).flatten()
        fields = (p * roi).flatten(1)  # (L, N)
        agreement = torch.einsum("li,lj->ij", fields, fields)
        if offset:
            agreement = agreement - torch.outer(roi.flatten(), roi.flatten())
        energies.append(-(gate[:, None] * matrix * agreement).sum())
    return torch.stack(energies)


def gradient(value: Tensor, leaf: Tensor) -> Tensor:
    return torch.autograd.grad(value.sum(), leaf)[0]


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("gate", ["established", "exact"])
def test_value_and_gradient_over_all_pairs_of_the_lattice(gate: Any, offset: bool) -> None:
    images, probs, rois, labels = inputs()
    probs.requires_grad_()
    small = halved(images, probs, rois, labels)
    matrices = [kernel_matrix(image, (10, 10, 30, 30, 30), exact=False) for image in small[0]]
    loss = DenseEnergyLoss(0.3, 30, 20, gate=gate, offset=offset)(images, probs, rois, labels)
    assert loss.shape == (1,)
    expected = 0.3 * over_all_pairs(*small, matrices, offset=offset).sum() / 2  # type: ignore[call-arg,misc,arg-type]
    assert torch.allclose(loss, expected[None], rtol=1e-10)
    if gate == "established":
        received = []
        for p, roi, label, matrix in zip(*small[1:], matrices, strict=True):
            held = torch.where(label == 255, 1, (roi - p.detach().amax(0)).clamp_min(0))
            received.append(roi * held * ((p * roi).flatten(1) @ matrix.T).view_as(p))
        wanted = gradient((small[1] * -0.3 * torch.stack(received).detach()).sum(), probs)  # 2 / B is 1
    else:
        wanted = gradient(expected, probs)
    assert wanted.abs().max() > 0
    assert torch.allclose(gradient(loss, probs), wanted, atol=1e-10 * float(wanted.abs().max()))
    if offset:
        assert float(loss.detach()) >= 0


def test_is_the_established_loss() -> None:
    """Value and gradient of the recorded one: 2e-7 and 6e-7 (of the largest) apart, on one machine."""
    images, probs, rois, labels = recorded.inputs()
    theirs = np.load(recorded.FILE)
    probs.requires_grad_()
    loss = DenseEnergyLoss(recorded.WEIGHT, recorded.SIGMA_RGB, recorded.SIGMA_XY, recorded.SCALE)
    value = loss(images, probs, rois, labels)
    assert value.shape == (1,)
    assert float(value.detach()) == pytest.approx(float(theirs["value"]), rel=1e-5)
    expected = torch.from_numpy(theirs["gradient"])
    assert (gradient(value, probs) - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize(("normalization", "low", "high"), [("none", 0.5, 0.6), ("symmetric", 0.97, 1.03)])
def test_the_lattice_beside_the_exact_kernel(normalization: Any, low: float, high: float) -> None:
    """How far the lattice is from the exact Gaussian, as a share of value and gradient (pytest -s prints it)."""
    images, probs, rois, labels = inputs(48, 64)
    probs.requires_grad_()
    small = halved(images, probs, torch.ones_like(rois), torch.full_like(labels, 255))
    matrices = [kernel_matrix(image, (10, 10, 15, 15, 15), exact=True) for image in small[0]]
    if normalization == "symmetric":
        matrices = [matrix / (matrix.sum(0) * matrix.sum(1)[:, None]).sqrt() for matrix in matrices]
    expected = over_all_pairs(*small, matrices).sum() / 2  # type: ignore[call-arg,misc,arg-type]
    loss = DenseEnergyLoss(1.0, 15, 20, normalization=normalization)(images, probs)
    of_value = float((loss / expected).detach())
    ours, theirs = gradient(loss, probs).flatten(), gradient(expected, probs).flatten()
    factor = float(ours @ theirs / (theirs @ theirs))
    angle = math.degrees(math.acos(float(ours @ theirs / ours.norm() / theirs.norm())))
    print(f"{normalization}: value {of_value:.3f}, gradient {factor:.3f} of the exact one, {angle:.1f} degrees apart")
    assert low < of_value < high
    assert low < factor < high
    assert angle < 6


def test_gradcheck_with_the_gate_held() -> None:
    images, probs, _, labels = inputs(4, 6)
    rois = torch.where(labels[:, 0] == 255, 1.0, 0.2).double()  # the gate of known pixels is 0, whatever their label
    loss = DenseEnergyLoss(1.0, 40, 8, gate="exact", normalization="symmetric", reduction="pixel")
    assert gradcheck(lambda p: loss(images, p, rois, labels), probs.requires_grad_())


def test_several_kernels_without_own_part_and_at_full_size() -> None:
    images, probs, rois, labels = inputs(5, 6)
    kernels: list[Any] = [{"weight": 0.7, "xy": (3, 4), "rgb": 30}, {"weight": 2.0, "xy": 2}, {"weight": 0.1, "rgb": 9}]
    widths = [(3, 4, 30, 30, 30), (2, 2)]
    matrices = []
    for image in images:
        parts = [0.7 * kernel_matrix(image, widths[0], exact=False), 2 * kernel_matrix(image, widths[1], exact=False)]
        parts += [0.1 * colours_alone(image, 9)]
        matrices.append(sum(parts) - torch.diag(sum(part.diagonal() for part in parts)))  # type: ignore[arg-type]
    expected = over_all_pairs(images, probs, rois, labels[:, 0], matrices, offset=True).sum() / rois.sum()
    loss = DenseEnergyLoss(
        2.0, scale_factor=1, kernels=kernels, exclude_self=True, reduction="pixel", offset=True, gate="exact"
    )
    value = loss(images, probs, rois, labels)
    assert value.shape == ()
    assert torch.allclose(value, 2 * expected, rtol=1e-10)


def colours_alone(image: Tensor, width: float) -> Tensor:
    size = image[0].numel()
    columns = torch.eye(size, dtype=image.dtype).reshape(1, size, *image.shape[1:])
    lattice = PermutohedralLattice(image[None] / width)
    return 16 / (1 + 1 / 8) * lattice.gaussian(columns).reshape(size, size).T


@pytest.mark.parametrize("normalization", ["none", "before", "after", "symmetric"])
def test_nothing_comes_from_a_pixel_to_itself(normalization: Any) -> None:
    image = 255 * torch.rand(1, 3, 4, 6, dtype=torch.float64)
    for widths in ({"rgb": 20, "xy": 2}, {"rgb": 200, "xy": 9}, {"xy": 1.5}):
        loss = DenseEnergyLoss(kernels=[{"weight": 1.5, **widths}], normalization=normalization, exclude_self=True)
        operator = loss.operator(image)
        matrix = operator_matrix(operator, (1, 4, 6))[:, 0, :, 0]
        with_self = DenseEnergyLoss(kernels=loss.kernels, normalization=normalization).operator(image)
        others = operator_matrix(with_self, (1, 4, 6))[:, 0, :, 0]
        assert operator.excludes_self
        assert others.diagonal().min() > 0.01
        assert torch.allclose(matrix, others - torch.diag(others.diagonal()), atol=1e-12)
        back = operator_matrix(operator.transpose(), (1, 4, 6))[:, 0, :, 0]
        assert torch.allclose(back, matrix.T, atol=1e-12)


def test_a_weight_per_pixel_serves_all_sizes_and_batches() -> None:
    loss = DenseEnergyLoss(0.5, normalization="symmetric", reduction="pixel")
    values = {}
    for height, width in ((64, 96), (128, 192)):
        image, labels = make_scene(height, width)
        probs = make_logits(labels).softmax(0)[None]
        values[height] = float(loss(image[None], probs))
        batch = loss(image.expand(3, -1, -1, -1), probs.expand(3, -1, -1, -1))
        assert float(batch) == pytest.approx(values[height], rel=1e-5)
        rois = torch.zeros(3, height, width)
        rois[1] = 1  # the others do not count
        assert float(loss(image.expand(3, -1, -1, -1), probs.expand(3, -1, -1, -1), rois)) == pytest.approx(
            values[height], rel=1e-5
        )
    assert values[64] == pytest.approx(values[128], rel=0.1)
    assert -0.55 < values[64] < 0


def test_inputs_are_never_changed() -> None:
    given = [torch.randint(256, (2, 3, 9, 11)).float(), torch.rand(2, 2, 9, 11), torch.ones(2, 9, 11)]
    given += [torch.full((2, 1, 9, 11), 255, dtype=torch.uint8)]
    for scale in (0.5, 1.0):
        before = [each.clone() for each in given]
        DenseEnergyLoss(scale_factor=scale)(*given)
        for each, copy in zip(given, before, strict=True):
            assert torch.equal(each, copy)
            assert each.shape == copy.shape


@pytest.mark.parametrize("size", [(13, 17), (2, 3), (31, 2)])
@pytest.mark.parametrize("labels", [1, 2, 5])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_odd_sizes_and_any_number_of_labels_and_channels(size: tuple[int, int], labels: int, channels: int) -> None:
    images = torch.randint(256, (2, channels, *size), dtype=torch.uint8)
    probs = torch.randn(2, labels, *size).softmax(1).requires_grad_()
    rois = torch.ones(2, *size, dtype=torch.bool)
    value = DenseEnergyLoss(1.0)(images, probs, rois, torch.full((2, 1, *size), 255))
    value.sum().backward()
    assert float(value.detach()) < 0
    assert probs.grad is not None
    assert probs.grad.abs().max() > 0


@pytest.mark.parametrize("reduction", ["batch", "pixel"])
@pytest.mark.parametrize("gate", ["established", "exact"])
def test_an_empty_region_gives_nothing(reduction: Any, gate: Any) -> None:
    images, probs, rois, labels = inputs()
    probs.requires_grad_()
    loss = DenseEnergyLoss(1.0, reduction=reduction, gate=gate, offset=True, normalization="symmetric")
    value = loss(images, probs, torch.zeros_like(rois), labels)
    value.sum().backward()
    assert float(value.detach().sum()) == 0
    assert probs.grad is not None
    assert not probs.grad.any()


@pytest.mark.parametrize("gate", ["established", "exact"])
def test_certain_probabilities_have_a_gradient(gate: Any) -> None:
    images, _, rois, labels = inputs()
    probs = torch.zeros(2, 4, 12, 16).index_fill_(1, torch.tensor([2]), 1).requires_grad_()
    loss = DenseEnergyLoss(1.0, gate=gate, offset=True, normalization="symmetric", reduction="pixel")
    value = loss(images, probs, rois, torch.full_like(labels, 255))
    value.sum().backward()
    assert abs(float(value.detach())) < 1e-6  # all agree
    assert probs.grad is not None
    assert torch.isfinite(probs.grad).all()
    assert probs.grad.abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    images, probs, rois, labels = inputs(32, 48)
    half = probs.to(dtype).requires_grad_()
    full = half.detach().float().requires_grad_()
    loss = DenseEnergyLoss(1.0, reduction="pixel", normalization="symmetric")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(images.to(dtype), half, rois.to(dtype), labels)
    expected = loss(images.float(), full, rois.float(), labels)
    assert value.dtype == torch.float32
    assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    value.backward()
    expected.backward()
    assert half.grad is not None
    assert full.grad is not None
    assert half.grad.dtype == dtype
    assert torch.allclose(half.grad.float(), full.grad, rtol=1e-2, atol=1e-6)


def test_nothing_known_is_a_gate_that_is_open() -> None:
    images, probs, rois, labels = inputs()
    open_gate = DenseEnergyLoss(1.0)(images, probs, rois)
    assert torch.equal(open_gate, DenseEnergyLoss(1.0)(images, probs, rois, torch.full_like(labels, 255)))
    closing = DenseEnergyLoss(1.0)(images, probs, rois, torch.zeros_like(labels))
    assert float(closing) > float(open_gate)


def network() -> nn.Module:
    torch.manual_seed(0)
    network = nn.Conv2d(3, 4, 3, padding=1)
    with torch.no_grad():
        network.weight *= 0.05  # for colours 0..255
    return network


def loss_of_a_share(model: nn.Module, images: Tensor, seg_label: Tensor) -> Tensor:
    value: Tensor = DenseEnergyLoss(1e-3)(images, model(images).softmax(1), None, seg_label)
    return value.sum()


def work_of_a_process(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    images, _, _, labels = inputs()
    model = DistributedDataParallel(network())
    loss_of_a_share(model, images[rank : rank + 1].float(), labels[rank : rank + 1]).backward()
    torch.save([parameter.grad for parameter in model.parameters()], Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["auto"], indirect=True)
def test_two_processes_find_the_gradient_of_one() -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work_of_a_process, args=(folder,), nprocs=2)
        first, second = (torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    model = network()
    images, _, _, labels = inputs()
    loss_of_a_share(model, images.float(), labels).backward()
    for ours, others, parameter in zip(first, second, model.parameters(), strict=True):
        assert torch.equal(ours, others)
        assert ours.abs().max() > 0
        assert torch.allclose(ours, parameter.grad, rtol=1e-4, atol=1e-7)


def test_trainings_repeat() -> None:
    images, probs, rois, labels = inputs(32, 48)
    probs.requires_grad_()
    first, again = (gradient(DenseEnergyLoss(1.0)(images, probs, rois, labels), probs) for _ in range(2))
    assert torch.equal(first, again)


def test_widths_of_numpy() -> None:
    images, probs, rois, labels = inputs()
    plain = DenseEnergyLoss(1.0, sigma_rgb=15, sigma_xy=10)(images, probs, rois, labels)
    theirs = DenseEnergyLoss(1.0, sigma_rgb=np.float32(15), sigma_xy=np.int64(10))(images, probs, rois, labels)  # type: ignore[arg-type]
    assert torch.equal(plain, theirs)


def test_bad_input_gets_one_clear_sentence() -> None:
    images, probs, rois, labels = inputs()
    loss = DenseEnergyLoss()
    with pytest.raises(ValueError, match=r"probs run from .* give softmax\(logits, dim=1\)"):
        loss(images, 100 * probs)
    with pytest.raises(ValueError, match="looks normalised"):
        loss(images / 255, probs)
    with pytest.raises(ValueError, match=r"rois has shape \(2, 1, 12, 16\), .* must be \(2, 12, 16\)"):
        loss(images, probs, rois[:, None])
    with pytest.raises(ValueError, match=r"seg_label has shape \(2, 12, 16\), .* must be \(2, 1, 12, 16\)"):
        loss(images, probs, rois, labels[:, 0])
    with pytest.raises(ValueError, match="probs are 12 x 16 but the image is 6 x 8"):
        loss(images[..., ::2, ::2], probs)
    with pytest.raises(ValueError, match="NaN or infinity in probs"):
        loss(images, probs.log().log())
    with pytest.raises(ValueError, match=r"scale_factor 0\.05 leaves nothing of 12 x 16"):
        DenseEnergyLoss(scale_factor=0.05)(images, probs)
    with pytest.raises(ValueError, match='there is no normalization "sum": use '):
        DenseEnergyLoss(normalization="sum")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='there is no reduction "mean": use batch, pixel'):
        DenseEnergyLoss(reduction="mean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a kernel has a weight, and widths of xy, rgb.* got {'weight': 1, 'sxy': 3}"):
        DenseEnergyLoss(kernels=[{"weight": 1, "sxy": 3}])
    with pytest.raises(ValueError, match=r"width 0\.1 of colours, which are 0\.\.255 here: give 25\.5 if you meant"):
        DenseEnergyLoss(sigma_rgb=0.1)
    with pytest.raises(ValueError, match="kernels is empty"):
        DenseEnergyLoss(kernels=[])
