"""Labels that pydensecrf2 1.1 gives a photograph: PYTHONPATH=.peers python -m tests.recorded.make_pydensecrf_labels."""

from pathlib import Path

import numpy as np
from PIL import Image

from experiments.benchmark.work import photograph, pydensecrf_task, scores, softmax

SIZE, LABELS = (240, 320), 5
SIGMAS = {"80_13": (80.0, 13.0), "67_3": (67.0, 3.0)}
FOLDER = Path(__file__).parent


def main() -> None:
    """Writes a PNG for each pair of widths."""
    pixels = photograph(*SIZE)
    probabilities = softmax(scores(pixels, LABELS))
    for name, sigma in SIGMAS.items():
        labels = pydensecrf_task(probabilities, pixels, sigma)().argmax(0)
        Image.fromarray(labels.astype(np.uint8)).save(FOLDER / f"pydensecrf_{name}.png")


if __name__ == "__main__":
    main()
