"""Files in, classes out."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from cosnorm.study.data import take
from cosnorm.study.data.errors import DataError
from cosnorm.study.data.images import is_picture, read_picture
from cosnorm.study.data.npy import read_arrays
from cosnorm.study.data.tables import read_table
from cosnorm.study.data.text import TextFeatures
from cosnorm.study.data.texts import is_document, read_document
from cosnorm.study.names import PICTURES
from cosnorm.study.runs.errors import RunError
from cosnorm.study.runs.storage import Storage, storage_at
from cosnorm.study.train.run import LoadedRun, load_run
from cosnorm.study.train.vocabulary import read_vocabulary

_TABLES = (".csv", ".tsv")
_ARRAYS = (".npy", ".npz", *_TABLES)
_WANTED = "give an image, or rows of numbers in an .npy, .npz or .csv file"


class Prediction(NamedTuple):
    """What became of one row: a class and its probability, or the error that kept it from one."""

    name: str
    label: str | None
    probability: float | None
    error: str | None = None


class _Part(NamedTuple):
    """Some rows of a file or folder: every name in order, those with an error without a row."""

    names: list[str]
    rows: torch.Tensor | None
    errors: dict[str, str]


def predict_file(
    run: str | Path | Storage, file: str | Path, *, averaged: bool = True
) -> Iterator[Prediction]:
    """A name, a class and its probability for each row of the file.

    file: an image, a folder of images, an .npy of rows, an .npz with rows under `x`, `x_test` or
    `x_train`, the first that is there, or as its only array, or a .csv file. Arrays are read as in
    training: images with their channels first, last or left out, and vectors of bytes as bytes over
    255. Of a table the columns of training are taken, by name. Images are turned as their EXIF data
    says and brought to the size and the channels of the training images.
    For a run on documents: a text file, one document, or a folder of .txt files. The head of a post
    is left out, as it was in training. Hidden files of a folder are passed over.

    A file that cannot be classified is a `DataError`; in a folder it is a prediction without class,
    whose `error` says why, and the others follow.
    """
    storage = storage_at(run)
    return _predictions(storage, load_run(storage, averaged=averaged), Path(file))


def _predictions(storage: Storage, loaded: LoadedRun, path: Path) -> Iterator[Prediction]:
    kind = path.suffix.lower()
    if loaded.kind == "sparse" and kind not in (*PICTURES, *_ARRAYS):
        parts = _texts(loaded, storage, path)
    elif path.is_dir() or kind in PICTURES:
        parts = _images(loaded, path)
    else:
        parts = _arrays(loaded, path)
    for part in parts:
        best = iter(() if part.rows is None else _best(storage.label, loaded, part.rows))
        for name in part.names:
            error = part.errors.get(name)
            yield Prediction(name, *(next(best) if error is None else (None, None)), error)


def _best(run: str, loaded: LoadedRun, rows: torch.Tensor) -> list[tuple[str, float]]:
    best = loaded.probabilities(rows).max(1)
    if best.values.isnan().any():
        raise RunError(
            f"{run}: its network gives no numbers, so it cannot classify; a run that has "
            "diverged is trained anew with a lower learning rate"
        )
    labels = [loaded.classes[k] for k in best.indices.tolist()]
    return list(zip(labels, best.values.tolist(), strict=True))


def _texts(run: LoadedRun, storage: Storage, path: Path) -> Iterator[_Part]:
    text = read_vocabulary(storage, run.sample_shape[0])
    files = sorted(filter(is_document, path.rglob("*"))) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path}: no .txt file in this folder")
    for start in range(0, len(files), 100):
        part = _documents(text, files[start : start + 100])
        if part.errors and not path.is_dir():
            raise DataError(part.errors[str(path)])
        yield part


def _documents(text: TextFeatures, files: list[Path]) -> _Part:
    documents: dict[str, bytes] = {}
    errors: dict[str, str] = {}
    for file in files:
        try:
            documents[str(file)] = read_document(file)
        except DataError as error:
            errors[str(file)] = str(error)
    rows = text.rows(list(documents.values()))
    known = rows.crow_indices().diff() > 0
    for name, is_known in zip(documents, known.tolist(), strict=True):
        if not is_known:
            errors[name] = (
                f"{name}: none of its words is among the {len(text.words):,} that the run knows; "
                "leave it out"
            )
    chosen = take(rows, known.nonzero().squeeze(1)) if known.any() else None
    return _Part(list(map(str, files)), chosen, errors)


def _images(run: LoadedRun, path: Path) -> Iterator[_Part]:
    if run.kind != "image":
        raise DataError(f"{path}: the run was trained on rows of numbers, not on images")
    if run.dtype != "uint8":
        raise DataError(
            f"{path}: the run was trained on images in floats, whose scale a file of pixels does "
            "not have; give rows in an .npy or .npz file"
        )
    files = sorted(filter(is_picture, path.rglob("*"))) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path}: no image in this folder ({', '.join(sorted(PICTURES))})")
    for file in files:
        name = str(file)
        try:
            part = _Part([name], _image(file, run.sample_shape), {})
        except DataError as error:
            if not path.is_dir():
                raise
            part = _Part([name], None, {name: str(error)})
        yield part


def _image(path: Path, shape: tuple[int, ...]) -> torch.Tensor:
    channels, height, width = shape
    pixels = read_picture(path, (width, height), "L" if channels == 1 else "RGB")
    return torch.from_numpy(pixels.copy())[None]


def _arrays(run: LoadedRun, path: Path) -> Iterator[_Part]:
    rows = _table_rows(run, path) if path.suffix.lower() in _TABLES else _array_rows(path)
    if rows.ndim == 0 or rows.dtype.kind not in "uifb":
        raise DataError(f"{path}: rows must be numbers; got {rows.dtype} of shape {rows.shape}")
    rows = _channels_first(rows, run.sample_shape)
    for start in range(0, len(rows), 1000):
        part = _stored(path, rows[start : start + 1000], run)
        yield _Part([str(start + i) for i in range(len(part))], torch.from_numpy(part), {})


def _channels_first(rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Images (N, H, W) or (N, H, W, C) as the (N, C, H, W) that training made of them."""
    if len(shape) == 3 and rows.shape[1:] == shape[1:] and shape[0] == 1:
        return rows[:, None]
    is_last = rows.ndim == 4 and rows.shape[1:] == (*shape[1:], shape[0])
    return rows.transpose(0, 3, 1, 2) if is_last and rows.shape[1:] != shape else rows


def _stored(path: Path, rows: np.ndarray, run: LoadedRun) -> np.ndarray:
    """Rows in the type, and on the scale, in which the training rows were stored."""
    if run.dtype == "uint8":
        if rows.size and not (0 <= rows.min() <= rows.max() <= 255 and (rows % 1 == 0).all()):
            raise DataError(
                f"{path}: pixels must be whole numbers, 0 to 255, as in training; got "
                f"{rows.min()} to {rows.max()} ({rows.dtype})"
            )
        return np.ascontiguousarray(rows, dtype=np.uint8)
    if rows.dtype == np.uint8 and run.kind != "sparse":
        if run.kind == "image":
            raise DataError(f"{path}: images must be floats, as in training; got uint8")
        return rows.astype(np.float32) / 255
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(rows, dtype=np.float32)
    if not np.isfinite(numbers).all():
        raise DataError(f"{path}: rows must be finite numbers in float32; some are not")
    return numbers


def _array_rows(path: Path) -> np.ndarray:
    def choose(names: list[str]) -> list[str]:
        wanted = [name for name in ("x", "x_test", "x_train") if name in names]
        if not wanted and len(names) != 1:
            raise DataError(
                f"{path}: no array x, x_test or x_train; it has {', '.join(names) or 'none'}"
            )
        return [*wanted, *names][:1]

    (rows,) = read_arrays(path, choose, _WANTED).values()
    return rows


def _table_rows(run: LoadedRun, path: Path) -> np.ndarray:
    """The columns of training, whatever their order; all of them where training had no names."""
    table = read_table(path)
    wanted = run.columns or table.columns
    if missing := [name for name in wanted if name not in table.columns]:
        raise DataError(
            f"{path}: no column {missing[0]!r}, which training had; it has "
            f"{', '.join(table.columns[:12])}"
        )
    return table.numbers[:, [table.columns.index(name) for name in wanted]]
