"""What a network predicts, refined in a pool of processes: FOLDER OUTPUT METHOD."""

import multiprocessing
import sys
from pathlib import Path

import numpy as np
import pydensecrf.densecrf as dcrf
import pydensecrf.utils as utils
import torch


class PostProcessor:
    """Called with an image (H, W, 3) and logits (L, H, W)."""

    def __init__(self, steps: int, near: tuple[float, float], alike: tuple[float, float, float]) -> None:
        self.steps, self.near, self.alike = steps, near, alike

    def __call__(self, image: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Probabilities (L, H, W)."""
        likely = torch.nn.functional.softmax(torch.from_numpy(logits), dim=0).numpy()
        labels, height, width = likely.shape
        model = dcrf.DenseCRF2D(width, height, labels)
        model.setUnaryEnergy(np.ascontiguousarray(utils.unary_from_softmax(likely)))
        model.addPairwiseGaussian(self.near[0], self.near[1])
        model.addPairwiseBilateral(self.alike[0], self.alike[1], np.ascontiguousarray(image), self.alike[2])
        return np.array(model.inference(self.steps)).reshape(labels, height, width)


post = PostProcessor(10, near=(1, 3), alike=(67, 3, 4))


def predict(file: Path) -> np.ndarray:
    """Labels of one image."""
    with np.load(file) as found:
        return post(found["image"], found["logits"]).argmax(axis=0)


if __name__ == "__main__":
    folder, output = map(Path, sys.argv[1:3])
    torch.set_num_threads(2)
    torch.nn.Conv2d(3, 16, 9)(torch.rand(2, 3, 300, 300)).exp().sum()  # torch's threads have been at work
    files = sorted(folder.glob("*.npz"))
    with multiprocessing.get_context(sys.argv[3]).Pool(2) as pool:
        for source, labels in zip(files, pool.map_async(predict, files).get(timeout=200), strict=True):
            np.save(output / f"{source.stem}.npy", labels)
