"""What a pairwise potential is: learned filters that, bound to images, are an operator K."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from crfgrad.checks import check_count
from crfgrad.features import Spacing
from crfgrad.operators import Operator


class PairwisePotential(nn.Module, ABC):
    """A pairwise potential (4): the cost K_ij of the labels of pixels i and j.

    A subclass holds the learned parameters and says how they act on an image. Parameters are in units of the
    message: when all entries of one move by 1, what a pixel receives moves by about 1. So one learning rate
    suits all of them.

    Args:
        num_classes: Number of labels L, 2 or more.
        symmetric: Whether K is held symmetric, K_ij(l, m) = K_ji(m, l). Only then is psi + K q the
            gradient of the energy; otherwise it is the direction the released code follows.
        dimensions: Of the images: 1 for sequences, 2, or 3 for volumes.
    """

    def __init__(self, num_classes: int, symmetric: bool = True, dimensions: int = 2) -> None:
        super().__init__()
        if dimensions not in (1, 2, 3):
            raise ValueError(f"dimensions must be 1, 2 or 3, got {dimensions}")
        self.dimensions = dimensions
        self.num_classes = check_count("num_classes", num_classes, least=2)
        self.symmetric = symmetric

    @abstractmethod
    def bind(self, image: Tensor, valid: Tensor | None = None, spacing: Spacing | None = None) -> Operator:
        """K for a batch of images, prepared once for all iterations.

        Args:
            image: (B, C, *S).
            valid: Which pixels count, (B, *S) bool. Whatever the operator brings to and from others is removed
                afterwards; a potential looks at this only if others change what it does to those that count.
            spacing: Distance of neighbouring pixels along each axis; 1 if it is None.
        """

    def check_values(self, image: Tensor, valid: Tensor | None = None) -> None:
        """Raises a ValueError if a setting cannot be right for the values of images that need not be colours."""

    def extra_repr(self) -> str:
        """Shown by print(crf)."""
        return f"num_classes={self.num_classes}, symmetric={self.symmetric}"


class FreePotential(PairwisePotential):
    """A potential with free filters: one parameter, ``filters``, in units of the message."""

    filters: nn.Parameter
    unit: float

    def start(self, kernel: Tensor, unit: float) -> None:
        """Makes the parameter.

        Args:
            kernel: What acts at the start.
            unit: What a message moves by when all entries of the kernel move by 1: kernel = filters / unit.
        """
        self.unit = unit
        self.filters = nn.Parameter(kernel * unit)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Reads what was saved before filters had a unit, too."""
        if prefix + "weight" in state_dict:
            state_dict[prefix + "filters"] = state_dict.pop(prefix + "weight") * self.unit
        super()._load_from_state_dict(state_dict, prefix, *rest)


def potts(num_classes: int) -> Tensor:
    """Cost 1 between different labels, 0 between equal ones: (L, L)."""
    return 1 - torch.eye(num_classes)


def symmetrised(compatibility: Tensor, symmetric: bool) -> Tensor:
    """The symmetric part of a compatibility matrix (L, L), or the matrix as it is."""
    return (compatibility + compatibility.mT) / 2 if symmetric else compatibility
