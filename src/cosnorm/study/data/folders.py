"""Folders of class folders: which are the training and the test part, and what is in them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cosnorm.study.data.errors import DataError
from cosnorm.study.data.splits import VALIDATION, held_out_note, stratified_test_rows

LAYOUT = "the layout is FOLDER/CLASS/FILE, or FOLDER/train/CLASS/FILE and FOLDER/test/CLASS/FILE"
_PARTS = {
    "train": ("train", "training"),
    "test": ("test", "testing"),
    "val": VALIDATION,
}

File = tuple[Path, int]


class Found(NamedTuple):
    """The files of both parts, each with the number of its class, and what there is to say."""

    classes: tuple[str, ...]
    train: list[File]
    test: list[File]
    notes: tuple[str, ...]


def class_folders(root: Path, is_wanted: Callable[[Path], bool], what: str) -> Found:
    """The files of `root` that are wanted, by class; `what` they are called.

    Beside `train`, a folder `test` is the test part, or else one named `val`, `valid`,
    `validation` or `dev`; where there is none, a fifth of each class is held out by a fixed seed.
    Capitals do not matter. Files that are wanted in other folders beside `train`, or in folders
    within a class folder, are refused; of those in no class folder there is a note.
    """
    parts = _parts(root)
    notes = _beside(root, parts, is_wanted, what) if parts else ()
    notes += _loose([root, *parts.values()], is_wanted, what)
    train_root = parts.get("train", root)
    classes = _class_names(train_root)
    train = _files(train_root, classes, is_wanted, what)
    place = parts.get("test") or parts.get("val")
    if place is None:
        train, test, note = _with_test(root.name, train, train_root, what)
        return Found(classes, train, test, (*notes, note))
    test = _files(place, classes, is_wanted, what)
    if "test" not in parts:
        notes += (f"{root.name} has no test folder: {place.name} is the test part",)
    return Found(classes, train, test, notes)


def _beside(
    root: Path, parts: dict[str, Path], is_wanted: Callable[[Path], bool], what: str
) -> tuple[str, ...]:
    """A note of each folder beside the parts; one with files that are wanted is refused."""
    others = [folder for folder in _folders(root) if folder not in parts.values()]
    for folder in others:
        if _within(folder, is_wanted):
            raise DataError(
                f"{folder}: {what} in it, and it is no part by its name, so they would not be "
                f"used; move it elsewhere, or name it test; {LAYOUT}"
            )
    return tuple(f"{root.name}: its folder {folder.name} is not used" for folder in others)


def _loose(folders: list[Path], is_wanted: Callable[[Path], bool], what: str) -> tuple[str, ...]:
    """A note of each folder with files that are wanted beside its class folders."""
    found = {folder: [p for p in sorted(folder.iterdir()) if is_wanted(p)] for folder in folders}
    return tuple(
        f"{folder.name}: {what} in no class folder are not used ({len(files):,}, such as "
        f"{files[0].name})"
        for folder, files in found.items()
        if files
    )


def _within(folder: Path, is_wanted: Callable[[Path], bool]) -> Path | None:
    """A file that is wanted, at any depth; hidden folders are passed over."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(place, name) for name in sorted(names)):
            if is_wanted(path):
                return path
    return None


def _parts(root: Path) -> dict[str, Path]:
    """The folders that are parts by their names; parts that cannot all be used are refused."""
    found: dict[str, Path] = {}
    for folder in _folders(root):
        part = next((part for part, names in _PARTS.items() if folder.name.lower() in names), None)
        if part in found:
            raise DataError(
                f"{folder}: a second {part} part beside {found[part].name}; keep one of them"
            )
        if part is not None:
            found[part] = folder
    if found and "train" not in found:
        first = next(iter(found.values()))
        raise DataError(f"{first}: a part by its name, but there is no train beside it; {LAYOUT}")
    if len(found) == 3:
        raise DataError(
            f"{found['val']}: nothing is chosen by validation here, and {found['test'].name} is "
            f"the test part already; move its files into {found['train'].name}, or elsewhere"
        )
    return found


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _class_names(folder: Path) -> tuple[str, ...]:
    names = tuple(path.name for path in _folders(folder))
    if len(names) < 2:
        raise DataError(
            f"{folder}: {len(names)} class folder(s) in it, at least two needed; {LAYOUT}"
        )
    return names


def _files(
    folder: Path, classes: tuple[str, ...], is_wanted: Callable[[Path], bool], what: str
) -> list[File]:
    if unknown := set(_class_names(folder)) - set(classes):
        raise DataError(
            f"{folder / min(unknown)}: a class that the training part does not have; {LAYOUT}"
        )
    found: list[File] = []
    for label, name in enumerate(classes):
        paths = sorted((folder / name).iterdir()) if (folder / name).is_dir() else []
        wanted = [path for path in paths if is_wanted(path)]
        _check_depth(set(paths) - set(wanted), is_wanted, what)
        if not wanted:
            raise DataError(
                f"{folder / name}: no {what} in it; add some or remove the class; {LAYOUT}"
            )
        found.extend((path, label) for path in wanted)
    return found


def _check_depth(others: set[Path], is_wanted: Callable[[Path], bool], what: str) -> None:
    """Files deeper than in a class folder may be of any meaning, so they are refused."""
    for folder in sorted(others):
        hidden = folder.name.startswith(".") or not folder.is_dir()
        if not hidden and (deep := _within(folder, is_wanted)):
            raise DataError(
                f"{deep}: {what} must lie in the class folder itself; move those in "
                f"{folder.name} up into {folder.parent.name}, or elsewhere; {LAYOUT}"
            )


def _with_test(
    name: str, files: list[File], folder: Path, what: str
) -> tuple[list[File], list[File], str]:
    mask = stratified_test_rows(np.array([label for _, label in files]))
    if not mask.any():
        raise DataError(
            f"{folder}: no test part can be held out, no class has two {what}; {LAYOUT}"
        )
    train = [file for file, held in zip(files, mask, strict=True) if not held]
    test = [file for file, held in zip(files, mask, strict=True) if held]
    return train, test, held_out_note(name, len(test), len(files))
