"""The user's own pictures: a folder of class folders, read with Pillow."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from cosnorm.study.data.dataset import Dataset, split_of
from cosnorm.study.data.errors import DataError, damaged, require
from cosnorm.study.data.folders import class_folders
from cosnorm.study.data.memory import ask_memory
from cosnorm.study.names import PICTURES

MOST_PIXELS = 1 << 26


def image_folders(root: Path, size: int | None = None) -> Dataset:
    """A data set from `root/train/CLASS/*` and `root/test/CLASS/*`, or from `root/CLASS/*`.

    Which folders are the parts, `class_folders` says. Classes are the folders' names in
    alphabetical order. Pictures are turned as their EXIF data says. If every one is grey there is
    one channel, else three; transparency is ignored. Hidden files, files that are not pictures by
    their suffix, and what is no regular file are passed over.

    Args:
        size: scale every picture to size × size; without it all must be of one size already.
    """
    if size is not None and (not isinstance(size, int) or not 1 <= size**2 <= MOST_PIXELS):
        most = math.isqrt(MOST_PIXELS)
        raise DataError(f"image size must be a number of pixels, 1 to {most:,}; got {size!r}")
    found = class_folders(root, is_picture, "pictures")
    pictures = _Pictures(size)
    _ask_memory(root, len(found.train) + len(found.test), pictures.read(found.train[0][0]))
    x_train, x_test = (
        pictures.read_all([path for path, _ in part]) for part in (found.train, found.test)
    )
    if pictures.are_grey:
        x_train, x_test = x_train[:, :1], x_test[:, :1]
    y_train, y_test = (np.array([label for _, label in part]) for part in (found.train, found.test))
    return Dataset(
        root.name,
        split_of(x_train, y_train),
        split_of(x_test, y_test),
        found.classes,
        "image",
        notes=found.notes,
    )


def _ask_memory(root: Path, count: int, first: np.ndarray) -> None:
    """Three channels of each, and where all may be grey one of them once more."""
    channels, height, width = first.shape
    ask_memory(
        root,
        (channels + _is_grey(first)) * height * width * count,
        f"{count:,} pictures of {width} × {height} pixels",
        "give a smaller --image-size",
    )


def is_picture(path: Path) -> bool:
    """By its name and kind: opening a pipe that is named like a picture would wait for ever."""
    return path.suffix.lower() in PICTURES and not path.name.startswith(".") and path.is_file()


def read_picture(path: Path, size: tuple[int, int] | None = None, mode: str = "RGB") -> np.ndarray:
    """A picture as uint8 (C, H, W), turned as its EXIF data says, scaled to (W, H) where wanted.

    mode: "RGB" for three channels, "L" for one.
    """
    pillow: Any = require("PIL.Image", "reading images")
    turned: Any = require("PIL.ImageOps", "reading images").exif_transpose
    try:
        with pillow.open(path) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise damaged(path, f"{picture.size} is too large for a picture", "shrink it")
            if picture.mode[0] in "IF":
                raise damaged(path, "more than 8 bits a pixel", "save it with 8")
            ready = turned(picture).convert(mode)
            ready = ready if size is None else ready.resize(size)
            return np.asarray(ready).reshape(ready.height, ready.width, -1).transpose(2, 0, 1)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except Exception as error:  # each decoder has exceptions of its own
        raise damaged(path, f"not a readable picture ({error})", "replace or remove it") from error


class _Pictures:
    """Reads pictures, sees to it that all are of one size, and whether all are grey."""

    def __init__(self, size: int | None) -> None:
        self._size = None if size is None else (size, size)
        self._first: tuple[Path, tuple[int, int]] | None = None
        self.are_grey = True

    def read(self, path: Path) -> np.ndarray:
        picture = read_picture(path, self._size)
        self._check_size(path, (picture.shape[2], picture.shape[1]))
        self.are_grey = self.are_grey and _is_grey(picture)
        return picture

    def read_all(self, paths: list[Path]) -> np.ndarray:
        """One array of them, filled one by one: a list to stack would take as much again."""
        first = self.read(paths[0])
        x = np.empty((len(paths), *first.shape), first.dtype)
        for row, path in zip(x, paths, strict=True):
            row[:] = self.read(path)
        return x

    def _check_size(self, path: Path, size: tuple[int, int]) -> None:
        if self._first is None:
            self._first = (path, size)
        elif size != self._first[1]:
            raise damaged(
                path,
                f"{size[0]} × {size[1]} pixels, but {self._first[0].name} has "
                f"{self._first[1][0]} × {self._first[1][1]}",
                "scale them alike, or give --image-size",
            )


def _is_grey(picture: np.ndarray) -> bool:
    return bool((picture == picture[:1]).all())
