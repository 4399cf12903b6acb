"""SVHN's cropped digits (format 2): train, test and extra, each a MATLAB 5 file.

`X` is uint8 (32, 32, 3, N) in column-major order, so each image is 3,072 bytes on end, and the
604,388 images of train and extra go, a few at a time, straight to their place in one array of
1.86 GB. `y` holds 1…10, where 10 is the digit 0.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np

from cosnorm.study.data.dataset import Dataset, split_of
from cosnorm.study.data.errors import DataError, damaged
from cosnorm.study.data.mat5 import Variable, variables
from cosnorm.study.data.paths import first_existing, not_found
from cosnorm.study.data.published import check_counts, check_labels

SIDE, CHANNELS = 32, 3
IMAGE = SIDE * SIDE * CHANNELS
IMAGES_AT_ONCE = 2048


def svhn(root: Path, extra: bool = True) -> Dataset:
    """SVHN, cropped digits.

    Args:
        extra: add the 531,131 easier images of the extra file to the 73,257 of training, as the
            paper does.
    """
    names = ["train_32x32.mat", "extra_32x32.mat"] if extra else ["train_32x32.mat"]
    if not isinstance(extra, bool):
        raise DataError(f"svhn: extra must be True or False, received {extra!r}")
    train = _read([_find(root, name) for name in names])
    test = _read([_find(root, "test_32x32.mat")])
    check_counts("svhn with extra" if extra else "svhn", len(train[1]), len(test[1]), root)
    return Dataset("svhn", split_of(*train), split_of(*test), tuple("0123456789"), "image")


def _find(root: Path, name: str) -> Path:
    path = first_existing(folder / name for folder in (root / "svhn", root / "SVHN", root))
    if path is None:
        without = (
            " (or do without: --no-svhn-extra, in Python extra=False)" if "extra" in name else ""
        )
        raise not_found("svhn", root, name + without)
    return path


def _read(paths: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    ends = np.cumsum([0, *(_count(path) for path in paths)])
    images = np.empty((ends[-1], CHANNELS, SIDE, SIDE), np.uint8)
    labels = np.empty(ends[-1], np.uint8)
    for path, (start, end) in zip(paths, pairwise(ends), strict=True):
        _fill(path, images[start:end], labels[start:end])
    return images, labels


def _count(path: Path) -> int:
    """The number of images, from the header of `X` alone."""
    for variable in variables(path):
        if variable.name == "X":
            return _checked(variable, path).shape[3]
    raise damaged(path, "it has no variable 'X'")


def _checked(variable: Variable, path: Path) -> Variable:
    shape, dtype = variable.shape, variable.dtype
    if dtype != np.uint8 or shape[:3] != (SIDE, SIDE, CHANNELS) or len(shape) != 4 or not shape[3]:
        raise damaged(path, f"X must be uint8 of shape (32, 32, 3, N), it is {dtype} of {shape}")
    return variable


def _fill(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    found = set()
    for variable in variables(path):
        if variable.name == "X" and "X" not in found:
            _fill_images(_checked(variable, path), images)
        elif variable.name == "y" and "y" not in found:
            labels[:] = _labels(variable, len(images), path)
        found.add(variable.name)
    if missing := {"X", "y"} - found:
        raise damaged(path, f"it has no variable {missing.pop()!r}")


def _fill_images(variable: Variable, images: np.ndarray) -> None:
    row = 0
    for block in variable.blocks(IMAGES_AT_ONCE * IMAGE):
        # Column-major (row, column, channel, image) is C-order (image, channel, column, row).
        turned = block.reshape(-1, CHANNELS, SIDE, SIDE).transpose(0, 1, 3, 2)
        images[row : row + len(turned)] = turned
        row += len(turned)


def _labels(variable: Variable, count: int, path: Path) -> np.ndarray:
    if variable.size != count:
        raise damaged(path, f"{variable.size:,} labels for {count:,} images")
    values = np.concatenate(list(variable.blocks(1 << 20)))
    check_labels(values, 10, path, first=1)
    if np.any(values % 1):
        raise damaged(path, "its labels are not all whole numbers")
    return (values % 10).astype(np.uint8)
