"""Colours of classes."""

import numpy as np

Colour = tuple[int, int, int]


def spread_hues(count: int) -> list[Colour]:
    """Distinct colours for ``count`` classes."""
    hues = 6 * np.arange(count) / count
    channels = [np.clip(np.abs((hues + shift) % 6 - 3) - 1, 0, 1) for shift in (0, 4, 2)]
    rgb = np.stack(channels, axis=1) * np.where(np.arange(count) % 2, 255, 170)[:, None]
    return [(int(r), int(g), int(b)) for r, g, b in rgb]
