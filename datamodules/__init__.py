"""Data sets as LightningDataModules."""

from datamodules.base import SegmentationDataModule
from datamodules.cityscapes import Cityscapes
from datamodules.folder import FolderDataModule
from datamodules.nyu_v2 import NYUv2
from datamodules.synthetic_streets import SyntheticStreets
from datamodules.weak_labels import Boxes, Clicks, Scribbles, WeakLabels
from datamodules.weizmann_horse import WeizmannHorse

__all__ = [
    "Boxes",
    "Cityscapes",
    "Clicks",
    "FolderDataModule",
    "NYUv2",
    "Scribbles",
    "SegmentationDataModule",
    "SyntheticStreets",
    "WeakLabels",
    "WeizmannHorse",
]
