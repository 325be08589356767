"""Networks with CRF heads as a LightningModule, with its losses, metrics and callbacks."""

from lightning_modules.callbacks import FilterPictures, PredictionPanels, PredictionWriter
from lightning_modules.heads import DenseCRFHead
from lightning_modules.kept_logits import KeptLogits
from lightning_modules.networks import SMPNetwork
from lightning_modules.regularizers import Regularizer
from lightning_modules.segmentation import SegmentationModule
from lightning_modules.tiling import Tiling

__all__ = [
    "DenseCRFHead",
    "FilterPictures",
    "KeptLogits",
    "PredictionPanels",
    "PredictionWriter",
    "Regularizer",
    "SMPNetwork",
    "SegmentationModule",
    "Tiling",
]
