"""The networks of the paper, as architectures beside those of segmentation-models-pytorch."""

from lightning_modules.architectures.fcn8s import FCN8s
from lightning_modules.architectures.lrr4x import LRR4x

ARCHITECTURES = {"fcn8s": FCN8s, "lrr4x": LRR4x}
"""By the names that ``SMPNetwork`` takes."""

__all__ = ["ARCHITECTURES", "FCN8s", "LRR4x"]
