"""The user's own arrays: an .npz with x_train, y_train and, if there is one, a test part."""

from pathlib import Path
from typing import BinaryIO

import numpy as np

from cosnorm.data.dataset import Dataset, split_of
from cosnorm.data.errors import DataError, damaged
from cosnorm.data.splits import stratified_test_rows

KEYS = ("x_train", "y_train", "x_test", "y_test", "classes")
CHANNELS = (1, 3, 4)

Part = tuple[np.ndarray, np.ndarray]


def npz(path: Path) -> Dataset:
    """A data set from `x_train`, `y_train`, `x_test`, `y_test` (and `classes`, names) in an .npz.

    uint8 means pixels 0…255: (N, H, W), (N, C, H, W) or (N, H, W, C) are images, (N, F) become
    vectors in [0, 1]. Other numbers are taken as they are: (N, F) vectors, or images in floats.
    Labels are 0…K-1, or text. Without a test part, a fifth of each class is held out by a fixed
    seed.
    """
    arrays = _load(path)
    classes = _classes(arrays, path)
    train = _part(arrays, "train", classes, path)
    if not {"x_test", "y_test"} & arrays.keys():
        train, test = _held_out(train, path)
    else:
        test = _part(arrays, "test", classes, path)
        _check_alike(arrays, train, test, path)
    kind = "image" if train[0].ndim == 4 else "vector"
    return Dataset(path.stem, split_of(*train), split_of(*test), classes, kind)


def _load(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as stream:
            if not holds_arrays(stream):
                raise _wrong(path, "it is no .npz file")
            loaded = np.load(stream, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise _wrong(path, "it is one array, not an .npz of several")
            with loaded as file:
                return {key: file[key] for key in KEYS if key in file.files}
    except DataError:
        raise
    except OSError as error:
        raise damaged(
            path, f"cannot be read ({error})", "check the path and its permissions"
        ) from error
    except Exception as error:  # a damaged zip can go wrong in nearly any way
        raise _wrong(path, f"its arrays cannot be read ({array_fault(error)})") from error


def holds_arrays(stream: BinaryIO) -> bool:
    """Whether a file begins as .npy and .npz do; numpy would take any other for a pickle."""
    start = stream.read(2)
    stream.seek(0)
    return start in (b"PK", b"\x93N")


def array_fault(error: Exception) -> str:
    """What numpy says of arrays that it cannot read, less its advice to unpickle them."""
    told = str(error)
    return "it holds Python objects, which are never loaded" if "pickle" in told else told


def _wrong(path: Path, found: str) -> DataError:
    return damaged(
        path, found, "write it with numpy.savez(path, x_train=…, y_train=…, x_test=…, y_test=…)"
    )


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
    if not np.array_equal(found, np.arange(len(found))):
        raise _wrong(
            path,
            f"y_train must use every label from 0 up, without a gap; found {_brief(found)}. "
            "Renumber the labels, or give the names of all classes as `classes`",
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
        numbers = labels.astype(np.int64)
    wrong = (numbers < 0) | (numbers >= len(classes))
    if wrong.any():
        raise _wrong(
            path,
            f"y_{name} has the label {labels[wrong][0].item()!r}, out of range: training has "
            f"{len(classes)} classes, {_brief(np.array(classes))}",
        )
    return x, numbers


def _check_alike(arrays: dict[str, np.ndarray], train: Part, test: Part, path: Path) -> None:
    """Pixels and other numbers are on different scales, even where both become vectors."""
    kinds = arrays["x_train"].dtype, arrays["x_test"].dtype
    are_pixels = [kind == np.uint8 for kind in kinds]
    if train[0].shape[1:] != test[0].shape[1:] or are_pixels[0] != are_pixels[1]:
        raise _wrong(
            path,
            f"x_train has examples of {train[0].shape[1:]} ({kinds[0]}), x_test of "
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
    if x.dtype.kind not in "fiub" or x.ndim not in (2, 3, 4) or 0 in x.shape[1:]:
        raise _wrong(
            path,
            f"{name} must be numbers of shape (N, F), (N, H, W) or (N, C, H, W), it is {x.dtype} "
            f"of {x.shape}",
        )
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in CHANNELS and x.shape[3] in CHANNELS:
        x = x.transpose(0, 3, 1, 2)
    if x.dtype == np.uint8:
        return x if x.ndim == 4 else x.astype(np.float32) / 255
    with np.errstate(over="ignore"):  # what does not fit is told of below
        x = x.astype(np.float32)
    if not np.isfinite(x).all():
        raise _wrong(path, f"{name} has values that are not finite numbers in float32")
    return x


def _held_out(train: Part, path: Path) -> tuple[Part, Part]:
    x, y = train
    test = stratified_test_rows(y)
    if not test.any():
        raise _wrong(path, "no test part can be held out: no class has two examples")
    return (x[~test], y[~test]), (x[test], y[test])


def _brief(values: np.ndarray) -> str:
    shown = ", ".join(str(value) for value in values[:12])
    return f"{shown}, …" if len(values) > 12 else shown
