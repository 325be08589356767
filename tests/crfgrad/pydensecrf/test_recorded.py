"""The answers of pydensecrf2 1.1, which ``tests.recorded.make_pydensecrf`` recorded."""

import numpy as np
import pytest
import torch

from crfgrad import DenseCRF, use_backend
from crfgrad.gaussian import gaussian_term
from crfgrad.lattice import Lattice, build_lattice
from crfgrad.pydensecrf import densecrf, utils
from tests.recorded import make_pydensecrf as made

pytestmark = pytest.mark.filterwarnings("ignore:.*is an old name:DeprecationWarning")
SMALL = [
    name for name in made.CASES if "x" in name or "points" in name or name.startswith(("unary", "steps", "volume"))
]


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    with np.load(made.FILE) as kept:
        arrays = dict(kept)
    if arrays["fingerprint"] != made.fingerprint():
        pytest.fail("scikit-learn's photographs are decoded in another way here: record anew")
    return arrays


def differences(name: str, recorded: dict[str, np.ndarray]) -> dict[str, float]:
    """How far the answers to a case are from those recorded, in units of what is allowed."""
    found = {}
    for what, answer in made.kept(made.CASES[name](densecrf, utils)):
        expected = recorded[f"{name}: {what}"]
        assert answer.shape == expected.shape
        assert answer.dtype == expected.dtype
        if what.startswith("q") and what.endswith("labels"):
            found[what] = np.mean(answer != expected) / 1e-4
        elif what.startswith("q"):
            found[what] = np.mean(np.abs(answer.astype(float) - expected)) / 65535 / 1e-4
        else:
            found[what] = np.max(np.abs(answer - expected)) / np.max(np.abs(expected)) / 1e-5
    return found


@pytest.mark.parametrize("name", list(made.CASES))
def test_same_answers(name: str, recorded: dict[str, np.ndarray]) -> None:
    found = differences(name, recorded)
    assert found
    assert max(found.values()) <= 1, found


@pytest.mark.parametrize("name", SMALL)
def test_same_answers_by_plain_torch(name: str, recorded: dict[str, np.ndarray]) -> None:
    with use_backend("torch"):
        found = differences(name, recorded)
    assert max(found.values()) <= 1, found


def _plain_lattice(features: np.ndarray) -> Lattice:
    return build_lattice(torch.from_numpy(np.ascontiguousarray(features.T))[None])


@pytest.mark.parametrize("name", ["51 points in 7 dimensions, normalization 3", "volume (1, 1, 2)"])
def test_vertices_of_the_last_block_and_on_faces_count(
    name: str, recorded: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them the probabilities would be others."""
    assert max(differences(name, recorded).values()) < 0.1
    monkeypatch.setattr(densecrf, "lattice_around", _plain_lattice)
    assert max(differences(name, recorded).values()) > 1


@pytest.mark.parametrize(("sxy", "srgb", "compat"), [(50, 5, 10), (83, 5, 3), (121, 5, 4), (23, 7, 20)])
def test_dense_crf_gives_the_same_labels(sxy: int, srgb: int, compat: int, recorded: dict[str, np.ndarray]) -> None:
    name = f"widths {sxy} {srgb}, compat {compat}"
    odd = compat in (3, 20)  # as the recordings take turns
    image = made.photograph(*made.MIDDLE, name="flower.jpg" if odd else "china.jpg")
    crf = DenseCRF(3, 3 if odd else 1, sxy, srgb, compat, iterations=10)
    labels = crf(made.probabilities(image, 21), image).argmax(0).ravel()
    assert np.mean(labels != recorded[f"{name}: q labels"]) <= 1e-4


def test_a_kernel_of_no_weight() -> None:
    """A lattice whose term costs nothing leaves the unary energies alone."""
    crf = densecrf.DenseCRF(5, 3)
    crf.setUnaryEnergy(made.noise(3, 5))
    before = crf.inference(3)
    crf.addPairwiseEnergy(made.noise(2, 5), compat=0)
    assert np.array_equal(crf.inference(3), before)
    assert gaussian_term(_plain_lattice(made.noise(2, 5)), 0, 3) is not None
