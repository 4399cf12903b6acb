"""The user's own pictures: a folder of class folders, read with Pillow."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from cosnorm.data.dataset import Dataset, split_of
from cosnorm.data.errors import DataError, damaged, require
from cosnorm.data.splits import stratified_test_rows

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
MOST_PIXELS = 1 << 26
LAYOUT = "the layout is FOLDER/CLASS/IMAGE, or FOLDER/train/CLASS/IMAGE and FOLDER/test/CLASS/IMAGE"

File = tuple[Path, int]


def image_folders(root: Path, size: int | None = None) -> Dataset:
    """A data set from `root/train/CLASS/*` and `root/test/CLASS/*`, or from `root/CLASS/*`.

    Without a test folder, a fifth of each class is held out by a fixed seed. Classes are the
    folders' names in alphabetical order. If every picture is grey there is one channel, else
    three; transparency is ignored. Hidden files, files that are not pictures by their suffix, and
    what is no regular file are passed over.

    Args:
        size: scale every picture to size × size; without it all must be of one size already.
    """
    if size is not None and (not isinstance(size, int) or not 1 <= size**2 <= MOST_PIXELS):
        most = math.isqrt(MOST_PIXELS)
        raise DataError(f"image size must be a number of pixels, 1 to {most:,}; got {size!r}")
    train_root = root / "train" if (root / "train").is_dir() else root
    classes = _class_names(train_root)
    train = _files(train_root, classes)
    if train_root != root and (root / "test").is_dir():
        test = _files(root / "test", classes)
    else:
        train, test = _held_out(train, train_root)
    pictures = _Pictures(size)
    _check_memory(root, len(train) + len(test), pictures.read(train[0][0]))
    x_train, x_test = (
        np.stack([pictures.read(path) for path, _ in part]) for part in (train, test)
    )
    if all(_is_grey(x) for x in (x_train, x_test)):
        x_train, x_test = x_train[:, :1], x_test[:, :1]
    y_train, y_test = (np.array([label for _, label in part]) for part in (train, test))
    return Dataset(
        root.name, split_of(x_train, y_train), split_of(x_test, y_test), classes, "image"
    )


def _check_memory(root: Path, count: int, picture: np.ndarray) -> None:
    """Refuse what this machine cannot hold; the system would end the program without a word."""
    needed = 2 * count * picture.nbytes  # once as pictures, once as an array of them
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        _, height, width = picture.shape
        raise DataError(
            f"{root}: {count:,} pictures of {width} × {height} pixels need {needed / 1e9:,.0f} GB "
            f"of memory and there are {there / 1e9:,.0f}; give a smaller --image-size"
        )


def _class_names(folder: Path) -> tuple[str, ...]:
    names = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if len(names) < 2:
        raise DataError(
            f"{folder}: {len(names)} class folder(s) in it, at least two needed; {LAYOUT}"
        )
    return tuple(names)


def _files(folder: Path, classes: tuple[str, ...]) -> list[File]:
    if unknown := set(_class_names(folder)) - set(classes):
        raise DataError(
            f"{folder / min(unknown)}: a class that the training part does not have; {LAYOUT}"
        )
    found: list[File] = []
    for label, name in enumerate(classes):
        paths = sorted((folder / name).iterdir()) if (folder / name).is_dir() else []
        pictures = [p for p in paths if _is_picture(p)]
        if not pictures:
            raise DataError(
                f"{folder / name}: no pictures in it; add some or remove the class; {LAYOUT}"
            )
        found.extend((path, label) for path in pictures)
    return found


def _is_picture(path: Path) -> bool:
    """By its name and kind: opening a pipe that is named like a picture would wait for ever."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def _held_out(files: list[File], folder: Path) -> tuple[list[File], list[File]]:
    mask = stratified_test_rows(np.array([label for _, label in files]))
    if not mask.any():
        raise DataError(
            f"{folder}: no test part can be held out, no class has two pictures; {LAYOUT}"
        )
    return (
        [file for file, held in zip(files, mask, strict=True) if not held],
        [file for file, held in zip(files, mask, strict=True) if held],
    )


class _Pictures:
    """Reads pictures as uint8 (3, H, W) and sees to it that all are of one size."""

    def __init__(self, size: int | None) -> None:
        self._pillow: Any = require("PIL.Image", "reading image folders")
        self._size = size
        self._first: tuple[Path, tuple[int, int]] | None = None

    def read(self, path: Path) -> np.ndarray:
        try:
            with self._pillow.open(path) as picture:
                if picture.width * picture.height > MOST_PIXELS:
                    raise damaged(
                        path, f"{picture.size} is too large for a training picture", "shrink it"
                    )
                if picture.mode[0] in "IF":
                    raise damaged(path, "more than 8 bits a pixel", "save it with 8")
                if self._size is not None:
                    picture = picture.convert("RGB").resize((self._size, self._size))
                self._check_size(path, picture.size)
                return np.asarray(picture.convert("RGB")).transpose(2, 0, 1)
        except DataError:
            raise
        except Exception as error:  # each decoder has exceptions of its own
            raise damaged(
                path, f"not a readable picture ({error})", "replace or remove it"
            ) from error

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


def _is_grey(x: np.ndarray) -> bool:
    return bool((x[:, 0] == x[:, 1]).all() and (x[:, 0] == x[:, 2]).all())
