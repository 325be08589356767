"""Networks take images of any size and give logits of that size."""

import pytest
import segmentation_models_pytorch as smp
import torch

from lightning_modules import SMPNetwork


@pytest.mark.parametrize("arch", ["unet", "unetplusplus", "fpn", "deeplabv3plus", "pspnet", "linknet", "segformer"])
@pytest.mark.parametrize("size", [(64, 96), (45, 70)])
def test_any_architecture_takes_any_size(arch: str, size: tuple[int, int]) -> None:
    network = SMPNetwork(num_classes=5, arch=arch, encoder_name="resnet18").eval()
    image = torch.randint(256, (2, 3, *size), dtype=torch.uint8)
    normalised = (image - network.mean) / network.std
    padded = torch.zeros(2, 3, 64, 96)
    padded[:, :, : size[0], : size[1]] = normalised
    logits = network(image)
    assert logits.shape == (2, 5, *size)
    assert torch.allclose(logits, network.model(padded)[:, :, : size[0], : size[1]], atol=1e-5)


def test_an_encoder_of_timm() -> None:
    network = SMPNetwork(num_classes=3, arch="fpn", encoder_name="tu-tf_efficientnet_lite0").eval()
    assert network(torch.zeros(1, 3, 40, 50)).shape == (1, 3, 40, 50)


def test_the_image_is_normalised_inside() -> None:
    network = SMPNetwork(num_classes=2, arch="unet", mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)).eval()
    image = torch.randint(256, (1, 3, 32, 32), dtype=torch.uint8)
    expected = network.model((image / 255 - 0.5) / 0.25)
    assert torch.allclose(network(image), expected, atol=1e-5)


def test_nothing_is_downloaded_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {}

    def create(arch: str, encoder_name: str, encoder_weights: str | None, **options: object) -> torch.nn.Module:
        given["weights"] = encoder_weights
        return torch.nn.Identity()

    monkeypatch.setattr(smp, "create_model", create)
    SMPNetwork(num_classes=2)
    assert given == {"weights": None}
