r"""Filters as products in frequency space: overlapping tiles, their Fourier transforms, and all transposes.

.. math:: v_{il} = \sum_{d, m} k_{lm}(d)\, q_{(i + d)\, m}

is ``synthesise(product(analyse(q), transform(kernel)))``: every tile holds the pixels that its part of the result
needs (overlap-save), and at each frequency f a filter is one matrix K_f of labels by labels. Every function is a
linear map of real tensors, complex numbers being pairs in the last dimension, so that gradients of any order are
made of the functions of this module.

The first spatial dimension has the half of the frequencies that determines the rest.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

SIDES = {1: {17: 64, 33: 128, 129: 256}, 2: {5: 32, 19: 64, 63: 128, 129: 256}, 3: {5: 16, 11: 32, 33: 64}}
"""By dimensions: side of the tiles for kernels up to a size, as measured on a CPU."""


def analyse(q: Tensor, kernel_size: list[int]) -> Tensor:
    """Spectra of overlapping tiles of a field, with zeros around it.

    Shape:
        - q: (B, *S, C)
        - returns: (F, tiles, C, 2)
    """
    tiles = pad(q, _margins(q.shape[1:-1], kernel_size, [size // 2 for size in kernel_size]))
    for axis, (size, tile) in enumerate(zip(kernel_size, tile_size(kernel_size), strict=True)):
        tiles = tiles.unfold(1 + axis, tile, tile - size + 1)  # (B, *counts, C, *tile)
    return _spectra(tiles, tile_size(kernel_size))


def analyse_transpose(spectra: Tensor, shape: list[int], kernel_size: list[int]) -> Tensor:
    """Transpose of ``analyse``: overlapping tiles are added up.

    Shape:
        - spectra: (F, tiles, C, 2)
        - shape: [B, *S]
        - returns: (B, *S, C)
    """
    tile, step, counts = tile_size(kernel_size), _steps(kernel_size), _counts(shape, kernel_size)
    field = _tiles(spectra * math.prod(tile) / _weights(tile, spectra), shape, kernel_size)  # (B, *counts, C, *tile)
    wide = [count * one + size - 1 for count, one, size in zip(counts, step, kernel_size, strict=True)]
    for axis in reversed(range(len(tile))):
        after = [*field.shape[: 1 + axis], wide[axis], *field.shape[2 + axis : -1]]
        field = torch.ops.aten.unfold_backward(field, after, 1 + axis, tile[axis], step[axis])
    for axis, size in enumerate(kernel_size):
        field = field.narrow(1 + axis, size // 2, shape[1 + axis])
    return field.contiguous()


def synthesise(spectra: Tensor, shape: list[int], kernel_size: list[int]) -> Tensor:
    """A field from the spectra of its filtered tiles, of which the last part is valid.

    Shape:
        - spectra: (F, tiles, C, 2)
        - shape: [B, *S]
        - returns: (B, *S, C)
    """
    dims, step, counts = len(kernel_size), _steps(kernel_size), _counts(shape, kernel_size)
    tiles = _tiles(spectra, shape, kernel_size)  # (B, *counts, C, *tile)
    for axis, size in enumerate(kernel_size):
        tiles = tiles.narrow(axis - dims, size - 1, step[axis])
    pairs = [place for axis in range(dims) for place in (1 + axis, 2 + dims + axis)]
    field = tiles.permute(0, *pairs, 1 + dims)  # (B, n_1, step_1, n_2, step_2, ..., C)
    field = field.reshape(shape[0], *(n * one for n, one in zip(counts, step, strict=True)), spectra.shape[2])
    for axis, size in enumerate(shape[1:]):
        field = field.narrow(1 + axis, 0, size)
    return field.contiguous()


def synthesise_transpose(field: Tensor, kernel_size: list[int]) -> Tensor:
    """Transpose of ``synthesise``.

    Shape:
        - field: (B, *S, C)
        - returns: (F, tiles, C, 2)
    """
    tile, dims = tile_size(kernel_size), len(kernel_size)
    tiles = pad(field, _margins(field.shape[1:-1], kernel_size, [0] * dims, overlap=False))
    for axis, step in enumerate(_steps(kernel_size)):
        tiles = tiles.unfold(1 + axis, step, step)  # (B, *counts, C, *step)
    tiles = pad(tiles, [margin for size in reversed(kernel_size) for margin in (size - 1, 0)])
    spectra = _spectra(tiles, tile)
    return spectra * (_weights(tile, spectra) / math.prod(tile))


def transform(kernel: Tensor) -> Tensor:
    """The matrices K_f of a filter.

    Shape:
        - kernel: (C_out, C_in, *K)
        - returns: (F, C_in, C_out, 2)
    """
    dims = kernel.ndim - 2
    tile = tile_size(list(kernel.shape[2:]))
    spectrum = torch.fft.rfftn(kernel.flip(*range(2, kernel.ndim)), s=_rotate(tile), dim=_rotate(range(-dims, 0)))
    ordered = spectrum.permute(*range(2, kernel.ndim), 1, 0)  # (*f, C_in, C_out)
    return torch.view_as_real(ordered.reshape(-1, *ordered.shape[-2:]).contiguous())


def transform_transpose(spectrum: Tensor, shape: list[int]) -> Tensor:
    """Transpose of ``transform``.

    Shape:
        - spectrum: (F, C_in, C_out, 2)
        - shape: [C_out, C_in, *K]
        - returns: (C_out, C_in, *K)
    """
    dims = len(shape) - 2
    tile = tile_size(list(shape[2:]))
    weighted = torch.view_as_complex(spectrum * math.prod(tile) / _weights(tile, spectrum))
    ordered = weighted.reshape(*_frequencies(tile), *spectrum.shape[1:3]).movedim((-1, -2), (0, 1))
    kernel = torch.fft.irfftn(ordered, s=_rotate(tile), dim=_rotate(range(-dims, 0)))
    for axis, size in enumerate(shape[2:]):
        kernel = kernel.narrow(2 + axis, 0, size)
    return kernel.flip(*range(2, 2 + dims)).contiguous()


def product(spectra: Tensor, matrices: Tensor) -> Tensor:
    """Q_f K_f at every frequency f.

    Shape:
        - spectra: (F, tiles, C_in, 2)
        - matrices: (F, C_in, C_out, 2)
        - returns: (F, tiles, C_out, 2)
    """
    return torch.view_as_real(torch.bmm(torch.view_as_complex(spectra), torch.view_as_complex(matrices)))


def product_field(grad: Tensor, matrices: Tensor) -> Tensor:
    """G_f K_f^H at every frequency: the transpose of ``product`` with respect to the spectra.

    Shape:
        - grad: (F, tiles, C_out, 2)
        - matrices: (F, C_in, C_out, 2)
        - returns: (F, tiles, C_in, 2)
    """
    return torch.view_as_real(torch.bmm(torch.view_as_complex(grad), torch.view_as_complex(matrices).mH))


def product_kernel(grad: Tensor, spectra: Tensor) -> Tensor:
    """Q_f^H G_f at every frequency: the transpose of ``product`` with respect to the matrices.

    Shape:
        - grad: (F, tiles, C_out, 2)
        - spectra: (F, tiles, C_in, 2)
        - returns: (F, C_in, C_out, 2)
    """
    return torch.view_as_real(torch.bmm(torch.view_as_complex(spectra).mH, torch.view_as_complex(grad)))


def tile_size(kernel_size: list[int]) -> list[int]:
    """Sides of the tiles: powers of two, by the kernel's size alone."""
    return [_side(size, len(kernel_size)) for size in kernel_size]


def frequencies(kernel_size: list[int]) -> int:
    """How many frequencies a spectrum has."""
    return math.prod(_frequencies(tile_size(kernel_size)))


def _side(size: int, dims: int) -> int:
    for largest, side in SIDES[dims].items():
        if size <= largest:
            return side
    return 2 ** math.ceil(math.log2(2 * size))


def _steps(kernel_size: list[int]) -> list[int]:
    """Valid pixels of a tile."""
    return [tile - size + 1 for tile, size in zip(tile_size(kernel_size), kernel_size, strict=True)]


def _counts(shape: list[int], kernel_size: list[int]) -> list[int]:
    """Tiles along each dimension of a field (B, *S, ...)."""
    return [-(-size // step) for size, step in zip(shape[1:], _steps(kernel_size), strict=False)]


def _margins(sizes: Sequence[int], kernel_size: list[int], before: list[int], overlap: bool = True) -> list[int]:
    """Zeros around a field, as ``pad`` expects them, such that tiles fit."""
    margins = [0, 0]
    counts = _counts([1, *sizes], kernel_size)
    places = zip(sizes, kernel_size, _steps(kernel_size), counts, before, strict=True)
    for size, taps, step, count, first in reversed(list(places)):
        margins += [first, count * step + (taps - 1 if overlap else 0) - first - size]
    return margins


def _rotate(entries: range | list[int]) -> list[int]:
    """The first entry last: the last dimension of a real transform is the one that is halved."""
    return [*entries[1:], entries[0]]


def _frequencies(tile: list[int]) -> list[int]:
    """How many frequencies there are along each dimension."""
    return [tile[0] // 2 + 1, *tile[1:]]


def _weights(tile: list[int], like: Tensor) -> Tensor:
    """How many frequencies of a whole spectrum each of the half stands for: (F, 1, 1, 1)."""
    weights = like.new_full((tile[0] // 2 + 1,), 2)
    weights[0] = weights[-1] = 1
    return weights.repeat_interleave(math.prod(tile[1:])).view(-1, 1, 1, 1)


def _spectra(tiles: Tensor, tile: list[int]) -> Tensor:
    """(B, *counts, C, *tile) to (F, tiles, C, 2)."""
    dims = len(tile)
    spectra = torch.fft.rfftn(tiles, s=_rotate(tile), dim=_rotate(range(-dims, 0)))
    ordered = spectra.permute(*range(2 + dims, 2 + 2 * dims), *range(2 + dims))  # (*f, B, *counts, C)
    return torch.view_as_real(ordered.reshape(math.prod(_frequencies(tile)), -1, tiles.shape[1 + dims]).contiguous())


def _tiles(spectra: Tensor, shape: list[int], kernel_size: list[int]) -> Tensor:
    """(F, tiles, C, 2) to (B, *counts, C, *tile)."""
    dims, tile = len(kernel_size), tile_size(kernel_size)
    counts = _counts(shape, kernel_size)
    ordered = torch.view_as_complex(spectra).view(*_frequencies(tile), shape[0], *counts, spectra.shape[2])
    ordered = ordered.permute(*range(dims, 2 + 2 * dims), *range(dims))  # (B, *counts, C, *f)
    return torch.fft.irfftn(ordered, s=_rotate(tile), dim=_rotate(range(-dims, 0)))
