"""The gated CRF loss as its authors' implementation is called, with all that it returns."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate, normalize, pad

from crfgrad.checks import check_count, values_are_checked
from crfgrad.features import positions, spread_widths
from crfgrad.regularizers.kernels import Kernel, check_kernels
from crfgrad.regularizers.window import WindowKernel, window_energy

Downsamplers = Mapping[str, Callable[[Tensor, tuple[int, int]], Tensor]]


def established_gated_crf(
    y_hat_softmax: Tensor,
    kernels_desc: Sequence[Kernel],
    kernels_radius: int,
    sample: Mapping[str, Tensor],
    height_input: int,
    width_input: int,
    mask_src: Tensor | None = None,
    mask_dst: Tensor | None = None,
    compatibility: Tensor | None = None,
    custom_modality_downsamplers: Downsamplers | None = None,
    out_kernels_vis: bool = False,
    check_colour: bool = True,
) -> dict[str, Tensor]:
    """See ``GatedCRFLoss``. Nothing that is given is changed."""
    if y_hat_softmax.dim() != 4 or not y_hat_softmax.is_floating_point():
        raise ValueError(f"y_hat_softmax must be floating-point (N, C, H, W), got {tuple(y_hat_softmax.shape)}")
    radius = check_count("kernels_radius", kernels_radius, least=1)
    check_kernels(kernels_desc, ("xy", *sample))
    size = (int(y_hat_softmax.shape[2]), int(y_hat_softmax.shape[3]))
    if height_input % size[0] or width_input % size[1] or height_input * size[1] != width_input * size[0]:
        raise ValueError(
            f"the input is {height_input} x {width_input} and y_hat_softmax {size[0]} x {size[1]}: the one must be a "
            "multiple of the other, the same for height and width"
        )
    if check_colour and "rgb" in sample:
        _check_scale(sample["rgb"])
    downsamplers = custom_modality_downsamplers or {}
    with torch.autocast(y_hat_softmax.device.type, enabled=False), torch.no_grad():
        y = y_hat_softmax.to(torch.promote_types(y_hat_softmax.dtype, torch.float32))
        kernels = [_kernel(kernel, sample, y, downsamplers) for kernel in kernels_desc]
        source, destination = (
            _mask(name, mask, y, downsamplers) for name, mask in (("mask_src", mask_src), ("mask_dst", mask_dst))
        )
        pixels = y.new_tensor(y[:, 0].numel())
        for mask in (source, destination):
            pixels = pixels if mask is None else mask.sum().clamp_min(1)
        beyond = y.new_zeros(()) if source is not None else _beyond_the_border(kernels, radius, destination)
    with torch.autocast(y_hat_softmax.device.type, enabled=False):
        y = y_hat_softmax.to(y.dtype)
        mu = None if compatibility is None else _normalised(compatibility, y)
        energy = window_energy(y, kernels, radius, source, destination, mu)
        result = {"loss": (energy if mu is not None else energy + beyond) / pixels}
    if out_kernels_vis:
        drawn = _drawn(kernels, radius, source, destination)
        result["kernels_vis"] = interpolate(drawn, (height_input, width_input), mode="nearest")
    return result


def _check_scale(colours: Tensor) -> None:
    if values_are_checked(colours):
        low, high = (float(bound) for bound in torch.aminmax(colours.detach()))
        if low < -0.1 or high > 1.1:
            raise ValueError(
                f'sample["rgb"] runs from {low:.3g} to {high:.3g}, but its width, such as 0.1, is of colours 0..1: '
                "divide colours 0..255 by 255 (for other channels, build the loss with check_colour=False)"
            )


def _kernel(kernel: Kernel, sample: Mapping[str, Tensor], like: Tensor, downsamplers: Downsamplers) -> WindowKernel:
    features = []
    for name, width in kernel.items():
        if name != "weight":
            xy = name == "xy"
            feature = (
                positions(like).movedim(-1, 1) if xy else _downsampled(name, sample[name].detach(), like, downsamplers)
            )
            widths = like.new_tensor(spread_widths(name, width, feature.shape[1]))
            features.append(feature / widths[:, None, None])
    return WindowKernel(float(kernel["weight"]), torch.cat(features, 1))  # type: ignore[arg-type]


def _downsampled(name: str, image: Tensor, like: Tensor, downsamplers: Downsamplers) -> Tensor:
    size = (int(like.shape[2]), int(like.shape[3]))
    smaller = downsamplers.get(name, adaptive_avg_pool2d)(image.to(like.dtype), size)
    if smaller.dim() != 4 or len(smaller) != len(like) or smaller.shape[2:] != size or smaller.device != like.device:
        raise ValueError(
            f'sample["{name}"] is {tuple(smaller.shape)} on {smaller.device} at the size of y_hat_softmax, which is '
            f"{tuple(like.shape)} on {like.device}: give as many images on the same device"
        )
    return smaller


def _mask(name: str, mask: Tensor | None, like: Tensor, downsamplers: Downsamplers) -> Tensor | None:
    """A mask at the size of the probabilities: 1 where all of what was given is, else 0."""
    if mask is None:
        return None
    if mask.dim() != 4 or mask.shape[:2] != (len(like), 1) or not mask.is_floating_point():
        raise ValueError(f"{name} must be floating-point ({len(like)}, 1, H, W), got {mask.dtype} {tuple(mask.shape)}")
    if mask.shape[2:] != like.shape[2:]:
        mask = _downsampled("mask", mask, like, downsamplers)
    return mask.to(like.dtype).masked_fill(~(mask >= 1), 0)  # NaN, too


def _normalised(compatibility: Tensor, like: Tensor) -> Tensor:
    labels = like.shape[1]
    if compatibility.shape != (labels, labels) or (compatibility < 0).any() or compatibility.diagonal().any():
        raise ValueError(
            f"compatibility must be ({labels}, {labels}) of costs that are not negative, with 0 on its diagonal; got "
            f"{tuple(compatibility.shape)}"
        )
    return (labels - 1) * normalize(compatibility.to(like), p=1, dim=1)


def _beyond_the_border(kernels: Sequence[WindowKernel], radius: int, destination: Tensor | None) -> Tensor:
    """What the established loss counts for partners outside of the image, whose features it takes for 0."""
    some = kernels[0].features
    inside = [
        (1 + at.clamp_max(radius) + (len(at) - 1 - at).clamp_max(radius))
        for at in (torch.arange(size, device=some.device) for size in some.shape[2:])
    ]
    outside = (2 * radius + 1) ** 2 - inside[0][:, None] * inside[1]  # (H, W)
    to_zero = sum(one.weight * (-0.5 * one.features.square().sum(1, keepdim=True)).exp() for one in kernels)
    counted = to_zero * outside if destination is None else to_zero * outside * destination
    return counted.sum()


@torch.no_grad()
def _drawn(kernels: Sequence[WindowKernel], radius: int, source: Tensor | None, destination: Tensor | None) -> Tensor:
    """The windows of pixels that lie one window apart, side by side: (N, 1, H, W)."""
    diameter = 2 * radius + 1
    height, width = kernels[0].features.shape[2:]
    padded = [kernel._replace(features=pad(kernel.features, [radius] * 4)) for kernel in kernels]
    sent = None if source is None else pad(source, [radius] * 4)

    def places(dy: int, dx: int) -> tuple[slice, slice, slice, slice]:
        """The pixels at a shift from the middles of the windows, in what is padded."""
        rows, columns = slice(radius + dy, height + dy, diameter), slice(radius + dx, width + dx, diameter)
        return slice(None), slice(None), rows, columns

    middles, windows = places(radius, radius), []
    for dy in range(diameter):
        for dx in range(diameter):
            there = places(dy, dx)
            window = torch.stack([kernel.between(middles, there) for kernel in padded]).sum(0)
            if sent is not None:
                window = window * sent[there]
            if destination is not None:
                window = window * destination[..., radius::diameter, radius::diameter]
            windows.append(window * (dy != radius or dx != radius))
    drawn = torch.stack(windows, dim=2).unflatten(2, (diameter, diameter))  # (N, 1, D, D, rows, columns)
    drawn = drawn.permute(0, 1, 4, 2, 5, 3).flatten(4).flatten(2, 3)[..., :height, :width]
    return pad(drawn, [0, width - drawn.shape[-1], 0, height - drawn.shape[-2]])
