"""What a pairwise potential is: learned filters that, bound to images, map q to K q."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from crfgrad.checks import check_count

Message = Callable[..., Tensor]
"""A potential bound to a batch of images: q -> K q, both (B, L, H, W).

Where K is not symmetric, ``message(q, adjoint=True)`` gives K^T q. A message may also have a method
``add_to(total, q, adjoint)`` that adds K q to a total in place; it is used where no gradients are recorded.
"""


class Potential(nn.Module, ABC):
    """A pairwise potential (4): the cost K_ij of the labels of pixels i and j.

    A subclass holds the learned parameters and says how they act on an image.

    Args:
        num_classes: Number of labels L, 2 or more.
        symmetric: Whether K is held symmetric, K_ij(l, m) = K_ji(m, l). Only then is psi + K q the
            gradient of the energy; otherwise it is the direction the released code follows.
    """

    def __init__(self, num_classes: int, symmetric: bool = True) -> None:
        super().__init__()
        self.num_classes = check_count("num_classes", num_classes, least=2)
        self.symmetric = symmetric
        self.exclude_self = True

    @abstractmethod
    def bind(self, image: Tensor) -> Message:
        """Prepares the potential for a batch of images (B, C, H, W), once for all iterations.

        The message must bring nothing from a pixel to itself, or the potential must set ``exclude_self`` to
        False, and then cannot be rounded. If the potential is not symmetric it must also know its adjoint.
        """

    def extra_repr(self) -> str:
        """Shown by print(crf)."""
        return f"num_classes={self.num_classes}, symmetric={self.symmetric}"


def potts(num_classes: int) -> Tensor:
    """Cost 1 between different labels, 0 between equal ones: (L, L)."""
    return 1 - torch.eye(num_classes)


def symmetrised(compatibility: Tensor, symmetric: bool) -> Tensor:
    """The symmetric part of a compatibility matrix (L, L), or the matrix as it is."""
    return (compatibility + compatibility.mT) / 2 if symmetric else compatibility


def mix_labels(compatibility: Tensor, q: Tensor, adjoint: bool = False) -> Tensor:
    """Applies a compatibility matrix (L, L), or its transpose, to the labels of q (B, L, H, W)."""
    return (q.movedim(1, -1) @ (compatibility if adjoint else compatibility.mT)).movedim(-1, 1)
