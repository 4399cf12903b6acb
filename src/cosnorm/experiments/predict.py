"""Files in, classes out."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch

from cosnorm.data.errors import DataError, require
from cosnorm.experiments.run import LoadedRun, load_run

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


def predict_file(
    run: str | Path, file: str | Path, *, averaged: bool = True
) -> Iterator[tuple[str, str, float]]:
    """A name, a class and its probability for each row of the file.

    file: an image, a folder of images, an .npy of rows, or an .npz with rows under `x`, `x_test`,
    or as its only array. Images are brought to the size and the channels of the training images.
    """
    loaded, path = load_run(run, averaged=averaged), Path(file)
    if path.is_dir() or path.suffix.lower() in _IMAGES:
        parts = _images(loaded, path)
    else:
        parts = _arrays(path, loaded.kind == "image")
    for names, rows in parts:
        best = loaded.probabilities(rows).max(1)
        numbers = zip(names, best.indices.tolist(), best.values.tolist(), strict=True)
        yield from ((name, loaded.classes[k], p) for name, k, p in numbers)


def _images(run: LoadedRun, path: Path) -> Iterator[tuple[list[str], torch.Tensor]]:
    if run.kind != "image":
        raise DataError(f"{path}: the run was trained on rows of numbers, not on images")
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in _IMAGES)
    else:
        files = [path]
    if not files:
        raise DataError(f"{path}: no image in this folder ({', '.join(_IMAGES)})")
    for file in files:
        yield [str(file)], _image(file, run.sample_shape)


def _image(path: Path, shape: tuple[int, ...]) -> torch.Tensor:
    image_module = require("PIL.Image", "reading images")
    channels, height, width = shape
    try:
        with image_module.open(path) as image:
            ready = image.convert("L" if channels == 1 else "RGB").resize((width, height))
            pixels = np.asarray(ready, dtype=np.uint8)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError, SyntaxError, image_module.DecompressionBombError) as error:
        raise DataError(f"{path}: not an image that can be read ({error})") from error
    return torch.from_numpy(pixels.reshape(height, width, -1).transpose(2, 0, 1).copy())[None]


def _arrays(path: Path, is_image: bool) -> Iterator[tuple[list[str], torch.Tensor]]:
    try:
        with open(path, "rb") as file:
            stored = np.load(file, allow_pickle=False)
            rows = stored if isinstance(stored, np.ndarray) else _chosen(path, stored)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except DataError:
        raise
    except (OSError, ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path}: neither an image nor an .npy or .npz file of numbers ({error})"
        ) from error
    if rows.ndim == 0 or rows.dtype.kind not in "uif":
        raise DataError(f"{path}: rows must be numbers; got {rows.dtype} of shape {rows.shape}")
    if is_image and rows.size and not 0 <= rows.min() <= rows.max() <= 255:
        raise DataError(f"{path}: pixels must be 0 to 255; got {rows.min()} to {rows.max()}")
    wanted = np.uint8 if is_image else np.float32
    for start in range(0, len(rows), 1000):
        part = torch.from_numpy(np.ascontiguousarray(rows[start : start + 1000], dtype=wanted))
        yield [str(start + i) for i in range(len(part))], part


def _chosen(path: Path, stored: "np.lib.npyio.NpzFile") -> np.ndarray:
    names = list(stored.files)
    name = next((n for n in ("x", "x_test") if n in names), names[0] if len(names) == 1 else None)
    if name is None:
        raise DataError(f"{path}: no array x or x_test; it has {', '.join(names) or 'none'}")
    return stored[name]
