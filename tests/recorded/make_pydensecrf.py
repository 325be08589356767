"""What pydensecrf2 1.1 answers: ``PYTHONPATH=.peers python -m tests.recorded.make_pydensecrf``.

Each case is written for the two modules of pydensecrf, so that the tests play it with those of crfgrad.
"""

import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np

FILE = Path(__file__).parent / "pydensecrf.npz"
SAMPLE = 1500
"""How many probabilities are kept; labels are kept of all pixels."""

Results = dict[str, np.ndarray]
Case = Callable[[ModuleType, ModuleType], Results]
CASES: dict[str, Case] = {}


def case(function: Callable[..., Results], *arguments: Any, name: str, **given: Any) -> None:
    """Adds a case."""
    CASES[name] = lambda dcrf, utils: function(dcrf, utils, *arguments, **given)


@lru_cache
def photograph(height: int, width: int, top: int = 0, left: int = 0, name: str = "china.jpg") -> np.ndarray:
    """A part of a photograph that scikit-learn ships: (H, W, 3) uint8."""
    from sklearn.datasets import load_sample_image

    return np.array(load_sample_image(name)[top : top + height, left : left + width], order="C")


def probabilities(image: np.ndarray, labels: int) -> np.ndarray:
    """Of a network that knows colours and is often wrong: (L, H, W) float32."""
    generator = np.random.default_rng(0)
    pixels = image.reshape(-1, image.shape[-1]).astype(np.float32)
    centres = pixels[generator.integers(len(pixels), size=labels)]
    distance = np.sqrt(((pixels[None] - centres[:, None]) ** 2).sum(-1))
    scores = -distance / 15 + generator.normal(0, 1, distance.shape)
    scores = np.exp(scores - scores.max(0))
    return (scores / scores.sum(0)).reshape(labels, *image.shape[:-1]).astype(np.float32)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers, float32."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def model(
    dcrf: ModuleType,
    utils: ModuleType,
    image: np.ndarray,
    labels: int,
    gaussian: dict[str, Any] | None = None,
    bilateral: dict[str, Any] | None = None,
    unary: np.ndarray | None = None,
) -> Any:
    """The model that most programs build."""
    height, width = image.shape[:2]
    crf = dcrf.DenseCRF2D(width, height, labels)
    crf.setUnaryEnergy(utils.unary_from_softmax(probabilities(image, labels)) if unary is None else unary)
    crf.addPairwiseGaussian(**({"sxy": 3, "compat": 3} | (gaussian or {})))
    crf.addPairwiseBilateral(**({"sxy": 80, "srgb": 13, "rgbim": image, "compat": 10} | (bilateral or {})))
    return crf


def _model(dcrf: ModuleType, utils: ModuleType, image: np.ndarray, labels: int, n: int = 5, **given: Any) -> Results:
    return {"q": np.array(model(dcrf, utils, image, labels, **given).inference(n))}


# settings of public repositories, the first two at the size of VOC
LARGE, MIDDLE, SMALL = (375, 500), (120, 161), (24, 33)
for index, (sxy, srgb, compat) in enumerate(
    [(80, 13, 10), (67, 3, 4), (50, 5, 10), (83, 5, 3), (121, 5, 4), (23, 7, 20)]
):
    picture = photograph(*(LARGE if index < 2 else MIDDLE), name="flower.jpg" if index % 2 else "china.jpg")
    setting = {"bilateral": {"sxy": sxy, "srgb": srgb, "compat": compat}, "gaussian": {"compat": 3 if index % 2 else 1}}
    case(_model, picture, 21, 10, **setting, name=f"widths {sxy} {srgb}, compat {compat}")
for labels in (1, 2, 5, 81):
    case(_model, photograph(*MIDDLE), labels, name=f"{labels} labels")
case(_model, np.repeat(photograph(*MIDDLE)[..., :1], 3, axis=-1), 5, name="gray")
for size in ((1, 1), (1, 7), (2, 2), (3, 5), (9, 7)):
    case(_model, photograph(*size, 200, 300), 3, name=f"{size[0]} x {size[1]}")
    case(_model, photograph(*size, 200, 300) // 16, 3, bilateral={"sxy": 3}, name=f"{size[0]} x {size[1]}, dark")
widths = {"gaussian": {"sxy": (2, 3.5), "compat": 1}, "bilateral": {"sxy": (30, 10), "srgb": (13, 9, 20), "compat": 1}}
case(_model, photograph(*SMALL), 4, **widths, name="one width each")
for n in (0, 1, 5, 100):
    case(_model, photograph(*SMALL), 4, n, bilateral={"sxy": 20, "compat": 2}, name=f"{n} iterations")
for kernel in ("CONST_KERNEL", "DIAG_KERNEL", "FULL_KERNEL"):
    for normalization in ("NO_NORMALIZATION", "NORMALIZE_BEFORE", "NORMALIZE_AFTER", "NORMALIZE_SYMMETRIC"):

        def _kinds(dcrf: ModuleType, utils: ModuleType, kernel: str, normalization: str) -> Results:
            kinds = {"kernel": getattr(dcrf, kernel), "normalization": getattr(dcrf, normalization)}
            kinds["compat"] = 0.05 if normalization == "NO_NORMALIZATION" else 3
            image = photograph(*SMALL, 100, 200)
            return _model(dcrf, utils, image, 4, gaussian=kinds, bilateral={"sxy": 20, **kinds})

        case(_kinds, kernel=kernel, normalization=normalization, name=f"{kernel} {normalization}")


def _compat(dcrf: ModuleType, utils: ModuleType, compat: np.ndarray, n: int = 5) -> Results:
    image = photograph(*SMALL, 100, 200)
    return _model(dcrf, utils, image, len(compat), n, bilateral={"sxy": 20, "compat": compat})


case(_compat, 3 * noise(5), name="vector")
case(_compat, 4 * (1 - np.eye(5, dtype=np.float32)), name="matrix 1 - I")
case(_compat, noise(5, 5), name="random matrix")
case(_compat, 3 * noise(21, 21), 20, name="random matrix of 21 labels")


def _points(
    dcrf: ModuleType,
    utils: ModuleType,
    features: list[np.ndarray],
    labels: int,
    compat: Any = 2,
    n: int = 5,
    normalization: int = 3,
) -> Results:
    crf = dcrf.DenseCRF(features[0].shape[1], labels)
    crf.setUnaryEnergy(noise(labels, features[0].shape[1], seed=1))
    for one in features:
        crf.addPairwiseEnergy(one, compat=compat, normalization=normalization)
    return {"q": np.array(crf.inference(n))}


for count in (400, 50, 51):
    for normalization, compat in ((0, 0.05), (1, 2), (2, 2), (3, 2)):
        name = f"{count} points in 7 dimensions, normalization {normalization}"
        case(_points, [noise(7, count)], 4, compat, normalization=normalization, name=name)
case(_points, [noise(1, 60), noise(12, 60)], 4, name="points in 1 and 12 dimensions")
sequence = [np.arange(60, dtype=np.float32)[None] / 3]
case(_points, sequence, 100, 1 - np.eye(100, dtype=np.float32), 100, name="sequence")


def _volume(
    dcrf: ModuleType, utils: ModuleType, sdims: tuple[float, ...], schan: Any, chdim: int, size: tuple[int, ...]
) -> Results:
    volume = photograph(size[0], size[1] * size[2], 100)[..., : 1 if chdim == -1 else 2]
    volume = volume.reshape(*size, -1)[..., 0] if chdim == -1 else np.moveaxis(volume.reshape(*size, -1), -1, chdim)
    near = utils.create_pairwise_gaussian(sdims, size)
    alike = utils.create_pairwise_bilateral(sdims, schan, volume, chdim)
    return _points(dcrf, utils, [near, alike], 3)


for sdims in ((1, 1, 2), (3, 3, 1), (2, 2, 2), (5.0, 5.0, 5.0)):
    case(_volume, sdims, 20, -1, (10, 14, 11), name=f"volume {sdims}")
case(_volume, (3, 3, 3), (20, 10), 1, (8, 12, 10), name="volume of two channels")


def _one_channel(dcrf: ModuleType, utils: ModuleType) -> Results:
    image = photograph(*MIDDLE)
    crf = dcrf.DenseCRF2D(image.shape[1], image.shape[0], 5)
    crf.setUnaryEnergy(utils.unary_from_softmax(probabilities(image, 5)))
    features = utils.create_pairwise_bilateral(sdims=(30, 30), schan=(13,), img=image[..., :1], chdim=2)
    crf.addPairwiseEnergy(features, compat=10)
    return {"q": np.array(crf.inference(5))}


case(_one_channel, name="one channel")


def _unary(dcrf: ModuleType, utils: ModuleType, kind: str) -> Results:
    image = photograph(*SMALL, 100, 200)
    likely = probabilities(image, 3)
    if kind == "plus or minus 10":
        unary = np.where(likely > 0.5, -10, 10).reshape(3, -1).astype(np.float32)
    elif kind == "infinity":
        unary = utils.unary_from_softmax(likely)
        unary[0, :300] = unary[1, 100:200] = np.inf
    elif kind.startswith("labels"):
        unsure = kind.endswith("unsure")
        labels = likely.argmax(0) + unsure
        labels[:9] = 0
        unary = utils.unary_from_labels(labels, 3, gt_prob=0.7, zero_unsure=unsure)
    elif kind == "scale":
        unary = utils.unary_from_softmax(likely, scale=0.6, clip=1e-3)
    else:
        unary = np.zeros((3, likely[0].size), np.float32)
    crf = model(dcrf, utils, image, 3, bilateral={"sxy": 20, "compat": 1}, unary=unary)
    if kind == "constant":
        crf.setUnary(dcrf.ConstUnary(noise(3, likely[0].size)))
    elif kind == "logistic":
        crf.setUnary(dcrf.LogisticUnary(noise(3, 4), noise(4, likely[0].size)))
    return {"q": np.array(crf.inference(5))}


for kind in ("plus or minus 10", "infinity", "labels", "labels, unsure", "scale", "constant", "logistic"):
    case(_unary, kind=kind, name=f"unary: {kind}")


def _no_unary(dcrf: ModuleType, utils: ModuleType, n: int) -> Results:
    crf = dcrf.DenseCRF2D(9, 7, 4)
    crf.addPairwiseGaussian(2, compat=noise(4, 4))
    return {"q": np.array(crf.inference(n))}


for n in (0, 1, 5):
    case(_no_unary, n=n, name=f"no unary, {n} iterations")


def _steps(dcrf: ModuleType, utils: ModuleType, compat: Any) -> Results:
    image = photograph(*SMALL, 100, 200)
    crf = model(dcrf, utils, image, 4, bilateral={"sxy": 20, "compat": compat})
    q, first, second = crf.startInference()
    results = {"q 0": np.array(q)}
    divergence = [crf.klDivergence(q)]
    for step in range(1, 6):
        crf.stepInference(q, first, second)
        results[f"q {step}"] = np.array(q)
        divergence.append(crf.klDivergence(q))
    return results | {"divergence": np.array(divergence)}


case(_steps, 4, name="steps")
case(_steps, noise(4, 4), name="steps with a random matrix")


def _utils(dcrf: ModuleType, utils: ModuleType) -> Results:
    labels = np.array([[0, 1, 2, 3], [3, 2, 1, 0]])
    soft = probabilities(photograph(3, 4, 100, 200), 3)
    image = photograph(3, 4, 100, 200)
    return {
        "labels": utils.unary_from_labels(labels, 4, 0.7, zero_unsure=False),
        "labels, unsure": utils.unary_from_labels(labels, 3, gt_prob=0.8),
        "softmax": utils.unary_from_softmax(soft),
        "softmax, scale": utils.unary_from_softmax(soft, scale=0.7, clip=None),
        "softmax, clip": utils.unary_from_softmax(soft.astype(np.float64), clip=0.2),
        "compute": utils.compute_unary(labels, 3),
        "softmax_to_unary": utils.softmax_to_unary(soft, GT_PROB=0.9),
        "gaussian": utils.create_pairwise_gaussian((2, 0.5, 3), (3, 4, 2)),
        "bilateral": utils.create_pairwise_bilateral((2, 3), (5, 6, 7), image, chdim=2),
        "bilateral, one width": utils.create_pairwise_bilateral((2, 3), 5, image, chdim=2),
        "bilateral, volume": utils.create_pairwise_bilateral((2, 3, 4), (5,), image),
    }


case(_utils, name="utils")


SCRIPTS = Path(__file__).parents[1] / "crfgrad" / "pydensecrf" / "scripts"


def write_inputs(folder: Path) -> None:
    """What the scripts read."""
    (folder / "images").mkdir()
    for number in range(3):
        image = photograph(70, 90 + number, 100 * number, 150)
        likely = probabilities(image, 5)
        noisy = {"maps": likely[1:] + likely[:1] / 4, "logits": np.log(likely)}
        np.savez(folder / "images" / f"{number}.npz", image=image, **noisy)
    labels = likely.argmax(0)
    palette = np.array([[0, 0, 0], [200, 0, 0], [0, 200, 0], [0, 0, 200], [200, 200, 0]], np.uint8)
    np.savez(folder / "annotation.npz", image=image, annotation=palette[labels])
    np.savez(folder / "ink.npz", image=image, mask=(255 * likely[0]).astype(np.uint8))
    volume = photograph(12, 20 * 24, 200)[..., :2].reshape(12, 20, 24, 2)
    organ = 1 / (1 + np.exp(4 - volume[..., 0] / 25 + noise(12, 20, 24)))
    np.savez(folder / "volume.npz", channels=volume, organ=organ)


def play_script(name: str, folder: Path, *run: str, method: str = "fork") -> dict[str, np.ndarray]:
    """What a script writes from those inputs.

    Args:
        name: Of the script.
        folder: With the inputs.
        run: What runs a script.
        method: How the processes of a pool start.
    """
    output = folder / name
    output.mkdir()
    given = {
        "activation_maps": [folder / "images", output],
        "network_output": [folder / "images", output, method],
        "annotation": [folder / "annotation.npz", output / "image", "image"],
        "ink": [folder / "ink.npz", output / "mask"],
        "volume": [folder / "volume.npz", output / "mask"],
    }[name]
    command = [*run, str(SCRIPTS / f"{name}.py"), *map(str, given)]
    subprocess.run(command, check=True, timeout=300, cwd=folder)
    if name == "annotation":
        command[-2:] = str(output / "points"), "points"
        subprocess.run(command, check=True, timeout=300, cwd=folder)
    return {f"{name}.py: {file.stem}": np.load(file).astype(np.uint8) for file in sorted(output.glob("*.npy"))}


def kept(results: Results) -> Iterator[tuple[str, np.ndarray]]:
    """What is kept of results: labels of all pixels and probabilities of some; other arrays as they are."""
    for name, result in results.items():
        if not name.startswith("q"):
            yield name, result
            continue
        pixels = np.random.default_rng(0).permutation(result.shape[1])[: max(SAMPLE // len(result), 10)]
        yield f"{name} labels", result.argmax(0).astype(np.uint8)
        yield f"{name} pixels", np.rint(65535 * result[:, pixels]).astype(np.uint16)


def fingerprint() -> int:
    """Of the photographs: another way to decode them would give other results."""
    return zlib.crc32(photograph(*LARGE).tobytes() + photograph(*LARGE, name="flower.jpg").tobytes())


def main() -> None:
    """Writes what is kept of all cases into one file."""
    from pydensecrf import densecrf, utils

    recorded = {"fingerprint": np.array(fingerprint())}
    for name, play in CASES.items():
        recorded |= {f"{name}: {what}": array for what, array in kept(play(densecrf, utils))}
    with TemporaryDirectory() as scratch:
        write_inputs(Path(scratch))
        for script in sorted(SCRIPTS.glob("*.py")):
            recorded |= play_script(script.stem, Path(scratch), sys.executable, method="spawn")
    np.savez_compressed(FILE, **recorded)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
