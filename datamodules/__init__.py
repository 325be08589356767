"""Data sets as LightningDataModules."""

from datamodules.base import SegmentationDataModule
from datamodules.folder import FolderDataModule
from datamodules.synthetic_streets import SyntheticStreets
from datamodules.weizmann_horse import WeizmannHorse

__all__ = ["FolderDataModule", "SegmentationDataModule", "SyntheticStreets", "WeizmannHorse"]
