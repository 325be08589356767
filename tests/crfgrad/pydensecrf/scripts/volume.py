"""A scan of two channels, its voxels as points, and how likely each belongs to an organ: FILE OUTPUT."""

import sys

import numpy as np
import pydensecrf.densecrf as dcrf
from pydensecrf import utils

with np.load(sys.argv[1]) as scan:
    channels, organ = scan["channels"], scan["organ"]  # (D, H, W, 2), (D, H, W)

crf = dcrf.DenseCRF(int(np.prod(organ.shape)), 2)
crf.setUnaryEnergy(utils.unary_from_softmax(np.stack([1 - organ, organ]).astype(np.float32)))
crf.addPairwiseEnergy(utils.create_pairwise_gaussian(sdims=(1, 2, 2), shape=organ.shape), compat=2)
voxels = utils.create_pairwise_bilateral(sdims=(3, 6, 6), schan=(12, 20), img=channels, chdim=3)
crf.addPairwiseEnergy(voxels, compat=6)
mask = np.asarray(crf.inference(8), dtype=np.float32)[1].reshape(organ.shape) > 0.5
np.save(sys.argv[2], mask)
