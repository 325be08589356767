"""Losses on q: finite and with a gradient where q is 0 or negative; ignored pixels do not count."""

import pytest
import torch

from crfgrad import log_distribution
from lightning_modules.losses import build_loss

NAMES = [
    "CrossEntropyLoss",
    "DiceLoss",
    "JaccardLoss",
    "FocalLoss",
    "LovaszLoss",
    "TverskyLoss",
    "SoftCrossEntropyLoss",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_nan_where_q_is_zero_or_below(name: str) -> None:
    q = torch.tensor([1.0, 0.0, -0.3]).reshape(1, 3, 1, 1).expand(2, 3, 4, 4).clone().requires_grad_()
    labels = torch.randint(3, (2, 4, 4))
    labels[0, 0] = 255
    loss = build_loss(name, 255)(log_distribution(q), labels)
    (gradient,) = torch.autograd.grad(loss, q)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()
    assert gradient[1].abs().max() > 0


@pytest.mark.parametrize("name", NAMES)
def test_ignored_pixels_do_not_count(name: str) -> None:
    logits, labels = torch.randn(2, 3, 6, 6), torch.randint(3, (2, 6, 6))
    labels[:, 3:] = 255
    changed = logits.clone()
    changed[:, :, 3:] = torch.randn(2, 3, 3, 6)
    loss = build_loss(name, 255)
    assert torch.allclose(loss(logits, labels), loss(changed, labels), atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_ignored_pixels_is_no_loss(name: str) -> None:
    logits = torch.randn(1, 3, 4, 4, requires_grad=True)
    loss = build_loss(name, 255)(logits, torch.full((1, 4, 4), 255))
    loss.backward()
    assert loss == 0
    assert logits.grad is not None
    assert logits.grad.abs().max() == 0


def test_options_reach_the_loss() -> None:
    assert build_loss("FocalLoss", 255, gamma=7.0).loss.focal_loss_fn.keywords["gamma"] == 7.0  # type: ignore[union-attr,operator]


def test_an_unknown_loss_says_which_there_are() -> None:
    with pytest.raises(ValueError, match=r"there is no loss Dice: take CrossEntropyLoss or one of .*DiceLoss"):
        build_loss("Dice", 255)
    with pytest.raises(ValueError, match=r"smp\.losses\.MCCLoss is not for several classes"):
        build_loss("MCCLoss", 255)
