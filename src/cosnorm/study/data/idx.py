"""MNIST's idx files, plain or gzipped.

An idx file is: two zero bytes, a type code, the number of dimensions, each dimension as a
big-endian 32-bit integer, then the values, last dimension fastest.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from cosnorm.study.data.dataset import Dataset, split_of
from cosnorm.study.data.errors import DataError, damaged
from cosnorm.study.data.paths import first_existing, not_found
from cosnorm.study.data.published import check_counts, check_labels

UNSIGNED_BYTE = 0x08
MOST_INFLATION = 1032  # deflate cannot expand further, so a header that promises more is false


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The uint8 array of an idx file with the given number of dimensions.

    Example: `read_idx(folder / "train-images-idx3-ubyte.gz", 3)` has shape (60000, 28, 28).
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            shape = _header(file, path, dimensions)
            size = math.prod(shape)
            if size > MOST_INFLATION * path.stat().st_size:
                raise damaged(path, f"its header promises {size:,} values, more than it can hold")
            content = file.read(size + 1)
    except (gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, f"not a whole gzip file ({error})") from error
    except EOFError as error:
        raise damaged(path, f"truncated ({error})") from error
    except OSError as error:
        raise damaged(
            path, f"cannot be read ({error})", "check the path and its permissions"
        ) from error
    if len(content) != size:
        found = f"truncated: {len(content):,}" if len(content) < size else "too long: more"
        raise damaged(path, f"{found} bytes after a header that promises {size:,}")
    return np.frombuffer(bytearray(content), np.uint8).reshape(shape)


def _header(file: BinaryIO | gzip.GzipFile, path: Path, dimensions: int) -> tuple[int, ...]:
    magic = file.read(4)
    if not magic:
        raise damaged(path, "it is empty")
    expected = bytes([0, 0, UNSIGNED_BYTE, dimensions])
    if magic != expected:
        raise damaged(
            path,
            f"an idx file of this kind starts with {expected.hex()}, this one with {magic.hex()}",
        )
    sizes = file.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise damaged(path, "truncated inside its header")
    return struct.unpack(f">{dimensions}I", sizes)


def mnist(root: Path) -> Dataset:
    """MNIST from its four idx files: 60,000 and 10,000 images of 28 × 28, ten digits."""
    parts = []
    for prefix in ("train", "t10k"):
        images_path = _find(root, f"{prefix}-images", 3)
        labels_path = _find(root, f"{prefix}-labels", 1)
        images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
        if len(images) != len(labels):
            raise damaged(
                labels_path,
                f"{len(labels):,} labels for the {len(images):,} images of {images_path.name}",
            )
        check_labels(labels, 10, labels_path)
        parts.append((images[:, None], labels))
    if parts[0][0].shape[1:] != parts[1][0].shape[1:]:
        raise DataError(
            f"{root}: training images are {parts[0][0].shape[2:]}, test images "
            f"{parts[1][0].shape[2:]}; use the four files of one publisher"
        )
    check_counts("mnist", len(parts[0][1]), len(parts[1][1]), root)
    train, test = (split_of(x, y) for x, y in parts)
    return Dataset("mnist", train, test, tuple("0123456789"), "image")


def _find(root: Path, stem: str, dimensions: int) -> Path:
    names = [f"{stem}{dot}idx{dimensions}-ubyte{end}" for dot in "-." for end in (".gz", "")]
    folders = (root / "mnist", root / "MNIST" / "raw", root)
    path = first_existing(folder / name for folder in folders for name in names)
    if path is None:
        raise not_found("mnist", root, f"mnist/{names[0]}")
    return path
