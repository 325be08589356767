"""The interface of pydensecrf: what is taken, what is refused, and how results behave."""

import pickle
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from crfgrad import DenseCRF, GaussianTerm
from crfgrad.pydensecrf import densecrf, utils
from tests.recorded.make_pydensecrf import noise, photograph, probabilities

H, W, L = 10, 13, 4
IMAGE = photograph(H, W, 100, 200)
UNARY = utils.unary_from_softmax(probabilities(IMAGE, L))


def built(**changed: Any) -> densecrf.DenseCRF2D:
    given: dict[str, Any] = {"u": UNARY, "rgbim": IMAGE, "compat": 2, "sxy": 20, "srgb": 13} | changed
    crf = densecrf.DenseCRF2D(W, H, L)
    crf.setUnaryEnergy(given["u"])
    crf.addPairwiseGaussian(sxy=2, compat=given["compat"])
    crf.addPairwiseBilateral(given["sxy"], given["srgb"], given["rgbim"], given["compat"])
    return crf


EXPECTED = built().inference(5)


def test_results_are_arrays_with_the_labels_of_a_point_side_by_side() -> None:
    q = built().inference(3)
    assert isinstance(q, np.ndarray)
    assert (q.shape, q.dtype, q.flags.f_contiguous, q.flags.writeable) == ((L, H * W), np.float32, True, True)
    assert memoryview(q).strides == (4, 4 * L)
    assert np.allclose(q.sum(0), 1, atol=1e-6)
    assert np.array_equal(np.argmax(q, axis=0), np.array(q).reshape(L, H, W).argmax(0).ravel())


def test_steps_are_iterations_in_place() -> None:
    crf = built()
    q, first, second = crf.startInference()
    memory = np.asarray(q)
    assert np.allclose(q, crf.inference(0), atol=1e-7)
    for step in range(1, 4):
        crf.stepInference(q, first, second)
        assert np.allclose(memory, crf.inference(step), atol=1e-6)
    mine = np.asfortranarray(crf.inference(2)).copy(order="C")
    crf.stepInference(mine, first, second)
    assert np.allclose(mine, memory, atol=1e-6)


def test_divergence_where_a_label_is_excluded() -> None:
    unary = UNARY.copy()
    unary[1] = np.inf
    crf = built(u=unary)
    three = densecrf.DenseCRF2D(W, H, L - 1)
    three.setUnaryEnergy(np.delete(UNARY, 1, axis=0))
    three.addPairwiseGaussian(2, 2)
    three.addPairwiseBilateral(20, 13, IMAGE, 2)
    q = crf.inference(3)
    assert (q[1] == 0).all()
    assert np.allclose(np.delete(q, 1, axis=0), three.inference(3), atol=1e-5)
    assert crf.klDivergence(q) == pytest.approx(three.klDivergence(three.inference(3)), rel=1e-4)


@pytest.mark.parametrize(
    "changed",
    [
        {"u": UNARY.astype(np.float64)},
        {"u": np.asfortranarray(UNARY)},
        {"u": UNARY.tolist()},
        {"u": torch.from_numpy(UNARY)},
        {"u": np.repeat(UNARY, 2, axis=1)[:, ::2]},
        {"rgbim": np.asfortranarray(IMAGE)},
        {"rgbim": IMAGE[:, ::-1][:, ::-1]},
        {"rgbim": np.broadcast_to(IMAGE, IMAGE.shape)},  # read-only
        {"compat": np.float32(2)},
        {"compat": np.array(2)},
        {"compat": [-2.0] * L},
        {"compat": -2 * np.eye(L)},
        {"compat": np.asfortranarray(noise(L, L) - noise(L, L).T - 2 * np.eye(L))},
        {"sxy": np.int64(20)},
        {"sxy": (20, 20.0)},
        {"sxy": np.array([20, 20])},
        {"srgb": [13, 13, 13]},
        {"srgb": np.float32(13)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_everything_that_holds_the_same_numbers_is_taken(changed: dict[str, Any]) -> None:
    assert np.allclose(built(**changed).inference(5), EXPECTED, atol=1e-5)


def test_arrays_may_change_afterwards_and_objects_are_used_again() -> None:
    image, unary = IMAGE.copy(), np.asfortranarray(UNARY)
    crf = densecrf.DenseCRF2D(w=W, h=H, nlabels=L)
    crf.addPairwiseGaussian(2, 2)
    crf.addPairwiseBilateral(20, 13, image, 2)
    uniform = crf.inference(2)
    assert np.allclose(uniform, 1 / L)
    given = densecrf.ConstUnary(unary)
    crf.setUnary(given)
    image[:], unary[:] = 0, 0
    assert np.allclose(crf.inference(5), EXPECTED, atol=1e-6)
    again = built(u=noise(L, H * W))
    again.setUnary(given)
    assert np.allclose(again.inference(5), EXPECTED, atol=1e-6)
    assert np.array_equal(again.inference(5), again.inference(5))


def test_one_label_or_one_point_is_copied_too() -> None:
    for shape in ((1, 6), (3, 1)):
        unary, features = noise(*shape), noise(2, shape[1])
        crf = densecrf.DenseCRF(shape[1], shape[0])
        crf.setUnaryEnergy(unary)
        crf.addPairwiseEnergy(features, 1)
        before = crf.inference(2)
        unary[:], features[:] = 5, 5
        assert np.array_equal(crf.inference(2), before)


def test_threads_add_up_in_the_same_order() -> None:
    """Also where the number of points is no multiple of 4."""
    image = photograph(91, 121)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        crf = densecrf.DenseCRF2D(121, 91, 3)
        crf.setUnaryEnergy(utils.unary_from_softmax(probabilities(image, 3)))
        crf.addPairwiseBilateral(5, 5, image, 2)
        results.append(crf.inference(3))
    torch.set_num_threads(1)
    assert np.array_equal(*results)


def test_settings_of_torch_do_not_reach_in() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
            assert np.array_equal(built().inference(5), EXPECTED)
            crf = densecrf.DenseCRF2D(W, H, L)
            crf.addPairwiseGaussian(2, 2 * np.eye(L))
            assert np.allclose(crf.inference(2), 1 / L)
    finally:
        torch.set_default_dtype(torch.float32)


def test_objects_and_results_can_be_sent_to_other_processes() -> None:
    crf = pickle.loads(pickle.dumps(built()))
    assert np.array_equal(crf.inference(5), EXPECTED)
    assert np.array_equal(pickle.loads(pickle.dumps(EXPECTED)), EXPECTED)


def test_logistic_unary_energies() -> None:
    weights, features = noise(L, 3), noise(3, H * W, seed=1)
    results = []
    for set_unary in (
        lambda crf: crf.setUnary(densecrf.LogisticUnary(L=weights, f=features)),
        lambda crf: crf.setUnaryEnergy(weights, features),
        lambda crf: crf.setUnaryEnergy(u=weights @ features),
    ):
        crf = built()
        set_unary(crf)
        results.append(crf.inference(3))
    assert np.allclose(results[0], results[2], atol=1e-6)
    assert np.allclose(results[1], results[2], atol=1e-6)


def test_subclasses_with_arguments_of_their_own() -> None:
    class Named(densecrf.DenseCRF2D):
        def __init__(self, name: str) -> None:
            super().__init__(W, H, L)
            self.name = name

    crf = Named("ours")
    crf.setUnaryEnergy(UNARY)
    assert np.argmax(crf.inference(0), axis=0).shape == (H * W,)


def test_only_the_symmetric_part_of_a_matrix_counts_here_and_the_whole_in_dense_crf() -> None:
    matrix, points = noise(L, L), noise(2, 30)
    unary = noise(L, 30, seed=1)

    def ours(compat: np.ndarray) -> np.ndarray:
        crf = densecrf.DenseCRF(30, L)
        crf.setUnaryEnergy(unary)
        crf.addPairwiseEnergy(points, compat)
        return crf.inference(5)

    def general(compat: np.ndarray) -> np.ndarray:
        return DenseCRF()(unary=unary, terms=[GaussianTerm(np.ascontiguousarray(points.T), compat)])

    half = (matrix + matrix.T) / 2
    assert np.array_equal(ours(matrix), ours(half))
    assert np.allclose(ours(matrix), general(half), atol=0.01)  # but for the vertices around the origin
    assert np.abs(general(matrix) - general(half)).max() > 0.1


def test_several_threads_share_an_object() -> None:
    crf = built()
    with ThreadPoolExecutor(4) as pool:
        for q in pool.map(crf.inference, [5] * 12):
            assert np.array_equal(q, EXPECTED)
        for one in pool.map(lambda _: built().inference(5), range(12)):
            assert np.array_equal(one, EXPECTED)


def test_numbers_of_types_and_their_names() -> None:
    assert densecrf.NORMALIZE_SYMMETRIC is densecrf.NormalizationType.NORMALIZE_SYMMETRIC
    assert densecrf.DIAG_KERNEL == 1
    crf = built()
    crf.addPairwiseGaussian(2, 1, 0, 2)
    other = built()
    other.addPairwiseGaussian(sxy=2, compat=1, kernel=densecrf.FULL_KERNEL, normalization=densecrf.NORMALIZE_AFTER)
    assert np.array_equal(crf.inference(2), other.inference(2))


def points(crf: densecrf.DenseCRF, *given: Any, **named: Any) -> None:
    """A term of other points."""
    crf.addPairwiseEnergy(*given, **named)


NAN = np.where(np.arange(H * W) == 3, np.nan, UNARY)
REFUSED: dict[str, Callable[[], object]] = {
    r"unary energies must have shape (4, 130), got (4, 10, 13): labels first, and then all points": lambda: built(
        u=UNARY.reshape(L, H, W)
    ),
    r"unary energies must have shape (4, 130), got (130, 4)": lambda: built(u=UNARY.T),
    r"unary energies must be an array of real numbers, got <U1": lambda: built(u=["a"]),
    r"NaN or infinity in unary energies (4 of 520 values)": lambda: built(u=NAN),
    r"NaN or infinity in unary energies": lambda: built(u=np.where(UNARY > 1, -np.inf, UNARY)),
    r"all unary energies of 130 pixels are plus infinity": lambda: built(u=np.full_like(UNARY, np.inf)),
    r"u must be a ConstUnary or LogisticUnary, got ndarray": lambda: built().setUnary(UNARY),  # type: ignore[arg-type]
    r"f must have shape (3, points), got (4, 130)": lambda: densecrf.LogisticUnary(noise(4, 3), UNARY),
    r"u must have shape (labels, points), got (4,)": lambda: densecrf.ConstUnary(UNARY[:, 0]),
    r"rgbim must have shape (10, 13, 3), got (13, 10, 3): DenseCRF2D takes the width first": lambda: built(
        rgbim=IMAGE.transpose(1, 0, 2)
    ),
    r"give what utils.create_pairwise_bilateral makes": lambda: built(rgbim=IMAGE[..., :1]),
    r"rgbim must be uint8, colours from 0 to 255, got float64 from 0": lambda: built(rgbim=IMAGE / 255 * 0),
    r"compat has shape (3,), but there are 4 labels": lambda: built(compat=[1.0, 2.0, 3.0]),
    r"compat has shape (4, 3), but there are 4 labels": lambda: built(compat=noise(4, 3)),
    r"NaN or infinity in compat": lambda: built(compat=[np.nan] * 4),
    r"compat must be an array of real numbers, got object": lambda: built(compat=None),
    r"sxy has 3 numbers for 2 axes": lambda: built(sxy=(3, 3, 3)),
    r"sxy must be positive, got 0": lambda: built(sxy=0),
    r"srgb has 2 numbers for 3 channels": lambda: built(srgb=(3, 3)),
    r"features must have shape (d, 130), got (130, 2)": lambda: points(built(), noise(130, 2), 3),
    r"features hold NaN or infinity": lambda: points(built(), np.full((2, 130), np.inf), 3),
    r"kernel must be CONST_KERNEL, DIAG_KERNEL, FULL_KERNEL, got 7": lambda: points(built(), noise(2, 130), 3, 7),
    r"normalization must be NO_NORMALIZATION,": lambda: points(built(), noise(2, 130), 3, normalization=-1),
    r"niter must be a whole number, 0 or more, got -1": lambda: built().inference(-1),
    r"niter must be a whole number, 0 or more, got 1.5": lambda: built().inference(1.5),  # type: ignore[arg-type]
    r"Q must be what startInference() gave": lambda: built().stepInference(EXPECTED.astype(float)),
    r"Q must have shape (4, 130), got (3, 130)": lambda: built().klDivergence(EXPECTED[:3]),
    r"nlabels must be a whole number, 1 or more, got 0": lambda: densecrf.DenseCRF(5, 0),
    r"w must be a whole number, 1 or more": lambda: densecrf.DenseCRF2D(2.5, 3, 2),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("sentence", list(REFUSED))
def test_what_cannot_be_meant_is_refused_in_a_sentence(sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(sentence)):
        REFUSED[sentence]()
