"""The user's own arrays: an .npz with x_train, y_train and, if there is one, a test part."""

import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

from cosnorm.study.data.dataset import Dataset, split_of
from cosnorm.study.data.errors import DataError, damaged
from cosnorm.study.data.memory import ask_memory
from cosnorm.study.data.splits import held_out_note, stratified_test_rows

KEYS = ("x_train", "y_train", "x_test", "y_test", "classes")
CHANNELS = (1, 3, 4)
ALONE = ""  # the name of the array of an .npy file, which has none
REMEDY = "write it with numpy.savez(path, x_train=…, y_train=…, x_test=…, y_test=…)"

Part = tuple[np.ndarray, np.ndarray]


def npz(path: Path) -> Dataset:
    """A data set from `x_train`, `y_train`, `x_test`, `y_test` (and `classes`, names) in an .npz.

    uint8 means pixels 0…255: (N, H, W), (N, C, H, W) or (N, H, W, C) are images, (N, F) become
    vectors in [0, 1]. Other numbers are taken as they are: (N, F) vectors, or images in floats.
    Labels are 0…K-1, 1…K, or text. Without a test part, a fifth of each class is held out by a
    fixed seed.
    """
    arrays = _load(path)
    classes = _classes(arrays, path)
    train = _part(arrays, "train", classes, path)
    notes = ()
    if not {"x_test", "y_test"} & arrays.keys():
        total = len(train[1])
        train, test = held_out(train, path)
        notes = (held_out_note(path.name, len(test[1]), total),)
    else:
        test = _part(arrays, "test", classes, path)
        _check_alike(arrays, train, test, path)
    kind = "image" if train[0].ndim == 4 else "vector"
    return Dataset(path.stem, split_of(*train), split_of(*test), classes, kind, notes=notes)


def _load(path: Path) -> dict[str, np.ndarray]:
    arrays = read_arrays(path, lambda names: [key for key in KEYS if key in names], REMEDY)
    if ALONE in arrays:
        raise _wrong(path, "it is one array, not an .npz of several")
    return arrays


def read_arrays(
    path: Path, choose: Callable[[list[str]], list[str]], remedy: str
) -> dict[str, np.ndarray]:
    """The arrays of an .npz that `choose` takes from their names; of an .npy the one, as `ALONE`.

    Nothing is unpickled, and what the arrays say of their sizes is held against the file and the
    memory before any is expanded. All that can go wrong is a `DataError` with the remedy.
    """
    try:
        with path.open("rb") as stream:
            start = stream.read(2)  # numpy would take any other beginning for a pickle
            stream.seek(0)
            if start == b"\x93N":
                _check_array(stream, path.stat().st_size)
                stream.seek(0)
                return {ALONE: np.lib.format.read_array(stream, allow_pickle=False)}
            if start != b"PK":
                raise damaged(path, "it is no .npy or .npz file", remedy)
            return _members(path, stream, choose)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise damaged(
            path, f"cannot be read ({error})", "check the path and its permissions"
        ) from error
    except Exception as error:  # a damaged zip can go wrong in nearly any way
        raise damaged(path, f"its arrays cannot be read ({_fault(error)})", remedy) from error


def _members(
    path: Path, stream: BinaryIO, choose: Callable[[list[str]], list[str]]
) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(stream) as archive:
        sizes = {i.filename.removesuffix(".npy"): i.file_size for i in archive.infolist()}
        chosen = choose(list(sizes))
        needed = 2 * sum(sizes[name] for name in chosen)  # once as stored, once as used
        ask_memory(path, needed, "its arrays", "give fewer rows, or images as uint8")
        arrays = {}
        for name in chosen:
            member = f"{name}.npy" if f"{name}.npy" in archive.namelist() else name
            with archive.open(member) as content:
                _check_array(content, sizes[name])
            with archive.open(member) as content:
                arrays[name] = np.lib.format.read_array(content, allow_pickle=False)
                content.read(1)  # at the end, where zip compares its own sum
        return arrays


def _check_array(stream: IO[bytes], size: int) -> None:
    """Refuse an array whose header promises more than its `size` bytes hold."""
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
        version, np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read(stream)
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"{dtype} of shape {shape} is more than its {size:,} bytes can hold")


def _fault(error: Exception) -> str:
    """What numpy says of arrays that it cannot read, less its advice to unpickle them."""
    told = str(error) or type(error).__name__
    return "it holds Python objects, which are never loaded" if "pickle" in told else told


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


def held_out(train: Part, path: Path) -> tuple[Part, Part]:
    """Rows and labels in two parts: a fifth of each class, by a fixed seed, is the second."""
    x, y = train
    test = stratified_test_rows(y)
    if not test.any():
        raise damaged(path, "no test part can be held out: no class has two examples", "add some")
    return (x[~test], y[~test]), (x[test], y[test])


def brief(values: np.ndarray) -> str:
    """The first of the values, for a message."""
    shown = ", ".join(str(value) for value in values[:12])
    return f"{shown}, …" if len(values) > 12 else shown
