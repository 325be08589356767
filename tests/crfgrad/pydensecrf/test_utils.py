"""Unary energies and features; their numbers are among the recorded cases too."""

import re
from collections.abc import Callable

import numpy as np
import pytest

from crfgrad.pydensecrf import utils

SOFT = np.array([[0.2, 1.0], [0.8, 0.0]])


def test_energies_of_labels() -> None:
    labels = np.array([[0, 1], [2, 3]])
    sure, other, any_label = -np.log([0.8, 0.1, 1 / 3])
    expected = [[any_label, sure, other, other], [any_label, other, sure, other], [any_label, other, other, sure]]
    for kind in (np.uint8, np.int64, np.uint32):
        assert np.allclose(utils.unary_from_labels(labels.astype(kind), 3, 0.8), expected)
    assert np.allclose(
        utils.unary_from_labels(labels[1], 4, 0.7, zero_unsure=False)[:, 0], -np.log([0.1, 0.1, 0.7, 0.1])
    )


def test_energies_of_probabilities() -> None:
    assert np.allclose(utils.unary_from_softmax(SOFT), -np.log([[0.2, 1], [0.8, 1e-5]]))
    assert utils.unary_from_softmax(SOFT, clip=None)[1, 1] == np.inf
    assert np.allclose(utils.unary_from_softmax(SOFT, scale=0.5), -np.log([[0.35, 0.75], [0.65, 0.25]]))
    turned = utils.unary_from_softmax(np.moveaxis(np.full((5, 6, 3), 1 / 3), -1, 0))
    assert turned.flags.c_contiguous
    assert turned.shape == (3, 30)


def test_old_names() -> None:
    with pytest.warns(DeprecationWarning, match="old name of unary_from_labels"):
        assert np.allclose(utils.compute_unary(np.array([1, 2]), 2), -np.log(0.5))
    with pytest.warns(DeprecationWarning, match="old name of unary_from_softmax"):
        assert utils.softmax_to_unary(SOFT)[1, 1] == np.inf


def test_features_of_any_dimension_and_number_of_channels() -> None:
    volume = np.arange(24.0).reshape(2, 3, 4)
    features = utils.create_pairwise_bilateral((1, 2, 4), 0.5, volume)
    z, y, x = np.indices(volume.shape).reshape(3, -1)
    assert np.allclose(features, [z, y / 2, x / 4, 2 * np.arange(24)])
    assert np.array_equal(features[:3], utils.create_pairwise_gaussian((1, 2, 4), volume.shape))
    two = utils.create_pairwise_bilateral((1, 2), (5, 10), volume[..., :2], chdim=-2 + 4)
    assert np.allclose(two[2:], [volume[..., 0].ravel() / 5, volume[..., 1].ravel() / 10])
    first = utils.create_pairwise_bilateral((1, 2), (5, 10), np.moveaxis(volume[..., :2], -1, 0), chdim=0)
    assert np.array_equal(first, two)
    assert utils.create_pairwise_bilateral((3,), (1,), np.arange(4, dtype=np.uint8)).shape == (2, 4)


REFUSED: dict[str, Callable[[], object]] = {
    "gt_prob must be above 0 and below 1, got 1": lambda: utils.unary_from_labels(np.array([1]), 2, 1),
    "n_labels must be 2 or more, got 1": lambda: utils.unary_from_labels(np.array([1]), 1, 0.5),
    "labels run from 0 to 255, but must run from 0 to 20": lambda: utils.unary_from_labels(
        np.array([0, 255], np.uint8), 21, 0.7, zero_unsure=False
    ),
    "labels run from 0 to 4, but must run from 0 to 3": lambda: utils.unary_from_labels(np.array([0, 4]), 3, 0.7),
    "labels run from -1 to 1": lambda: utils.unary_from_labels(np.array([-1, 1]), 3, 0.7),
    "labels must be integers, got float64": lambda: utils.unary_from_labels(np.array([1.0]), 3, 0.7),
    "scale must be above 0 and up to 1, got 2": lambda: utils.unary_from_softmax(SOFT, scale=2),
    "sm must have shape (labels, ...), got (2,)": lambda: utils.unary_from_softmax(SOFT[0]),
    "sdims has 2 numbers for 3 axes": lambda: utils.create_pairwise_gaussian((1, 2), (3, 4, 5)),
    "schan has 2 numbers for 3 channels": lambda: utils.create_pairwise_bilateral(
        (1, 1), (1, 2), np.zeros((4, 4, 3)), chdim=2
    ),
    "chdim is 3, but img has 3 dimensions": lambda: utils.create_pairwise_bilateral(
        (1, 1), 1, np.zeros((4, 4, 3)), chdim=3
    ),
}


@pytest.mark.parametrize("sentence", list(REFUSED))
def test_what_cannot_be_meant_is_refused_in_a_sentence(sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(sentence)):
        REFUSED[sentence]()
