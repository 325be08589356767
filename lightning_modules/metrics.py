"""Intersection over union, over the data set and near boundaries."""

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassJaccardIndex


def segmentation_metrics(num_classes: int, ignore_index: int) -> MetricCollection:
    """Mean IoU and IoU of each class, both over all pixels of the data set, as in VOC and Cityscapes."""
    return MetricCollection(
        {
            "miou": MulticlassJaccardIndex(num_classes, average="macro", ignore_index=ignore_index),
            # a class that is neither there nor predicted has no IoU
            "iou": MulticlassJaccardIndex(
                num_classes, average="none", ignore_index=ignore_index, zero_division=float("nan")
            ),
        },
        compute_groups=[["miou", "iou"]],  # one confusion matrix for both
    )


def trimap(labels: Tensor, width: int, ignore_index: int) -> Tensor:
    """Labels within ``width`` pixels of a boundary; ``ignore_index`` elsewhere.

    Args:
        labels: (B, H, W) int64.
        width: Half the width of the band, in pixels.
        ignore_index: Label that makes no boundary.
    """
    valid = labels != ignore_index
    scores = labels.float()

    def highest_near(values: Tensor) -> Tensor:
        return max_pool2d(values.masked_fill(~valid, -torch.inf), 2 * width + 1, stride=1, padding=width)

    highest, lowest = highest_near(scores), -highest_near(-scores)
    return labels.masked_fill(highest == lowest, ignore_index)
