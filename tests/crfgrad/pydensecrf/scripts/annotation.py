"""An annotation in a few colours, black where it is unsure, spread over the picture: FILE OUTPUT MODEL."""

import sys

import numpy as np
import pydensecrf.densecrf as dcrf
from pydensecrf.utils import create_pairwise_bilateral, create_pairwise_gaussian, unary_from_labels

given = np.load(sys.argv[1])
picture, annotation = given["image"], given["annotation"]
height, width, _ = picture.shape
colours, painted = np.unique(annotation.reshape(-1, 3), axis=0, return_inverse=True)
unsure = not colours[0].any()
names = colours[1:] if unsure else colours
energies = unary_from_labels(painted.reshape(height, width), len(names), gt_prob=0.8, zero_unsure=unsure)
kinds = {"kernel": dcrf.DIAG_KERNEL, "normalization": dcrf.NORMALIZE_SYMMETRIC}

if sys.argv[3] == "image":
    crf = dcrf.DenseCRF2D(width, height, len(names))
    crf.addPairwiseGaussian(sxy=(2, 2), compat=3, **kinds)
    crf.addPairwiseBilateral(sxy=(60, 60), srgb=(13, 13, 13), rgbim=picture, compat=8, **kinds)
else:
    crf = dcrf.DenseCRF(width * height, len(names))
    crf.addPairwiseEnergy(create_pairwise_gaussian(sdims=(2, 2), shape=picture.shape[:2]), compat=3, **kinds)
    near_and_alike = create_pairwise_bilateral(sdims=(60, 60), schan=(13, 13, 13), img=picture, chdim=2)
    crf.addPairwiseEnergy(near_and_alike, compat=8, **kinds)
crf.setUnaryEnergy(energies)

q, first, second = crf.startInference()
for step in range(5):
    print(f"step {step}: {crf.klDivergence(q):.0f}")
    crf.stepInference(q, first, second)
np.save(sys.argv[2], names[np.argmax(q, axis=0)].reshape(picture.shape))
