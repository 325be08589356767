"""A mask of ink in grey values, made sharp by raw kernels and costs as matrices: FILE OUTPUT."""

import sys

import numpy as np
import pydensecrf.densecrf as dcrf
from pydensecrf.utils import unary_from_softmax

with np.load(sys.argv[1]) as page:
    picture, mask = page["image"], page["mask"]

ink = mask.astype(np.float32)[None] / 255
unary = np.ascontiguousarray(unary_from_softmax(np.concatenate([1 - ink, ink])))
different = 1 - np.eye(2, dtype=np.float32)
crf = dcrf.DenseCRF2D(picture.shape[1], picture.shape[0], 2)
crf.setUnary(dcrf.ConstUnary(unary))
crf.addPairwiseGaussian(sxy=1, compat=0.3 * different, kernel=dcrf.CONST_KERNEL, normalization=dcrf.NO_NORMALIZATION)
crf.addPairwiseBilateral(
    sxy=23, srgb=7, rgbim=picture, compat=9 * different, kernel=dcrf.FULL_KERNEL, normalization=dcrf.NORMALIZE_AFTER
)
sharp = np.argmax(crf.inference(5), axis=0).astype(np.uint8) * 255
np.save(sys.argv[2], sharp.reshape(mask.shape))
