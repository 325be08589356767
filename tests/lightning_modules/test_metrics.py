"""Metrics against a plain confusion matrix; the band along boundaries against a loop over pixels."""

import pytest
import torch
from torch import Tensor

from lightning_modules.metrics import segmentation_metrics, trimap


def plain_iou(predicted: Tensor, labels: Tensor, classes: int, ignore: int) -> list[float | None]:
    """IoU of each class by counting, None where a class occurs in neither."""
    ious: list[float | None] = []
    valid = labels != ignore
    for label in range(classes):
        inter = ((predicted == label) & (labels == label) & valid).sum().item()
        union = (((predicted == label) | (labels == label)) & valid).sum().item()
        ious.append(inter / union if union else None)
    return ious


def test_iou_over_the_data_set_is_the_confusion_matrix() -> None:
    metric = segmentation_metrics(5, 255)
    batches = [(torch.randint(4, (2, 9, 9)), torch.randint(4, (2, 9, 9))) for _ in range(3)]  # class 4 is absent
    for predicted, labels in batches:
        labels[:, 0] = 255
        metric.update(predicted, labels)
    expected = plain_iou(*(torch.cat(parts) for parts in zip(*batches, strict=True)), 5, 255)
    values = metric.compute()
    present = [iou for iou in expected if iou is not None]
    assert values["iou"][:4].tolist() == pytest.approx(present)
    assert torch.isnan(values["iou"][4])
    assert float(values["miou"]) == pytest.approx(sum(present) / 4)  # an absent class does not count


@pytest.mark.parametrize("width", [1, 3])
def test_trimap_is_the_band_along_boundaries(width: int) -> None:
    labels = torch.randint(0, 3, (2, 4, 5)).repeat_interleave(4, 1).repeat_interleave(4, 2)
    labels[:, 5:9, 5:9] = 255
    band = trimap(labels, width, 255)
    for image in range(2):
        for y in range(16):
            for x in range(20):
                window = labels[image, max(0, y - width) : y + width + 1, max(0, x - width) : x + width + 1]
                near = len(set(window.flatten().tolist()) - {255}) > 1
                assert band[image, y, x] == (labels[image, y, x] if near else 255)
