"""Pictures show what they say they show."""

import numpy as np
import torch

from crfgrad import BilateralPotential, GaussianBilateralPotential
from lightning_modules.pictures import blend, draw_filters, draw_panel, lattice_filter_slice, paint

COLOURS = [(255, 0, 0), (0, 0, 255)]


def test_labels_and_distributions_get_their_colours() -> None:
    labels = torch.tensor([[0, 1], [255, 1]])
    assert paint(labels, COLOURS).tolist() == [[[255, 0, 0], [0, 0, 255]], [[90, 90, 90], [0, 0, 255]]]
    q = torch.tensor([0.5, 0.5]).reshape(2, 1, 1)
    assert blend(q, COLOURS).tolist() == [[[0.5, 0.0, 0.5]]]


def test_the_slice_of_a_gaussian_is_a_gaussian() -> None:
    potential = GaussianBilateralPotential(num_classes=2, strength=3.0, radius=2, image_channels=1)
    plane = lattice_filter_slice(potential, size=25, reach=3.0)
    assert plane.shape == (2, 2, 25, 25)
    assert plane[0, 0].abs().max() == 0  # Potts: no cost between equal labels
    step = torch.linspace(-3, 3, 25)
    gaussian = 3 * torch.exp(-(step[:, None] ** 2 + step**2) / 2)
    assert (plane[0, 1] - gaussian).abs().max() < 0.15 * 3


def test_the_slice_shows_who_pays_for_whom() -> None:
    potential = BilateralPotential(num_classes=2, image_channels=0, symmetric=False)
    with torch.no_grad():
        potential.filters.zero_()
        potential.filters[1, 0, 1] = 5.0 * potential.unit  # label 0 pays for label 1 at the first tap, and at no other
    plane = lattice_filter_slice(potential)
    assert plane[0, 1].max() > 1
    assert plane[1, 0].abs().max() == plane[0, 0].abs().max() == plane[1, 1].abs().max() == 0
    y, x = np.unravel_index(int(plane[0, 1].argmax()), (25, 25))
    opposite = BilateralPotential(num_classes=2, image_channels=0, symmetric=False)
    with torch.no_grad():
        opposite.filters.zero_()
        opposite.filters[2, 0, 1] = 5.0 * opposite.unit
    other = np.unravel_index(int(lattice_filter_slice(opposite)[0, 1].argmax()), (25, 25))
    assert (other[0] - 12, other[1] - 12) == (12 - y, 12 - x)


def test_panels_hold_images_of_different_sizes() -> None:
    rows = [{"image": np.zeros((h, w, 3)), "truth": np.zeros((h, w, 3))} for h, w in ((20, 30), (60, 30))]
    figure = draw_panel(rows)
    assert len(figure.axes) == 4
    figure = draw_filters(torch.randn(3, 3, 9, 9), ["a", "b", "c"], "by position")
    assert len(figure.axes) == 10
