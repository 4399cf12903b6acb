"""CIFAR-10 and CIFAR-100 from the publisher's binary or Python archives.

A binary record is one label (CIFAR-100: coarse, then fine) and 3,072 pixels, channel by channel,
row by row. The Python files are pickles of the same rows, with the labels in lists.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from cosnorm.study.data.dataset import Dataset, split_of
from cosnorm.study.data.errors import DataError, damaged
from cosnorm.study.data.paths import first_existing, not_found
from cosnorm.study.data.pickles import read_pickle
from cosnorm.study.data.published import check_counts, check_labels

PIXELS = 3 * 32 * 32
CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)

Part = tuple[np.ndarray, np.ndarray]


def cifar10(root: Path) -> Dataset:
    """CIFAR-10: 50,000 and 10,000 colour images of 32 × 32, ten classes."""
    batches = [f"data_batch_{i}" for i in range(1, 6)]
    folder = _folder(root, "cifar10", "cifar-10-batches-bin", "cifar-10-batches-py", "test_batch")
    read = _batch_reader(folder, "cifar10", label_bytes=1, label_byte=0, key="labels", classes=10)
    parts = [read(name) for name in batches]
    _same_length(parts, batches, folder)
    train = tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return _dataset("cifar10", (train[0], train[1]), read("test_batch"), CIFAR10_CLASSES, folder)


def cifar100(root: Path, labels: str = "fine") -> Dataset:
    """CIFAR-100: 50,000 and 10,000 colour images of 32 × 32.

    Args:
        labels: "fine" for the 100 classes, "coarse" for the 20 groups of five.
    """
    if labels not in ("fine", "coarse"):
        raise DataError(f"cifar100: labels must be 'fine' or 'coarse', received {labels!r}")
    classes = 100 if labels == "fine" else 20
    folder = _folder(root, "cifar100", "cifar-100-binary", "cifar-100-python", "test")
    read = _batch_reader(
        folder,
        "cifar100",
        label_bytes=2,
        label_byte=int(labels == "fine"),
        key=f"{labels}_labels",
        classes=classes,
    )
    names = _names(folder, f"{labels}_label_names", classes)
    return _dataset("cifar100", read("train"), read("test"), names, folder)


def read_records(path: Path, label_bytes: int, label_byte: int, classes: int) -> Part:
    """Images (N, 3, 32, 32) and labels of one binary file of whole records."""
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise damaged(
            path, f"cannot be read ({error})", "check the path and its permissions"
        ) from error
    size = label_bytes + PIXELS
    if len(content) == 0 or len(content) % size:
        raise damaged(
            path, f"its {len(content):,} bytes are not a whole number of records of {size:,} bytes"
        )
    records = content.reshape(-1, size)
    labels = records[:, label_byte]
    check_labels(labels, classes, path)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), labels


def read_pickled(path: Path, key: str, classes: int) -> Part:
    """Images (N, 3, 32, 32) and labels of one pickled batch."""
    batch = read_pickle(path)
    if not isinstance(batch, dict) or not {"data", key} <= batch.keys():
        raise damaged(path, f"a CIFAR batch is a dict with 'data' and {key!r}, this is not one")
    images, labels = batch["data"], batch[key]
    rows_ok = isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.ndim == 2
    if not rows_ok or images.shape[1] != PIXELS or len(images) == 0:
        raise damaged(path, f"its 'data' must be a uint8 array of N rows of {PIXELS:,} pixels")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise damaged(path, f"its {key!r} must be a list of integers")
    if len(labels) != len(images):
        raise damaged(path, f"{len(labels):,} labels for {len(images):,} images")
    label_array = np.array(labels)
    check_labels(label_array, classes, path)
    return images.reshape(-1, 3, 32, 32), label_array


def _folder(root: Path, dataset: str, binary: str, python: str, test: str) -> Path:
    named = [base / name for base in (root, root / dataset) for name in (binary, python)]
    folder = first_existing(named)
    if folder is None and first_existing([root / test, root / f"{test}.bin"]):
        folder = root
    if folder is None:
        raise not_found(dataset, root, f"{binary}/ or {python}/")
    return folder


def _batch_reader(
    folder: Path, dataset: str, *, label_bytes: int, label_byte: int, key: str, classes: int
) -> Callable[[str], Part]:
    def read(name: str) -> Part:
        if (path := folder / f"{name}.bin").is_file():
            return read_records(path, label_bytes, label_byte, classes)
        if (path := folder / name).is_file():
            return read_pickled(path, key, classes)
        raise not_found(dataset, folder, f"{name}.bin (or the pickle {name})")

    return read


def _same_length(parts: list[Part], names: list[str], folder: Path) -> None:
    counts = [len(labels) for _, labels in parts]
    if len(set(counts)) > 1:
        usual = max(set(counts), key=counts.count)
        name = next(name for name, count in zip(names, counts, strict=True) if count != usual)
        path = first_existing([folder / f"{name}.bin", folder / name]) or folder
        count = counts[names.index(name)]
        raise damaged(path, f"{count:,} images, where the other training batches have {usual:,}")


def _names(folder: Path, stem: str, count: int) -> tuple[str, ...]:
    """The class names beside the data; their numbers where that small file did not come along."""
    if (path := folder / f"{stem}.txt").is_file():
        names = tuple(path.read_text(encoding="utf-8", errors="replace").split())
    elif (path := folder / "meta").is_file():
        meta = read_pickle(path)
        listed = meta.get(stem) if isinstance(meta, dict) else None
        names = tuple(
            name.decode("latin-1") if isinstance(name, bytes) else str(name)
            for name in listed or ()
        )
    else:
        return tuple(str(number) for number in range(count))
    if len(names) != count:
        raise damaged(path, f"{len(names)} class names where there are {count} classes")
    return names


def _dataset(name: str, train: Part, test: Part, classes: tuple[str, ...], folder: Path) -> Dataset:
    check_counts(name, len(train[1]), len(test[1]), folder)
    return Dataset(name, split_of(*train), split_of(*test), classes, "image")
