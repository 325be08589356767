"""The established dense energy loss, with the kernel of pydensecrf2 1.1.

PYTHONPATH=.peers python -m tests.recorded.make_dense_energy. The filter of that loss is the code that pydensecrf2 runs
without normalisation, so that this is what it gives: forward and backward are written out below, in the order of its
steps.
"""

from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from datamodules.street_scene import street_scene

FILE = Path(__file__).parent / "dense_energy.npz"
WEIGHT, SIGMA_RGB, SIGMA_XY, SCALE = 1e-7, 15.0, 100.0, 0.5
HEIGHT, WIDTH, LABELS = 45, 62, 3


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, probabilities, regions and labels of two street scenes, of an odd height."""
    scenes = [street_scene(seed, HEIGHT, WIDTH) for seed in (1, 2)]
    images = torch.stack([torch.from_numpy(image).movedim(-1, 0) for image, _ in scenes]).float()
    masks = np.stack([mask for _, mask in scenes]).astype(np.int64) % LABELS
    generator = np.random.default_rng(0)
    logits = 2.0 * np.eye(LABELS)[masks].transpose(0, 3, 1, 2) + generator.normal(size=(2, LABELS, HEIGHT, WIDTH))
    rois = torch.ones(2, HEIGHT, WIDTH)
    rois[0, :, 50:] = 0
    rois[1, :7] = 0
    known = generator.random(masks.shape) < 0.3
    seg_label = torch.from_numpy(np.where(known, masks, 255).astype(np.uint8))[:, None]
    return images, torch.from_numpy(logits).softmax(1).float(), rois, seg_label


def filtered(image: np.ndarray, field: np.ndarray, sigma_rgb: float, sigma_xy: float) -> np.ndarray:
    """The raw kernel of an image (3, h, w) applied to a field (h, w) of 0 to 1: what two labels then differ by."""
    module = import_module("pydensecrf.densecrf")
    height, width = field.shape
    small = 1e-2  # so that exponents stay moderate
    q = np.clip(field.ravel(), 1e-30, 1 - 1e-7)
    unary = -np.log(np.stack([q, 1 - q]))
    crf = module.DenseCRF2D(width, height, 2)
    crf.setUnaryEnergy(np.ascontiguousarray(unary.astype(np.float32)))
    crf.addPairwiseBilateral(
        sxy=sigma_xy,
        srgb=sigma_rgb,
        rgbim=np.ascontiguousarray(image.transpose(1, 2, 0).astype(np.uint8)),
        compat=np.diag([-small, 0.0]).astype(np.float32),
        normalization=module.NO_NORMALIZATION,
    )
    state, *scratch = crf.startInference()
    start = np.array(state)  # what is filtered is this, not the field to the last bit
    crf.stepInference(state, *scratch)
    after = np.array(state).astype(np.float64)
    raised = np.log(after[0] / after[1]) - (unary[1] - unary[0])
    assert np.abs(start[0] - field.ravel()).max() < 1e-6
    return (raised / small).reshape(height, width)


def main() -> None:
    """Writes value, gradient, and what each pixel receives."""
    images, probs, rois, seg_label = inputs()
    leaf = probs.requires_grad_()
    small_images = interpolate(images, scale_factor=SCALE)
    small_probs = interpolate(leaf, scale_factor=SCALE, mode="bilinear", align_corners=False)
    small_rois = interpolate(rois[:, None], scale_factor=SCALE)
    unlabelled = interpolate(seg_label, scale_factor=SCALE, mode="nearest").long() == 255
    gate = small_rois - small_probs.detach().max(dim=1, keepdim=True)[0]
    gate[unlabelled] = 1
    gate[gate < 0] = 0
    fields = (small_probs * small_rois).detach().numpy()
    received = np.stack(
        [
            [filtered(image, field, SIGMA_RGB, SIGMA_XY * SCALE) for field in labels]
            for image, labels in zip(small_images.numpy(), fields, strict=True)
        ]
    )
    gated = received * gate.numpy()
    value = -WEIGHT * float((fields.astype(np.float64) * gated).sum()) / len(images)
    gradient = torch.from_numpy(-2 * WEIGHT * gated / len(images)).float() * small_rois
    small_probs.backward(gradient)
    assert leaf.grad is not None
    np.savez_compressed(FILE, value=value, gradient=leaf.grad.numpy(), received=received.astype(np.float32))


if __name__ == "__main__":
    main()
