"""Networks take images of any size and give logits of that size."""

import math

import pytest
import segmentation_models_pytorch as smp
import torch
from torch.nn.functional import interpolate

from lightning_modules import SMPNetwork
from lightning_modules.architectures import ARCHITECTURES, FCN8s, LRR4x
from lightning_modules.architectures.lrr4x import Reconstruction, boundary_mask, cosine_basis
from lightning_modules.architectures.upsampling import bilinear_kernel, bilinear_upsampling

SMP_ARCHITECTURES = ["unet", "unetplusplus", "fpn", "deeplabv3plus", "pspnet", "linknet", "segformer"]


@pytest.mark.parametrize("arch", [*SMP_ARCHITECTURES, *ARCHITECTURES])
@pytest.mark.parametrize("size", [(64, 96), (45, 70)])
def test_any_architecture_takes_any_size(arch: str, size: tuple[int, int]) -> None:
    network = SMPNetwork(num_classes=5, arch=arch, encoder_name="resnet18").eval()
    image = torch.randint(256, (2, 3, *size), dtype=torch.uint8)
    normalised = (image - network.mean) / network.std
    padded = torch.zeros(2, 3, 64, 96)
    padded[:, :, : size[0], : size[1]] = normalised
    logits = network(image)
    assert logits.shape == (2, 5, *size)
    assert torch.allclose(logits, network.model(padded)[:, :, : size[0], : size[1]], atol=1e-4)  # another layout


@pytest.mark.parametrize(
    "encoder_name", ["vgg16_bn", "vgg16", "mit_b0", "tu-tf_efficientnet_lite0", "tu-convnext_atto"]
)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_networks_of_the_paper_on_any_encoder(arch: str, encoder_name: str) -> None:
    network = SMPNetwork(num_classes=3, arch=arch, encoder_name=encoder_name).eval()
    with torch.no_grad():
        assert network(torch.zeros(1, 3, 40, 50)).shape == (1, 3, 40, 50)


def test_an_encoder_of_timm() -> None:
    network = SMPNetwork(num_classes=3, arch="fpn", encoder_name="tu-tf_efficientnet_lite0").eval()
    assert network(torch.zeros(1, 3, 40, 50)).shape == (1, 3, 40, 50)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("encoder_name", ["resnet18", "tu-tf_efficientnet_lite0"])
def test_gradients_reach_all_parameters(arch: str, encoder_name: str) -> None:
    network = SMPNetwork(num_classes=3, arch=arch, encoder_name=encoder_name)
    logits = network(torch.randint(256, (2, 3, 64, 96)))
    torch.nn.functional.cross_entropy(logits, torch.randint(3, (2, 64, 96))).backward()
    without = [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_network_of_the_paper_learns(arch: str) -> None:
    network = SMPNetwork(num_classes=2, arch=arch, encoder_name="resnet18")
    mask = torch.zeros(2, 64, 64, dtype=torch.int64)
    mask[0, 10:50, 20:40] = mask[1, 30:60, 5:55] = 1
    image = 40 + 160 * mask[:, None].expand(-1, 3, -1, -1) + 20 * torch.randn(2, 3, 64, 64)
    optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
    losses = []
    for _ in range(12):
        loss = torch.nn.functional.cross_entropy(network(image), mask)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[0] < 1.5 * math.log(2)  # it starts undecided
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_upsampling_starts_as_bilinear_interpolation(factor: int) -> None:
    ramp = 3 * torch.arange(6.0)[:, None] - 2 * torch.arange(8.0)
    x = torch.stack([ramp, torch.randn(6, 8)])[None]
    result = bilinear_upsampling(2, factor)(x)
    assert torch.allclose(result, interpolate(x, scale_factor=factor, mode="bilinear"), atol=1e-5)
    rows = (torch.arange(6.0 * factor) + 0.5) / factor - 0.5
    columns = (torch.arange(8.0 * factor) + 0.5) / factor - 0.5
    exact = 3 * rows[:, None] - 2 * columns
    inside = slice(factor, -factor)
    assert torch.allclose(result[0, 0, inside, inside], exact[inside, inside], atol=1e-5)


def test_fcn8s_starts_as_interpolated_coarse_scores() -> None:
    model = FCN8s("resnet18", classes=3).eval()
    image = torch.randn(1, 3, 64, 96)
    scores = model.decoder.coarse(model.encoder(image)[-1])
    for factor in (2, 2, 8):
        scores = interpolate(scores, scale_factor=factor, mode="bilinear")
    assert scores.std() > 0.01
    assert torch.allclose(model(image), scores, atol=1e-5)


def test_fcn8s_adds_the_scores_of_each_stride() -> None:
    model = FCN8s("resnet18", classes=2).eval()
    image = torch.randn(1, 3, 64, 64)
    before = model(image)
    for skip in model.decoder.skips:
        skip.bias.data[0] = 1
        after = model(image)
        assert torch.allclose(after - before, torch.tensor([1.0, 0.0])[None, :, None, None], atol=1e-5)
        before = after


def test_the_boundary_mask_is_the_range_of_probabilities_in_a_window() -> None:
    scores = 3 * torch.randn(1, 3, 12, 15)
    p = scores.softmax(dim=1)
    mask = boundary_mask(scores)
    for i, j in ((0, 0), (5, 7), (11, 3)):
        window = p[0, :, max(i - 4, 0) : i + 5, max(j - 4, 0) : j + 5].flatten(1)
        assert torch.allclose(mask[0, :, i, j], window.amax(1) - window.amin(1), atol=1e-6)


def test_lrr4x_leaves_regions_that_are_certain_alone() -> None:
    model = LRR4x("resnet18", classes=2).eval()
    image = torch.randn(1, 3, 64, 64)
    coarse, *finer = model.decoder.levels
    coarse.coefficients.bias.data[0] = 1e3  # of the bilinear function of the first class: certain everywhere
    for level in finer:
        level.coefficients.weight.data *= 50
    expected = coarse(model.encoder(image)[-1])
    for _ in finer:
        expected = interpolate(expected, scale_factor=2, mode="bilinear")
    assert torch.allclose(model(image), expected, rtol=1e-5, atol=1e-3)


def test_lrr4x_refines_where_it_is_uncertain() -> None:
    model = LRR4x("resnet18", classes=2).eval()
    image = torch.randn(1, 3, 64, 64)
    before = model(image)
    model.decoder.levels[-1].coefficients.bias.data[0] += 5
    assert not torch.allclose(model(image), before, atol=1e-2)


def test_a_class_is_reconstructed_from_its_own_basis() -> None:
    level = Reconstruction(channels=4, classes=3)
    feature = torch.randn(1, 4, 5, 6)
    before = level(feature)
    level.basis.weight.data[10:20] *= 2  # of the second class
    after = level(feature)
    assert before.shape == (1, 3, 20, 24)
    assert torch.allclose(after[:, 1], 2 * before[:, 1], atol=1e-5)
    assert torch.equal(after[:, [0, 2]], before[:, [0, 2]])


def test_basis_functions_are_independent_and_start_with_the_bilinear_one() -> None:
    basis = cosine_basis(10, 4)
    assert torch.allclose(basis[0], bilinear_kernel(4))
    assert torch.linalg.matrix_rank(basis.flatten(1)) == 10


@pytest.mark.parametrize("arch", ["fpn", *ARCHITECTURES])
def test_the_options_of_smp_work(arch: str) -> None:
    network = SMPNetwork(2, arch=arch, options={"aux_params": {"classes": 7}, "activation": "sigmoid"}).eval()
    masks, labels = network.model(torch.randn(2, 3, 32, 32))
    assert masks.shape == (2, 2, 32, 32)
    assert masks.min() >= 0
    assert masks.max() <= 1
    assert labels.shape == (2, 7)


@pytest.mark.parametrize("arch", ["unet", *ARCHITECTURES])
@pytest.mark.parametrize("encoder_name", ["resnet18", "tu-tf_efficientnet_lite0"])
def test_any_number_of_channels(arch: str, encoder_name: str) -> None:
    network = SMPNetwork(2, arch, encoder_name, mean=[0.5] * 4, std=[0.2] * 4).eval()
    assert network(torch.zeros(1, 4, 32, 40)).shape == (1, 2, 32, 40)


def test_the_image_is_normalised_inside() -> None:
    network = SMPNetwork(num_classes=2, arch="unet", mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)).eval()
    image = torch.randint(256, (1, 3, 32, 32), dtype=torch.uint8)
    expected = network.model((image / 255 - 0.5) / 0.25)
    assert torch.allclose(network(image), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"arch": "fcn9s"}, "arch fcn9s is unknown: choose one of fcn8s, lrr4x, unet"),
        ({"encoder_name": "resnet19"}, r"encoder_name resnet19 is unknown \(close to it: resnet18"),
        ({"encoder_name": "tu-resnet19"}, r"encoder_name tu-resnet19 is unknown \(close to it: tu-resnet18"),
        ({"mean": [0.5]}, "one value for each channel"),
        ({"arch": "fcn8s", "options": {"encoder_depth": 4}}, "needs features at strides 8, 16, 32.* has none at 32"),
        ({"arch": "lrr4x", "options": {"output_stride": 8}}, "has none at 16, 32"),
        ({"arch": "fcn8s", "encoder_name": "tu-vit_tiny_patch16_224"}, "fcn8s needs features at strides 8, 16, 32"),
        ({"arch": "unet", "encoder_name": "tu-vit_tiny_patch16_224"}, "unet cannot be built on the encoder tu-vit"),
    ],
)
def test_what_cannot_be_built_is_refused_in_a_sentence(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        SMPNetwork(num_classes=2, **settings)
    assert len(str(refusal.value).splitlines()) == 1
    assert refusal.value.__cause__ is None  # the command line shows the first cause


def test_nothing_is_downloaded_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {}

    def create(arch: str, encoder_name: str, encoder_weights: str | None, **options: object) -> torch.nn.Module:
        given["weights"] = encoder_weights
        return torch.nn.Identity()

    monkeypatch.setattr(smp, "create_model", create)
    SMPNetwork(num_classes=2)
    assert given == {"weights": None}
