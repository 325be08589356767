"""Bilateral potentials: cost by difference in position and colour, filtered on a lattice (8)."""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from crfgrad.checks import check_count
from crfgrad.features import Spacing, Widths, only_valid, positions_and_colours, spread_widths
from crfgrad.geometry import gaussian_taps, subset_taps
from crfgrad.lattice import Lattice, OwnPart, build_lattice, paired_taps
from crfgrad.operators import LatticeFilter, LatticeGaussian, Mixed, Operator
from crfgrad.ops import taps
from crfgrad.ops.filters import matrices
from crfgrad.ops.registry import on_cpu
from crfgrad.potentials.base import FreePotential, PairwisePotential, potts, symmetrised


class _LatticePotential(PairwisePotential):
    """Features, lattice and normalisation, which the free and the Gaussian potential share.

    K is D^-1/2 (S^T F S) D^-1/2 with S the splat, F the filter on the lattice and D what the
    Gaussian filter makes of ones: symmetric if F is, and independent of the size of the image.
    """

    def __init__(
        self,
        num_classes: int,
        radius: int,
        image_channels: int | None,
        symmetric: bool,
        exclude_self: bool,
        dimensions: int,
    ) -> None:
        super().__init__(num_classes, symmetric, dimensions)
        self.radius = check_count("radius", radius, least=1)
        usual = 3 if dimensions == 2 else 1
        self.image_channels = check_count(
            "image_channels", usual if image_channels is None else image_channels, least=0
        )
        self.exclude_self = exclude_self
        dimension = dimensions + self.image_channels
        self.feature_scale, gaussian = gaussian_taps(dimension, self.radius)
        self.gaussian_sum = sum(gaussian)
        self.register_buffer("gaussian", torch.tensor(gaussian), persistent=False)
        self.register_buffer("own_taps", subset_taps(dimension, self.radius).clone(), persistent=False)

    gaussian: Tensor
    own_taps: Tensor

    def spread(self, sigma_xy: Widths, sigma_value: Widths) -> Tensor:
        """One width for each feature x, y, ... and channel: (dimensions + C,)."""
        position = spread_widths("sigma_xy", sigma_xy, self.dimensions, "axes")
        return torch.tensor(position + spread_widths("sigma_value", sigma_value, self.image_channels))

    @abstractmethod
    def widths(self) -> Tensor:
        """Widths of the features x, y, ... and the channels of the image: (dimensions + C,)."""

    def lattice(self, image: Tensor, valid: Tensor | None = None, spacing: Spacing | None = None) -> Lattice:
        """The lattice of an image (B, C, *S), in units of the widths."""
        if self.image_channels and image.shape[1] != self.image_channels:
            raise ValueError(
                f"the image has {image.shape[1]} channels, {type(self).__name__} was built for "
                f"{self.image_channels}: give it image_channels={image.shape[1]}"
            )
        features = positions_and_colours(image[:, : self.image_channels], spacing)  # (B, *S, d)
        scale = self.feature_scale / self.widths().to(image.dtype)
        return build_lattice(only_valid(features * scale, valid), self.radius, padded=not on_cpu(image))

    def normalised_lattice(
        self, image: Tensor, valid: Tensor | None = None, spacing: Spacing | None = None
    ) -> tuple[Lattice, Tensor]:
        """The lattice with D^-1/2 on what each pixel gives and gets, and its neighbours."""
        lattice = self.lattice(image, valid, spacing)
        neighbours = lattice.neighbours(self.radius)
        ones = torch.ones_like(image[:, :1]) if valid is None else valid.to(image.dtype)
        ones = ones.reshape(-1, 1)  # (N, 1)
        around = lattice.slice(taps.filter_numbers(lattice.splat(ones), self.gaussian.to(image.dtype), neighbours))
        if valid is None:
            return lattice.scaled(around.rsqrt()), neighbours
        return lattice.scaled(ones * torch.where(ones > 0, around, 1).rsqrt()), neighbours

    @torch.no_grad()
    def check_values(self, image: Tensor, valid: Tensor | None = None) -> None:
        """See ``PairwisePotential.check_values``."""
        widths = self.widths()[self.dimensions :].tolist()
        if valid is not None:
            image = image.movedim(1, -1)[valid].T[None]  # (1, C, pixels)
        for channel, (width, values) in enumerate(zip(widths, image.unbind(1), strict=False)):
            spread = float(values.max() - values.min()) if values.numel() else 0.0
            if spread > 0 and not 1e-3 <= width / spread <= 1e3:
                raise ValueError(
                    f"{type(self).__name__} has the width {width:.3g} for channel {channel}, whose values spread over "
                    f"{spread:.3g}: give a sigma_value in proportion to what tells things apart in it"
                )

    def extra_repr(self) -> str:
        """Shown by print(crf)."""
        widths = ", ".join(f"{width:.3g}" for width in self.widths().tolist())
        return f"{super().extra_repr()}, widths=({widths}), exclude_self={self.exclude_self}"


class BilateralPotential(_LatticePotential, FreePotential):
    r"""A free filter on the permutohedral lattice for each pair of labels.

    .. math:: v_{il} = \sum_{j, m} k_{lm}(f_i - f_j)\, q_{jm}, \quad f = (x / \sigma_{xy}, y / \sigma_{xy},
        r / \sigma_{value}, g / \sigma_{value}, b / \sigma_{value})

    ``kernel()[n, l, m]`` is the cost that label l at a vertex pays for label m at tap n from it. It
    starts as a Gaussian times Potts, equal to ``GaussianBilateralPotential`` of the same widths.

    Args:
        num_classes: Number of labels L.
        sigma_xy: Width in position, in pixels or in the unit of the spacing: one number or (x, y), (x, y, z) in
            volumes.
        sigma_value: Width in the values of the image, in grey levels of 0..255 for colours: one for all channels or
            one for each.
        strength: Factor on the initial Gaussian. A pixel whose surroundings of like colour have
            another label pays about this cost.
        radius: Reach s in lattice steps: (s+1)^(d+1) - s^(d+1) taps, 63 for s = 1 and a colour image.
        image_channels: Channels of the image, 3, or 1 for volumes and sequences, if it is None; 0 uses the position
            alone.
        symmetric: Hold the filter at the opposite tap to the transpose.
        exclude_self: Take out what a pixel brings to itself through the lattice, exactly.
        dimensions: Of the images: 1 for sequences, 2, or 3 for volumes.

    Shape:
        - image: (B, C, *S)

    Example:
        >>> potential = BilateralPotential(num_classes=2, sigma_xy=5.0)
        >>> potential.kernel().shape
        torch.Size([63, 2, 2])
        >>> operator = potential.bind(torch.zeros(1, 3, 4, 6))
        >>> operator.matmul(torch.full((1, 4, 6, 2), 0.5)).shape
        torch.Size([1, 4, 6, 2])
    """

    def __init__(
        self,
        num_classes: int,
        sigma_xy: Widths = 40.0,
        sigma_value: Widths = 10.0,
        strength: float = 3.0,
        radius: int = 1,
        image_channels: int | None = None,
        symmetric: bool = True,
        exclude_self: bool = True,
        dimensions: int = 2,
    ) -> None:
        super().__init__(num_classes, radius, image_channels, symmetric, exclude_self, dimensions)
        # a buffer, saved with the filters: they mean nothing without their widths
        self.register_buffer("sigma", self.spread(sigma_xy, sigma_value))
        kernel = strength * self.gaussian[:, None, None] * potts(num_classes)
        self.start(kernel, unit=len(self.gaussian) / self.gaussian_sum)  # D divides by what Gaussian taps bring

    sigma: Tensor

    def widths(self) -> Tensor:
        """See ``_LatticePotential``."""
        return self.sigma

    def kernel(self, dtype: torch.dtype | None = None) -> Tensor:
        """The filters as they act, in a type: (taps, L, L)."""
        filters = self.filters.to(dtype or self.filters.dtype)
        if not self.symmetric:
            return filters / self.unit
        return (filters + taps.opposite_taps(filters).mT) / (2 * self.unit)

    def bind(self, image: Tensor, valid: Tensor | None = None, spacing: Spacing | None = None) -> Operator:
        """See ``PairwisePotential.bind``."""
        lattice, neighbours = self.normalised_lattice(image, valid, spacing)
        own = OwnPart.of(lattice) if self.exclude_self else None
        given = self.own_taps, self.unit, self.symmetric, self.exclude_self
        return LatticeFilter(lattice, neighbours, matrices(self.filters.to(image.dtype), *given), self.symmetric, own)


class GaussianBilateralPotential(_LatticePotential):
    r"""The bilateral potential with the shape held to a Gaussian of learned widths and strength.

    .. math:: k_{lm}(f_i - f_j) = \mu_{lm} \exp(-|f_i - f_j|^2 / 2) / \sqrt{D_i D_j}

    Args:
        num_classes: Number of labels L.
        sigma_xy: Initial width in position, in pixels or in the unit of the spacing: one number or (x, y), (x, y, z)
            for volumes.
        sigma_value: Initial width in the values of the image, in grey levels of 0..255 for colours: one for all
            channels or one for each.
        strength: Initial compatibility: a pixel whose surroundings of like colour have another label
            pays about this cost.
        radius: Reach in lattice steps; more is closer to a Gaussian, and slower.
        image_channels: Channels of the image, 3, or 1 for volumes and sequences, if it is None; 0 uses the position
            alone.
        symmetric: Hold mu symmetric.
        exclude_self: Take out what a pixel brings to itself through the lattice, exactly.
        dimensions: Of the images: 1 for sequences, 2, or 3 for volumes.

    Shape:
        - image: (B, C, *S)

    Example:
        >>> GaussianBilateralPotential(num_classes=2, sigma_value=(10, 10, 20)).widths().round().tolist()
        [40.0, 40.0, 10.0, 10.0, 20.0]
    """

    def __init__(
        self,
        num_classes: int,
        sigma_xy: Widths = 40.0,
        sigma_value: Widths = 10.0,
        strength: float = 3.0,
        radius: int = 1,
        image_channels: int | None = None,
        symmetric: bool = True,
        exclude_self: bool = True,
        dimensions: int = 2,
    ) -> None:
        super().__init__(num_classes, radius, image_channels, symmetric, exclude_self, dimensions)
        self.log_sigma = nn.Parameter(self.spread(sigma_xy, sigma_value).log())
        self.compatibility = nn.Parameter(strength * potts(num_classes))

    def widths(self) -> Tensor:
        """See ``_LatticePotential``."""
        return self.log_sigma.exp()

    def kernel(self) -> Tensor:
        """The filters as they act: (taps, L, L)."""
        return self.gaussian[:, None, None] * symmetrised(self.compatibility, self.symmetric)

    def bind(self, image: Tensor, valid: Tensor | None = None, spacing: Spacing | None = None) -> Operator:
        """See ``PairwisePotential.bind``."""
        lattice, neighbours = self.normalised_lattice(image, valid, spacing)
        gaussian = self.gaussian.to(image.dtype)
        own = None
        if self.exclude_self:
            numbers = paired_taps(gaussian, self.own_taps)[:, None, None]  # (2^d, 1, 1)
            own = OwnPart.of(lattice).apply(gaussian.new_ones(lattice.corners.shape[0], 1), numbers, symmetric=True)
        operator = LatticeGaussian(lattice, neighbours, gaussian, own)
        return Mixed(operator, symmetrised(self.compatibility, self.symmetric).to(image.dtype), self.symmetric)
