"""Compiled twins of ``crfgrad.ops.spectra``: the same functions, for tensors on a CPU."""

import math
from functools import lru_cache

import numpy as np
from torch import Tensor

from crfgrad.kernels import frequencies
from crfgrad.kernels.fourier import LANES, LONGEST, pairs, powers
from crfgrad.kernels.matrix import column_parts
from crfgrad.kernels.parallel import ranges, run, share
from crfgrad.kernels.tiles import Layout, Plan, Triple, backward, forward
from crfgrad.ops import spectra as plain
from crfgrad.ops.spectra import tile_size

CACHE = 1 << 20  # bytes for the tiles that are transformed at a time


def analyse(q: Tensor, kernel_size: list[int]) -> Tensor:
    """See ``crfgrad.ops.spectra``."""
    if max(tile_size(kernel_size)) > LONGEST:
        return plain.analyse(q, kernel_size)
    return _to_spectra(q, _analysis(list(q.shape[1:-1]), kernel_size), 1, 1)


def analyse_transpose(spectra: Tensor, shape: list[int], kernel_size: list[int]) -> Tensor:
    """See ``crfgrad.ops.spectra``."""
    if max(tile_size(kernel_size)) > LONGEST:
        return plain.analyse_transpose(spectra, shape, kernel_size)
    layout = _analysis(shape[1:], kernel_size)
    slab = layout.counts[1] * layout.counts[2]
    slabs = [(begin, begin + slab) for begin in range(0, spectra.shape[1], slab)]
    # neighbours overlap: no two of them are added at the same time, and the order does not depend on the threads
    return _from_spectra(spectra, shape, layout, 1, 0.5, [slabs[::2], slabs[1::2]])


def synthesise(spectra: Tensor, shape: list[int], kernel_size: list[int]) -> Tensor:
    """See ``crfgrad.ops.spectra``."""
    tile = tile_size(kernel_size)
    if max(tile) > LONGEST:
        return plain.synthesise(spectra, shape, kernel_size)
    parts = ranges(spectra.shape[1], _group(spectra.shape[0], spectra.shape[2]))
    return _from_spectra(spectra, shape, _synthesis(shape[1:], kernel_size), 1 / math.prod(tile), 1, [parts])


def synthesise_transpose(field: Tensor, kernel_size: list[int]) -> Tensor:
    """See ``crfgrad.ops.spectra``."""
    tile = tile_size(kernel_size)
    if max(tile) > LONGEST:
        return plain.synthesise_transpose(field, kernel_size)
    return _to_spectra(field, _synthesis(list(field.shape[1:-1]), kernel_size), 1 / math.prod(tile), 2)


def transform(kernel: Tensor) -> Tensor:
    """See ``crfgrad.ops.spectra``."""
    sizes = list(kernel.shape[2:])
    if max(tile_size(sizes)) > LONGEST:
        return plain.transform(kernel)
    field = kernel.flip(*range(2, kernel.ndim)).movedim(0, -1)  # (C_in, *K, C_out)
    return _to_spectra(field, _whole(sizes), 1, 1)


def transform_transpose(spectrum: Tensor, shape: list[int]) -> Tensor:
    """See ``crfgrad.ops.spectra``."""
    sizes = list(shape[2:])
    if max(tile_size(sizes)) > LONGEST:
        return plain.transform_transpose(spectrum, shape)
    parts = ranges(shape[1], _group(spectrum.shape[0], shape[0]))
    field = _from_spectra(spectrum, [shape[1], *sizes], _whole(sizes), 1, 0.5, [parts])  # (C_in, *K, C_out)
    return field.movedim(-1, 0).flip(*range(2, len(shape))).contiguous()


def product(spectra: Tensor, matrices: Tensor) -> Tensor:
    """See ``crfgrad.ops.spectra``."""
    return _multiplied(spectra, matrices, False)


def product_field(grad: Tensor, matrices: Tensor) -> Tensor:
    """See ``crfgrad.ops.spectra``."""
    return _multiplied(grad, matrices, True)


def product_kernel(grad: Tensor, spectra: Tensor) -> Tensor:
    """See ``crfgrad.ops.spectra``."""
    left, right = (tensor.detach().contiguous().flatten(2).numpy() for tensor in (spectra, grad))
    out = grad.new_empty(len(grad), spectra.shape[2], *grad.shape[2:])
    for parts in column_parts(right.shape[2], right.dtype):
        run(frequencies.correlate_at, len(out), parts, left, right, out.flatten(2).numpy(), grain=16)
    return out


def _multiplied(spectra: Tensor, matrices: Tensor, transposed: bool) -> Tensor:
    left, right = (tensor.detach().contiguous().flatten(2).numpy() for tensor in (spectra, matrices))
    out = spectra.new_empty(*spectra.shape[:2], matrices.shape[1 if transposed else 2], 2)
    product = out.flatten(2).numpy()
    for parts in column_parts(product.shape[2], product.dtype):
        run(frequencies.multiply_at, len(out), parts, left, right, transposed, product, grain=16)
    return out


def _to_spectra(field: Tensor, layout: Layout, factor: float, factor_inside: float) -> Tensor:
    """Spectra of tiles, times a factor; those that stand for two frequencies times another one."""
    channels, tiles = field.shape[-1], field.shape[0] * math.prod(layout.counts)
    out = field.new_empty(_frequencies(layout.tile), tiles, channels, 2)
    pixels, spectra = _flat(field, out)
    scale = _scale(layout.tile, factor / 2, factor_inside, pixels.dtype)
    group = _group(len(out), channels)
    run(forward, tiles, pixels, spectra, layout, _plan(layout.tile, pixels.dtype), scale, group, grain=group)
    return out


def _from_spectra(
    spectra: Tensor,
    shape: list[int],
    layout: Layout,
    factor: float,
    factor_inside: float,
    rounds: list[list[tuple[int, int]]],
) -> Tensor:
    """Sum of tiles; each round has ranges of them that may be added at the same time."""
    out = spectra.new_zeros(*shape, spectra.shape[2])
    pixels, numbers = _flat(out, spectra)
    scale = _scale(layout.tile, factor, factor_inside, numbers.dtype)
    group = min(_group(len(spectra), spectra.shape[2]), max(stop - start for start, stop in rounds[0]))
    given = numbers, pixels, layout, _plan(layout.tile, numbers.dtype), scale, group

    def add(tiles: list[tuple[int, int]]) -> None:
        for some in tiles:
            backward(*given, *some)

    for tiles in rounds:
        share(lambda first, last, tiles=tiles: add(tiles[first:last]), ranges(len(tiles), 1))  # type: ignore[misc]
    return out


def _flat(field: Tensor, spectra: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (B * S, C) and numbers (F, tiles * C, 2)."""
    pixels, numbers = field.detach().contiguous(), spectra.detach().contiguous()
    return pixels.flatten(0, -2).numpy(), numbers.flatten(1, 2).numpy()


def _analysis(sizes: list[int], kernel_size: list[int]) -> Layout:
    before = [-(size // 2) for size in kernel_size]
    return _layout(sizes, kernel_size, before, [0] * len(sizes), tile_size(kernel_size))


def _synthesis(sizes: list[int], kernel_size: list[int]) -> Layout:
    invalid = [size - 1 for size in kernel_size]
    return _layout(sizes, kernel_size, [-margin for margin in invalid], invalid, tile_size(kernel_size))


def _whole(sizes: list[int]) -> Layout:
    """One tile for each image, which is a kernel."""
    none = [0] * len(sizes)
    return _layout(sizes, sizes, none, none, sizes)._replace(counts=(1, 1, 1))


def _layout(sizes: list[int], kernel_size: list[int], origin: list[int], first: list[int], last: list[int]) -> Layout:
    tile = tile_size(kernel_size)
    step = [side - size + 1 for side, size in zip(tile, kernel_size, strict=True)]
    counts = [-(-size // one) for size, one in zip(sizes, step, strict=True)]
    fields = zip((sizes, tile, counts, step, origin, first, last), (1, 1, 1, 1, 0, 0, 1), strict=True)
    return Layout(*(_three(list(entries), fill) for entries, fill in fields))


def _three(entries: list[int], fill: int) -> Triple:
    """Entries for three dimensions: the last two dimensions of an image are the first and the third."""
    first, second, third = [*entries[:1], *[fill] * (3 - len(entries)), *entries[1:]]
    return first, second, third


def _frequencies(tile: Triple) -> int:
    return (tile[0] // 2 + 1) * tile[1] * tile[2]


def _group(frequencies: int, channels: int) -> int:
    """How many tiles are transformed at a time."""
    return max(1, min(4 * LANES, CACHE // (8 * frequencies)) // channels)


def _scale(tile: Triple, ends: float, factor_inside: float, dtype: np.dtype) -> np.ndarray:
    """Factors of frequencies along the first dimension; frequencies k and n / 2 - k have the same."""
    scale = np.full(tile[0] // 4 + 1, ends * factor_inside)
    scale[0] = ends
    return scale.astype(dtype)


@lru_cache
def _plan(tile: Triple, dtype: np.dtype) -> Plan:
    first, second, third = (powers(side, dtype) for side in (tile[0] // 2, *tile[1:]))
    return Plan(first, second, third, pairs(np.arange(tile[0] // 4 + 1) / tile[0], dtype))
