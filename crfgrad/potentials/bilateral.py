"""Bilateral potentials: cost by difference in position and colour, filtered on a lattice (8)."""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from crfgrad.checks import check_count
from crfgrad.features import Widths, positions, spread_widths
from crfgrad.lattice import PermutohedralLattice, gaussian_taps, opposite_taps
from crfgrad.potentials.base import Message, Potential, mix_labels, potts, symmetrised

FEW_LABELS = 8  # a matrix for each pixel, once for all iterations; 0.5 GB for 8 labels at 1024 x 2048


class _LatticePotential(Potential):
    """Features, lattice and normalisation, which the free and the Gaussian potential share.

    K is D^-1/2 (S^T F S) D^-1/2 with S the splat, F the filter on the lattice and D what the
    Gaussian filter makes of ones: symmetric if F is, and independent of the size of the image.
    """

    def __init__(self, num_classes: int, radius: int, image_channels: int, symmetric: bool, exclude_self: bool) -> None:
        super().__init__(num_classes, symmetric)
        self.radius = check_count("radius", radius, least=1)
        self.image_channels = check_count("image_channels", image_channels, least=0)
        self.exclude_self = exclude_self
        self.feature_scale, gaussian = gaussian_taps(2 + image_channels, self.radius)
        self.register_buffer("gaussian", torch.tensor(gaussian), persistent=False)

    gaussian: Tensor

    @abstractmethod
    def widths(self) -> Tensor:
        """Widths of the features x, y and the channels of the image: (2 + C,)."""

    def lattice(self, image: Tensor) -> PermutohedralLattice:
        """The lattice of an image (B, C, H, W), in units of the widths."""
        if self.image_channels and image.shape[1] != self.image_channels:
            raise ValueError(
                f"the image has {image.shape[1]} channels, {type(self).__name__} was built for "
                f"{self.image_channels}: give it image_channels={image.shape[1]}"
            )
        features = torch.cat([positions(image), image[:, : self.image_channels]], dim=1)  # (B, d, H, W)
        return PermutohedralLattice(
            features * (self.feature_scale / self.widths().to(image.dtype))[:, None, None], self.radius
        )

    def extra_repr(self) -> str:
        """Shown by print(crf)."""
        widths = ", ".join(f"{width:.3g}" for width in self.widths().tolist())
        return f"{super().extra_repr()}, widths=({widths}), exclude_self={self.exclude_self}"

    def normalised_lattice(self, image: Tensor) -> PermutohedralLattice:
        """The lattice with D^-1/2 on what each pixel gives and gets."""
        lattice = self.lattice(image)
        ones = torch.ones_like(image[:, :1])
        return lattice.scaled(lattice.slice(lattice.filter(lattice.splat(ones), self.gaussian.to(image.dtype))).rsqrt())


class BilateralPotential(_LatticePotential):
    r"""A free filter on the permutohedral lattice for each pair of labels.

    .. math:: v_{il} = \sum_{j, m} k_{lm}(f_i - f_j)\, q_{jm}, \quad f = (x / \sigma_{xy}, y / \sigma_{xy},
        r / \sigma_{rgb}, g / \sigma_{rgb}, b / \sigma_{rgb})

    ``kernel()[n, l, m]`` is the cost that label l at a vertex pays for label m at tap n from it. It
    starts as a Gaussian times Potts, equal to ``GaussianBilateralPotential`` of the same widths.

    Args:
        num_classes: Number of labels L.
        sigma_xy: Width of the features in pixels, one number or (x, y).
        sigma_rgb: Width in grey levels of 0..255, one for all channels of the image or one for each.
        scale: Factor on the initial Gaussian. A pixel whose surroundings of like colour have
            another label pays about this cost.
        radius: Reach s in lattice steps: (s+1)^(d+1) - s^(d+1) taps, 63 for s = 1 and a colour image.
        image_channels: Channels of the image; 0 uses the position alone.
        symmetric: Hold the filter at the opposite tap to the transpose.
        exclude_self: Take out what a pixel brings to itself through the lattice, exactly.

    Shape:
        - image: (B, C, H, W), colours 0..255
        - message: (B, L, H, W) -> (B, L, H, W)

    Example:
        >>> potential = BilateralPotential(num_classes=2, sigma_xy=5.0)
        >>> potential.kernel().shape
        torch.Size([63, 2, 2])
        >>> message = potential.bind(torch.zeros(1, 3, 4, 6))
        >>> message(torch.full((1, 2, 4, 6), 0.5)).shape
        torch.Size([1, 2, 4, 6])
    """

    def __init__(
        self,
        num_classes: int,
        sigma_xy: Widths = 40.0,
        sigma_rgb: Widths = 10.0,
        scale: float = 3.0,
        radius: int = 1,
        image_channels: int = 3,
        symmetric: bool = True,
        exclude_self: bool = True,
    ) -> None:
        super().__init__(num_classes, radius, image_channels, symmetric, exclude_self)
        # a buffer, saved with the weights: learned filters mean nothing without their widths
        self.register_buffer("sigma", _widths(sigma_xy, sigma_rgb, image_channels))
        self.weight = nn.Parameter(scale * self.gaussian[:, None, None] * potts(num_classes))

    sigma: Tensor

    def widths(self) -> Tensor:
        """See ``_LatticePotential``."""
        return self.sigma

    def kernel(self) -> Tensor:
        """The filters as they act: (taps, L, L)."""
        if not self.symmetric:
            return self.weight
        return (self.weight + opposite_taps(self.weight).mT) / 2

    def bind(self, image: Tensor) -> Message:
        """See ``Potential.bind``."""
        lattice = self.normalised_lattice(image)
        kernel = self.kernel().to(image.dtype)
        own = None
        if self.exclude_self and self.num_classes <= FEW_LABELS:
            own = _self_matrices(lattice, kernel)

        def message(q: Tensor, adjoint: bool = False) -> Tensor:
            weights = opposite_taps(kernel).mT if adjoint else kernel
            received = lattice.slice(lattice.filter(lattice.splat(q), weights))
            if own is not None:
                matrices = own.mT if adjoint else own
                return received - (matrices @ q.movedim(1, -1)[..., None]).squeeze(-1).movedim(-1, 1)
            return received - lattice.filter_self(q, weights) if self.exclude_self else received

        return message


class GaussianBilateralPotential(_LatticePotential):
    r"""The bilateral potential with the shape held to a Gaussian of learned widths and strength.

    .. math:: k_{lm}(f_i - f_j) = \mu_{lm} \exp(-|f_i - f_j|^2 / 2) / \sqrt{D_i D_j}

    Args:
        num_classes: Number of labels L.
        sigma_xy: Initial width in pixels, one number or (x, y).
        sigma_rgb: Initial width in grey levels of 0..255, one for all channels or one for each.
        strength: Initial compatibility: a pixel whose surroundings of like colour have another label
            pays about this cost.
        radius: Reach in lattice steps; more is closer to a Gaussian, and slower.
        image_channels: Channels of the image; 0 uses the position alone.
        symmetric: Hold mu symmetric.
        exclude_self: Take out what a pixel brings to itself through the lattice, exactly.

    Shape:
        - image: (B, C, H, W), colours 0..255
        - message: (B, L, H, W) -> (B, L, H, W)

    Example:
        >>> GaussianBilateralPotential(num_classes=2, sigma_rgb=(10, 10, 20)).widths().round().tolist()
        [40.0, 40.0, 10.0, 10.0, 20.0]
    """

    def __init__(
        self,
        num_classes: int,
        sigma_xy: Widths = 40.0,
        sigma_rgb: Widths = 10.0,
        strength: float = 3.0,
        radius: int = 1,
        image_channels: int = 3,
        symmetric: bool = True,
        exclude_self: bool = True,
    ) -> None:
        super().__init__(num_classes, radius, image_channels, symmetric, exclude_self)
        self.log_sigma = nn.Parameter(_widths(sigma_xy, sigma_rgb, image_channels).log())
        self.compatibility = nn.Parameter(strength * potts(num_classes))

    def widths(self) -> Tensor:
        """See ``_LatticePotential``."""
        return self.log_sigma.exp()

    def kernel(self) -> Tensor:
        """The filters as they act: (taps, L, L)."""
        return self.gaussian[:, None, None] * symmetrised(self.compatibility, self.symmetric)

    def bind(self, image: Tensor) -> Message:
        """See ``Potential.bind``."""
        lattice = self.normalised_lattice(image)
        taps = self.gaussian.to(image.dtype)
        own = lattice.filter_self(torch.ones_like(image[:, :1]), taps) if self.exclude_self else 0
        compatibility = symmetrised(self.compatibility, self.symmetric).to(image.dtype)

        def message(q: Tensor, adjoint: bool = False) -> Tensor:
            received = lattice.slice(lattice.filter(lattice.splat(q), taps)) - own * q
            return mix_labels(compatibility, received, adjoint)

        return message


def _self_matrices(lattice: PermutohedralLattice, kernel: Tensor) -> Tensor:
    """What filters (taps, L, L) bring from each pixel to itself, once for all iterations: (B, H, W, L, L)."""
    ones = kernel.new_ones(lattice.batch, 1, *lattice.shape)
    return lattice.filter_self(ones, kernel.flatten(1)[..., None]).movedim(1, -1).unflatten(-1, kernel.shape[1:])


def _widths(sigma_xy: Widths, sigma_rgb: Widths, image_channels: int) -> Tensor:
    """One width for each feature x, y and channel: (2 + C,)."""
    position = spread_widths("sigma_xy", sigma_xy, 2)
    return torch.tensor(position + spread_widths("sigma_rgb", sigma_rgb, image_channels))
