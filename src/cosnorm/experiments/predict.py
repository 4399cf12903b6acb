"""Files in, classes out."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch

from cosnorm.data import take
from cosnorm.data.arrays import array_fault, holds_arrays
from cosnorm.data.errors import DataError, require
from cosnorm.data.text import TextFeatures, without_head
from cosnorm.experiments.errors import RunError
from cosnorm.experiments.run import LoadedRun, load_run
from cosnorm.experiments.storage import LocalStorage, Storage
from cosnorm.experiments.vocabulary import read_vocabulary

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
_ARRAYS = (".npy", ".npz")
_NO_ARRAYS = "neither an image nor an .npy or .npz file of numbers"


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
    run: str | Path, file: str | Path, *, averaged: bool = True
) -> Iterator[Prediction]:
    """A name, a class and its probability for each row of the file.

    file: an image, a folder of images, an .npy of rows, or an .npz with rows under `x`, `x_test`,
    or as its only array. Arrays are read as in training: images with their channels first, last or
    left out, and vectors of bytes as bytes over 255. Images are brought to the size and the
    channels of the training images.
    For a run on documents: a text file, one document, or a folder of .txt files. The head of a post
    is left out, as it was in training.

    A file that cannot be classified is a `DataError`; in a folder it is a prediction without class,
    whose `error` says why, and the others follow.
    """
    return _predictions(run, load_run(run, averaged=averaged), Path(file))


def _predictions(run: str | Path, loaded: LoadedRun, path: Path) -> Iterator[Prediction]:
    kind = path.suffix.lower()
    if loaded.kind == "sparse" and kind not in (*_IMAGES, *_ARRAYS):
        parts = _texts(loaded, LocalStorage(run), path)
    elif path.is_dir() or kind in _IMAGES:
        parts = _images(loaded, path)
    else:
        parts = _arrays(loaded, path)
    for part in parts:
        best = iter(() if part.rows is None else _best(run, loaded, part.rows))
        for name in part.names:
            error = part.errors.get(name)
            yield Prediction(name, *(next(best) if error is None else (None, None)), error)


def _best(run: str | Path, loaded: LoadedRun, rows: torch.Tensor) -> list[tuple[str, float]]:
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
    files = sorted(p for p in path.rglob("*.txt") if p.is_file()) if path.is_dir() else [path]
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
            documents[str(file)] = _document(file)
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


def _document(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if b"\0" in content:
        raise DataError(f"{path}: not a text file in UTF-8 or another plain encoding")
    return without_head(content)


def _images(run: LoadedRun, path: Path) -> Iterator[_Part]:
    if run.kind != "image":
        raise DataError(f"{path}: the run was trained on rows of numbers, not on images")
    if run.dtype != "uint8":
        raise DataError(
            f"{path}: the run was trained on images in floats, whose scale a file of pixels does "
            "not have; give rows in an .npy or .npz file"
        )
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in _IMAGES and p.is_file())
    else:
        files = [path]
    if not files:
        raise DataError(f"{path}: no image in this folder ({', '.join(_IMAGES)})")
    image_module = require("PIL.Image", "reading images")
    for file in files:
        name = str(file)
        try:
            part = _Part([name], _image(image_module, file, run.sample_shape), {})
        except DataError as error:
            if not path.is_dir():
                raise
            part = _Part([name], None, {name: str(error)})
        yield part


def _image(image_module: Any, path: Path, shape: tuple[int, ...]) -> torch.Tensor:
    channels, height, width = shape
    try:
        with image_module.open(path) as image:
            if image.mode[0] in "IF":
                raise DataError(f"{path}: more than 8 bits a pixel; save it with 8")
            ready = image.convert("L" if channels == 1 else "RGB").resize((width, height))
            pixels = np.asarray(ready, dtype=np.uint8)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except DataError:
        raise
    except (OSError, ValueError, SyntaxError, image_module.DecompressionBombError) as error:
        raise DataError(f"{path}: not an image that can be read ({error})") from error
    return torch.from_numpy(pixels.reshape(height, width, -1).transpose(2, 0, 1).copy())[None]


def _arrays(run: LoadedRun, path: Path) -> Iterator[_Part]:
    try:
        with open(path, "rb") as file:
            if not holds_arrays(file):
                raise DataError(f"{path}: {_NO_ARRAYS}; give one of these")
            stored = np.load(file, allow_pickle=False)
            rows = stored if isinstance(stored, np.ndarray) else _chosen(path, stored)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except DataError:
        raise
    except (OSError, ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: {_NO_ARRAYS} ({array_fault(error)})") from error
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


def _chosen(path: Path, stored: "np.lib.npyio.NpzFile") -> np.ndarray:
    names = list(stored.files)
    name = next((n for n in ("x", "x_test") if n in names), names[0] if len(names) == 1 else None)
    if name is None:
        raise DataError(f"{path}: no array x or x_test; it has {', '.join(names) or 'none'}")
    return stored[name]
