"""Gaussian dense CRFs by the names of pydensecrf: see docs/dense_crf.md for what differs."""

from copy import copy
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crfgrad.checks import check_count
from crfgrad.dense_crf import energy_of_costs, initial
from crfgrad.energy import Energy, labels_first, labels_last
from crfgrad.features import Widths
from crfgrad.gaussian import Compatibility, Normalization, gaussian_term
from crfgrad.operators import Operator, Sum
from crfgrad.pydensecrf.arrays import array, real, widths
from crfgrad.pydensecrf.lattice import lattice_around
from crfgrad.solvers import MeanField


class KernelType(IntEnum):
    """Which parameters of a kernel could be learned: none are here, so all types act alike."""

    CONST_KERNEL = 0
    DIAG_KERNEL = 1
    FULL_KERNEL = 2


class NormalizationType(IntEnum):
    """By which sums a kernel is divided."""

    NO_NORMALIZATION = 0
    NORMALIZE_BEFORE = 1
    NORMALIZE_AFTER = 2
    NORMALIZE_SYMMETRIC = 3


CONST_KERNEL, DIAG_KERNEL, FULL_KERNEL = KernelType
NO_NORMALIZATION, NORMALIZE_BEFORE, NORMALIZE_AFTER, NORMALIZE_SYMMETRIC = NormalizationType
_NORMALIZATIONS: list[Normalization] = ["none", "before", "after", "symmetric"]


class Unary:
    """Energies of each label at each point, (labels, points) float32."""

    def __init__(self, energies: np.ndarray) -> None:
        self.energies = energies


class ConstUnary(Unary):
    """Energies as they are given.

    Args:
        u: (labels, points).
    """

    def __init__(self, u: np.ndarray) -> None:
        super().__init__(array("u", u, ("labels", "points")).copy())


class LogisticUnary(Unary):
    """Energies L f, linear in features.

    Args:
        L: (labels, features).
        f: (features, points).
    """

    def __init__(self, L: np.ndarray, f: np.ndarray) -> None:
        weights = array("L", L, ("labels", "features"))
        super().__init__(weights @ array("f", f, (weights.shape[1], "points")))


class DenseCRF:
    """A dense CRF of points in any space.

    Args:
        nvar: Number of points.
        nlabels: Number of labels.

    Example:
        >>> crf = DenseCRF(nvar=4, nlabels=2)
        >>> crf.setUnaryEnergy(np.array([[0.0, 0, 0, 1], [1, 1, 1, 0]]))
        >>> crf.addPairwiseEnergy(np.array([[0.0, 0.1, 0.2, 0.3]]), compat=3)
        >>> np.argmax(crf.inference(5), axis=0)
        array([0, 0, 0, 0])
    """

    def __init__(self, nvar: int, nlabels: int) -> None:
        self._nvar = check_count("nvar", nvar, least=1)
        self._nlabels = check_count("nlabels", nlabels, least=1)
        self._operators: list[Operator] = []
        self._unary = energy_of_costs(torch.zeros(1, self._nlabels, self._nvar, dtype=torch.float32, device="cpu"), [])

    def setUnary(self, u: Unary) -> None:
        """Sets the energies of the labels at each point."""
        if not isinstance(u, Unary):
            raise TypeError(f"u must be a ConstUnary or LogisticUnary, got {type(u).__name__}: see setUnaryEnergy")
        self.setUnaryEnergy(u.energies)

    def setUnaryEnergy(self, u: np.ndarray, f: np.ndarray | None = None) -> None:
        """Sets the energies: u (labels, points), or the product of u (labels, features) and f (features, points)."""
        if f is not None:
            u = LogisticUnary(u, f).energies
        self._unary = energy_of_costs(self._field("unary energies", u), [])

    def addPairwiseEnergy(
        self,
        features: np.ndarray,
        compat: Compatibility,
        kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Adds a Gaussian kernel.

        Args:
            features: (d, points), divided by the widths of the kernel.
            compat: A number rewards equal labels; a vector is the cost of each label with itself; a matrix is the
                cost of each pair, of which the symmetric part counts.
            kernel: A ``KernelType``.
            normalization: A ``NormalizationType``.
        """
        points = array("features", features, ("d", self._nvar))
        if not np.isfinite(points).all():
            raise ValueError("features hold NaN or infinity: check the image and the widths they are divided by")
        _member("kernel", kernel, KernelType)
        divided = _NORMALIZATIONS[_member("normalization", normalization, NormalizationType)]
        self._operators.append(gaussian_term(lattice_around(points), _costs(compat), self._nlabels, divided))

    def inference(self, niter: int) -> np.ndarray:
        """Probabilities (labels, points) after some iterations of mean field."""
        return self._distributions(check_count("niter", niter, least=0))

    def startInference(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Probabilities before the first iteration, and two arrays that ``stepInference`` takes and leaves alone."""
        return self._distributions(0), np.empty((0, 0), np.float32), np.empty((0, 0), np.float32)

    def stepInference(self, Q: np.ndarray, tmp1: object = None, tmp2: object = None) -> None:
        """One iteration, which overwrites the probabilities Q (labels, points)."""
        if not isinstance(Q, np.ndarray) or Q.dtype != np.float32 or not Q.flags.writeable:
            raise TypeError("Q must be what startInference() gave, a float32 array that can be written to")
        Q[...] = self._distributions(1, self._field("Q", Q))

    def klDivergence(self, Q: np.ndarray) -> float:
        """Sum of Q log Q and of the energies, where each pair counts twice: as theirs it is no true divergence."""
        with torch.no_grad():
            q = labels_last(self._field("Q", Q))
            costs = self._energy().direction(q).double()  # of excluded labels without the infinity, which Q makes 0
            return float((q * (q.clamp_min(1e-20).double().log() + costs)).sum())

    def _energy(self) -> Energy:
        energy = copy(self._unary)
        energy.operator = Sum(list(self._operators))
        return energy

    def _distributions(self, iterations: int, q: Tensor | None = None) -> np.ndarray:
        with torch.no_grad():
            energy = self._energy()
            refined: Tensor = MeanField(iterations)(energy, initial(energy) if q is None else q)
            return refined[0].numpy()

    def _field(self, name: str, given: np.ndarray) -> Tensor:
        """A copy of an array (labels, points) as a tensor (1, labels, points), with the labels last in memory."""
        remedy = ": labels first, and then all points in one dimension"
        rows = array(name, given, (self._nlabels, self._nvar), remedy).T
        return labels_first(torch.from_numpy(np.array(rows, order="C"))[None])


class DenseCRF2D(DenseCRF):
    """A dense CRF of the pixels of an image.

    Args:
        w: Width.
        h: Height.
        nlabels: Number of labels.

    Example:
        >>> crf = DenseCRF2D(30, 20, 2)
        >>> crf.setUnaryEnergy(np.zeros((2, 600)))
        >>> crf.addPairwiseGaussian(sxy=3, compat=3)
        >>> crf.addPairwiseBilateral(sxy=80, srgb=13, rgbim=np.zeros((20, 30, 3), np.uint8), compat=10)
        >>> np.array(crf.inference(5)).reshape(2, 20, 30).shape
        (2, 20, 30)
    """

    def __init__(self, w: int, h: int, nlabels: int) -> None:
        self._size = check_count("h", h, least=1), check_count("w", w, least=1)
        super().__init__(self._size[0] * self._size[1], nlabels)

    def addPairwiseGaussian(
        self,
        sxy: Widths,
        compat: Compatibility,
        kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Adds a Gaussian kernel of the positions, of a width or of widths (x, y)."""
        self.addPairwiseEnergy(self._positions(sxy), compat, kernel, normalization)

    def addPairwiseBilateral(
        self,
        sxy: Widths,
        srgb: Widths,
        rgbim: np.ndarray,
        compat: Compatibility,
        kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Adds a Gaussian kernel of positions and colours.

        Args:
            sxy: Width in position, or widths (x, y).
            srgb: Width in colour, or one for each channel.
            rgbim: The image, (h, w, 3) uint8.
            compat: See ``addPairwiseEnergy``.
            kernel: See ``addPairwiseEnergy``.
            normalization: See ``addPairwiseEnergy``.
        """
        image = real("rgbim", rgbim)
        height, width = self._size
        if image.shape != (height, width, 3):
            raise ValueError(
                f"rgbim must have shape ({height}, {width}, 3), got {image.shape}: DenseCRF2D takes the width "
                "first; for other channels give what utils.create_pairwise_bilateral makes to addPairwiseEnergy"
            )
        if image.dtype != np.uint8:
            raise TypeError(
                f"rgbim must be uint8, colours from 0 to 255, got {image.dtype} from {image.min():.3g} to "
                f"{image.max():.3g}: undo any normalisation and give rgbim.astype(np.uint8)"
            )
        colours = np.moveaxis(image, -1, 0).reshape(3, -1) / widths("srgb", srgb, 3, "channels")[:, None]
        self.addPairwiseEnergy(np.concatenate([self._positions(sxy), colours]), compat, kernel, normalization)

    def _positions(self, sxy: Widths) -> np.ndarray:
        """(2, points), x first."""
        positions = np.indices(self._size, np.float32)[::-1].reshape(2, -1)
        return positions / widths("sxy", sxy, 2, "axes")[:, None]


def _costs(compat: Compatibility) -> float | np.ndarray:
    """A number, a vector, or the symmetric part of a matrix."""
    costs = real("compat", compat).astype(np.float32)
    if costs.ndim == 0:
        return float(costs)
    return (costs + costs.T) / 2 if costs.ndim == 2 and costs.shape[0] == costs.shape[1] else costs


def _member(name: str, value: Any, kind: type[IntEnum]) -> int:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name} must be {', '.join(kind.__members__)}, got {value!r}") from None
