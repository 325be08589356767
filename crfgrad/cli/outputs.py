"""Results as files, which are there whole or not at all."""

import io
from pathlib import Path
from uuid import uuid4

import numpy as np
from PIL import Image

from crfgrad.cli.errors import CommandError

PARTIAL = ".partial"


def write(path: Path, content: bytes) -> None:
    """Writes to a file beside it first, so that a killed process leaves nothing half written under the name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = _beside(path)
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def check_writable(path: Path) -> None:
    """Raises a sentence if no file can be written there."""
    if path.is_dir():
        raise CommandError(f"{path} is a folder: give the name of a file")
    beside = _beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.touch()
        beside.unlink()
    except OSError as error:
        raise CommandError(f"{path} cannot be written ({error.strerror}): give another file") from None


def _beside(path: Path) -> Path:
    # process numbers are not enough: each container counts its own, and several may share a folder
    return path.with_name(f".{path.name}.{uuid4().hex}{PARTIAL}")


def remove_partial(folder: Path, due: set[Path]) -> None:
    """Removes what killed processes left of the files that are due."""
    for beside in folder.rglob(f".*{PARTIAL}"):
        name = beside.name.removeprefix(".").removesuffix(PARTIAL).rpartition(".")[0]
        if beside.with_name(name) in due:
            beside.unlink(missing_ok=True)


def write_npz(path: Path, **arrays: np.ndarray) -> None:
    """The same for arrays, compressed."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    write(path, buffer.getvalue())


def colours(count: int) -> np.ndarray:
    """The colours that are usual for labels, as in PASCAL VOC: (count, 3) uint8.

    Bits 0, 1, 2 of a label are the highest bits of red, green and blue, bits 3, 4, 5 the next, and so on.
    """
    label, bit, channel = np.ix_(range(count), range(6), range(3))
    return ((label >> 3 * bit + channel & 1) << 7 - bit).sum(1).astype(np.uint8)


def label_png(labels: np.ndarray, num_labels: int) -> bytes:
    """Labels (H, W) as a PNG whose values are the labels: with colours, or 16 bits if there are more than 256."""
    if num_labels > 256:
        return _encoded(Image.fromarray(labels.astype(np.uint16)), "PNG")
    image = Image.fromarray(labels.astype(np.uint8), mode="P")
    image.putpalette(colours(256).tobytes())
    return _encoded(image, "PNG")


def array_npy(array: np.ndarray) -> bytes:
    """An array as a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def overlay_jpeg(image: np.ndarray, before: np.ndarray, after: np.ndarray, num_labels: int) -> bytes:
    """The image (H, W, 3) under labels (H, W) before and after, side by side or, if it is wide, one above the other."""
    painted = [_painted(image, labels, num_labels) for labels in (before, after)]
    axis = 0 if image.shape[1] > 1.5 * image.shape[0] else 1
    gap = np.full((4 if axis == 0 else len(image), 4 if axis == 1 else image.shape[1], 3), 255, dtype=np.uint8)
    return _encoded(Image.fromarray(np.concatenate([painted[0], gap, painted[1]], axis=axis)), "JPEG", quality=90)


def _painted(image: np.ndarray, labels: np.ndarray, num_labels: int) -> np.ndarray:
    """Colours of labels over an image, and white between different labels."""
    mixed = (0.5 * image + 0.5 * colours(num_labels)[labels]).astype(np.uint8)
    border = np.zeros(labels.shape, dtype=bool)
    border[:, 1:] |= labels[:, 1:] != labels[:, :-1]
    border[1:] |= labels[1:] != labels[:-1]
    mixed[border] = 255
    return mixed


def _encoded(image: Image.Image, kind: str, **options: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()
