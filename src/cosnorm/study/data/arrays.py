"""The user's own arrays: an .npz with x_train, y_train and, if there is one, a test part."""

from pathlib import Path

import numpy as np

from cosnorm.study.data.dataset import Dataset, split_of
from cosnorm.study.data.errors import DataError, damaged
from cosnorm.study.data.npy import ALONE, Header, Headers, read_arrays, stored_bytes
from cosnorm.study.data.splits import (
    TEST_SHARE,
    VALIDATION,
    divided,
    held_out_note,
    stratified_test_rows,
)

KEYS = ("x_train", "y_train", "x_test", "y_test", "classes")
_ALWAYS = ("x_train", "y_train", "classes")  # whatever the test part is called
CHANNELS = (1, 3, 4)
_LABEL = 16  # bytes for a label on its way from the file to a tensor of int64
_HELD_LABEL = 24  # the same where a test part is held out, for which labels are counted
REMEDY = "write it with numpy.savez(path, x_train=…, y_train=…, x_test=…, y_test=…)"

Part = tuple[np.ndarray, np.ndarray]


def npz(path: Path) -> Dataset:
    """A data set from `x_train`, `y_train`, `x_test`, `y_test` (and `classes`, names) in an .npz.

    uint8 means pixels 0…255: (N, H, W), (N, C, H, W) or (N, H, W, C) are images, (N, F) become
    vectors in [0, 1]. Other numbers are taken as they are: (N, F) vectors, or images in floats.
    Labels are 0…K-1, 1…K, or text. Without a test part, one named `val`, `valid`, `validation` or
    `dev` is; without that a fifth of each class is held out by a fixed seed.
    """
    arrays, notes = _load(path)
    classes = _classes(arrays, path)
    train = _part(arrays, "train", classes, path)
    tested = next((key[2:] for key in arrays if key not in _ALWAYS), None)
    if tested is None:
        total = len(train[1])
        train, test = held_out(train, path)
        notes.append(held_out_note(path.name, len(test[1]), total))
    else:
        test = _part(arrays, tested, classes, path)
        _check_alike(train, test, tested, path)
        if tested != "test":
            notes.append(f"{path.name} has no x_test: x_{tested} is the test part")
    kind = "image" if train[0].ndim == 4 else "vector"
    train_split, test_split = (
        split_of(_ready(x, f"x_{name}", path), y)
        for name, (x, y) in (("train", train), (tested or "train", test))
    )
    return Dataset(path.stem, train_split, test_split, classes, kind, notes=tuple(notes))


def _load(path: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """The arrays that are used, and a note of each that is not."""
    notes: list[str] = []

    def choose(names: list[str]) -> list[str]:
        keys = _used(names, path)
        unused = [name for name in names if name not in keys]
        notes.extend(f"{path.name}: its array {name} is not used" for name in unused)
        return keys

    arrays = read_arrays(path, choose, REMEDY, _needed)
    if ALONE in arrays:
        raise _wrong(path, "it is one array, not an .npz of several")
    return arrays, notes


def _used(names: list[str], path: Path) -> list[str]:
    """The names of arrays that are used; parts that cannot all be used are refused."""
    parts = dict.fromkeys(name[2:] for name in names if name[:2].lower() in ("x_", "y_"))
    known = [part for part in ("test", *VALIDATION) if part in parts]
    keys = [*_ALWAYS, *(f"{kind}_{part}" for part in known[:1] for kind in "xy")]
    unused = (name for name in names if name[:2].lower() in ("x_", "y_") and name not in keys)
    if other := next(unused, None):
        beside = f"{known[0]} is the test part already" if known else "its part is none of these"
        raise damaged(
            path,
            f"{other} would not be used: parts are train, test, or {', '.join(VALIDATION)} for "
            f"test, in small letters, and {beside}",
            "rename it, put its rows into x_train, or leave it out",
        )
    return [key for key in keys if key in names]


def _needed(headers: Headers) -> int:
    """The bytes that reading takes at its peak: the arrays as stored, and beside them as used."""
    x = [header for name, header in headers.items() if name.startswith("x_")]
    used = sum(map(_made_bytes, x))
    labels = sum(header.size for name, header in headers.items() if name.startswith("y_"))
    if len(x) != 1:
        return stored_bytes(headers) + used + _LABEL * labels
    moved = round(TEST_SHARE * x[0].nbytes)  # before anything is made of it
    return stored_bytes(headers) + max(used, moved) + _HELD_LABEL * labels


def _made_bytes(header: Header) -> int:
    """The bytes of what `_ready` makes of an array; none where the array itself is used."""
    dtype = np.dtype(np.uint8 if _is_pixels(header.dtype, len(header.shape)) else np.float32)
    is_copied = header.dtype != dtype or header.is_fortran or _is_channels_last(header.shape)
    return is_copied * header.size * dtype.itemsize


def _wrong(path: Path, found: str) -> DataError:
    return damaged(path, found, REMEDY)


def _classes(arrays: dict[str, np.ndarray], path: Path) -> tuple[str, ...]:
    if "y_train" not in arrays:
        raise _wrong(
            path, f"y_train is missing; found {sorted(arrays) or 'none of ' + ', '.join(KEYS)}"
        )
    classes = _named(arrays, path)
    if len(classes) < 2:
        raise _wrong(path, f"{len(classes)} class in y_train, at least two needed")
    return classes


def _named(arrays: dict[str, np.ndarray], path: Path) -> tuple[str, ...]:
    if "classes" in arrays:
        return tuple(str(name) for name in _text(arrays["classes"].reshape(-1)))
    labels = _flat_labels(arrays["y_train"], "y_train", path)
    if labels.dtype.kind == "U":
        return tuple(str(name) for name in np.unique(labels))
    found = np.unique(labels)
    if not np.array_equal(found, np.arange(len(found)) + (found[:1] == 1)):
        raise damaged(
            path,
            f"numbers in y_train must be every one from 0 or 1 up, without a gap; found "
            f"{brief(found)}",
            "give the labels as text, with y_train.astype(str), and y_test likewise",
        )
    return tuple(str(number) for number in found)


def _part(arrays: dict[str, np.ndarray], name: str, classes: tuple[str, ...], path: Path) -> Part:
    for key in (f"x_{name}", f"y_{name}"):
        if key not in arrays:
            raise _wrong(path, f"{key} is missing; found {sorted(arrays)}")
    x = _examples(arrays[f"x_{name}"], f"x_{name}", path)
    labels = _flat_labels(arrays[f"y_{name}"], f"y_{name}", path)
    if len(x) != len(labels) or len(x) == 0:
        raise _wrong(
            path, f"{len(x):,} examples in x_{name} and {len(labels):,} labels in y_{name}"
        )
    if labels.dtype.kind == "U":
        index = {text: number for number, text in enumerate(classes)}
        numbers = np.array([index.get(text, -1) for text in labels.tolist()])
    else:
        numbers = labels.astype(np.int64) - _first_label(arrays, len(classes))
    wrong = (numbers < 0) | (numbers >= len(classes))
    if wrong.any():
        raise _wrong(
            path,
            f"y_{name} has the label {labels[wrong][0].item()!r}, out of range: training has "
            f"{len(classes)} classes, {brief(np.array(classes))}",
        )
    return x, numbers


def _first_label(arrays: dict[str, np.ndarray], classes: int) -> int:
    """1 where the labels of training are 1…K, else 0."""
    labels = arrays["y_train"]
    return int(labels.size > 0 and labels.min() == 1 and labels.max() == classes)


def _check_alike(train: Part, test: Part, tested: str, path: Path) -> None:
    """Pixels and other numbers are on different scales, even where both become vectors."""
    kinds = train[0].dtype, test[0].dtype
    are_pixels = [kind == np.uint8 for kind in kinds]
    if train[0].shape[1:] != test[0].shape[1:] or are_pixels[0] != are_pixels[1]:
        raise _wrong(
            path,
            f"x_train has examples of {train[0].shape[1:]} ({kinds[0]}), x_{tested} of "
            f"{test[0].shape[1:]} ({kinds[1]}), and they must agree",
        )


def _flat_labels(labels: np.ndarray, name: str, path: Path) -> np.ndarray:
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.ndim != 1 or labels.dtype.kind not in "iuUS":
        raise _wrong(
            path,
            f"{name} must be integers or text, one an example, it is {labels.dtype} of "
            f"{labels.shape}",
        )
    return _text(labels) if labels.dtype.kind == "S" else labels


def _text(names: np.ndarray) -> np.ndarray:
    return np.char.decode(names, "utf-8", "replace") if names.dtype.kind == "S" else names


def _examples(x: np.ndarray, name: str, path: Path) -> np.ndarray:
    """The array with its axes in our order; nothing is copied."""
    if x.dtype.kind not in "fiub" or x.ndim not in (2, 3, 4) or 0 in x.shape[1:]:
        raise _wrong(
            path,
            f"{name} must be numbers of shape (N, F), (N, H, W) or (N, C, H, W), it is {x.dtype} "
            f"of {x.shape}",
        )
    if x.ndim == 3:
        return x[:, None]
    return x.transpose(0, 3, 1, 2) if _is_channels_last(x.shape) else x


def _is_channels_last(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4 and shape[1] not in CHANNELS and shape[3] in CHANNELS


def _is_pixels(dtype: np.dtype, axes: int) -> bool:
    return dtype == np.uint8 and axes > 2


def _ready(x: np.ndarray, name: str, path: Path) -> np.ndarray:
    """The examples as they are trained on, copied once at most: rows are most of the memory."""
    if _is_pixels(x.dtype, x.ndim):
        return np.ascontiguousarray(x)
    is_bytes = x.dtype == np.uint8
    with np.errstate(over="ignore"):  # what does not fit is told of below
        x = x.astype(np.float32, order="C", copy=False)
    if is_bytes:
        x /= 255
    elif not np.isfinite((x.min(), x.max())).all():  # both are NaN where one of x is
        raise _wrong(path, f"{name} has values that are not finite numbers in float32")
    return x


def held_out(train: Part, path: Path) -> tuple[Part, Part]:
    """Rows and labels in two parts: a fifth of each class, by a fixed seed, is the second.

    Both lie in the memory of `train`, which is no longer in its order.
    """
    x, y = train
    test = stratified_test_rows(y)
    if not test.any():
        raise damaged(path, "no test part can be held out: no class has two examples", "add some")
    return divided(x, y, test)


def brief(values: np.ndarray) -> str:
    """The first of the values, for a message."""
    shown = ", ".join(str(value) for value in values[:12])
    return f"{shown}, …" if len(values) > 12 else shown
