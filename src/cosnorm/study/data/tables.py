"""The user's own tables: CSV files with a line of names, and a column of labels among numbers."""

import csv
import sys
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cosnorm.study.data.arrays import brief, held_out
from cosnorm.study.data.dataset import Dataset, split_of
from cosnorm.study.data.errors import DataError, damaged
from cosnorm.study.data.memory import ask_memory
from cosnorm.study.data.splits import divided, held_out_note

LABELS = ("label", "class", "target", "y")
SPLIT = "split"
_MOST_RARE = 20  # classes that are numbers, of which most may come once
_NUMBER = 5.2  # bytes: a float32, room to grow, and a fifth moved where a test part is held out
_ROW = 28  # bytes for the places of its label in lists, and for its number


class Table(NamedTuple):
    """The numbers (rows, columns) of a table, their names, and the text of its other columns."""

    columns: tuple[str, ...]
    numbers: np.ndarray
    labels: list[str] | None
    split: list[str] | None


def table(path: Path) -> Dataset:
    """A data set from a CSV file (or TSV) whose first line names the columns.

    The labels, numbers or text, are the column named label, class, target or y; every other column
    is numbers. A column named split says `train` or `test` of each row; without it a fifth of each
    class is held out by a fixed seed. Commas, semicolons or tabs separate.
    """
    read = read_table(path)
    if read.labels is None:
        raise damaged(
            path,
            f"no column of labels among {brief(np.array(read.columns))}",
            f"name it {', '.join(LABELS[:-1])} or {LABELS[-1]} in the first line",
        )
    names = sorted(set(read.labels), key=_natural)
    _check_classes(names, len(read.labels), path)
    if len(names) < 2:
        raise damaged(path, f"{len(names)} class in it, at least two needed", "add rows of others")
    number = {name: i for i, name in enumerate(names)}
    y = np.array([number[label] for label in read.labels])
    notes = ()
    if read.split is None:
        train, test = held_out((read.numbers, y), path)
        notes = (held_out_note(path.name, len(test[1]), len(y)),)
    else:
        train, test = _divided(read, y, names, path)
    return Dataset(
        path.stem,
        split_of(*train),
        split_of(*test),
        tuple(names),
        "vector",
        columns=read.columns,
        notes=notes,
    )


def _check_classes(names: list[str], rows: int, path: Path) -> None:
    """Refuse labels that are quantities: decimals, or numbers of which hardly one comes twice."""
    if not all(map(_is_number, names)):
        return
    decimals = [name for name in names if not float(name).is_integer()]
    if decimals or len(names) == rows > 1 or len(names) > max(_MOST_RARE, rows // 2):
        found = f"such as {decimals[0]}" if decimals else f"{len(names):,} in {rows:,} rows"
        raise damaged(
            path,
            f"its labels look like numbers to predict ({found}), and here only classes are "
            "predicted",
            "put rows into classes; if they are classes already, name them by words",
        )


def _divided(
    read: Table, y: np.ndarray, names: list[str], path: Path
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    assert read.split is not None
    if others := sorted({text.lower() for text in set(read.split)} - {"train", "test"}):
        raise damaged(
            path, f"split is {others[0]!r} in a row, and must be train or test", "name it so"
        )
    is_test = np.array([text.lower() == "test" for text in read.split])
    for part, rows in (("train", ~is_test), ("test", is_test)):
        if not rows.any():
            raise damaged(path, f"split is never {part}", "leave the column out, or add such rows")
    if missing := set(range(len(names))) - set(y[~is_test].tolist()):
        raise damaged(
            path, f"the class {names[min(missing)]!r} has no row to train on", "add one or drop it"
        )
    return divided(read.numbers, y, is_test)


def read_table(path: Path) -> Table:
    """The rows of a CSV file; all that can go wrong is a `DataError` that names the line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            separator = max(",;\t", key=first.count)
            file.seek(0)
            row = _NUMBER * (first.count(separator) + 1) + _ROW
            ask_memory(path, round(row * _lines(path)), "its rows", "give fewer rows")
            return _read(path, csv.reader(file, delimiter=separator, strict=True))
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise damaged(
            path, f"cannot be read ({error})", "check the path and its permissions"
        ) from error
    except (csv.Error, UnicodeError, MemoryError) as error:
        raise damaged(
            path, f"not a CSV file in UTF-8 ({error or 'out of memory'})", "save it as one"
        ) from error


def _lines(path: Path) -> int:
    """The lines of a file: as many as rows, or more where text has line breaks within."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def _read(path: Path, lines: Iterator[list[str]]) -> Table:
    names = [name.strip() for name in next(lines, [])]
    if wrong := _unnamed(names):
        raise damaged(
            path, f"its first line must name every column, and no two alike, but {wrong}", "name it"
        )
    places = {name.lower(): place for place, name in enumerate(names)}
    labels = [places[name] for name in LABELS if name in places]
    if len(labels) > 1:
        told = " and ".join(names[place] for place in labels)
        raise damaged(path, f"it has several columns of labels: {told}", "rename all but one")
    apart = {*labels, *([places[SPLIT]] if SPLIT in places else [])}
    kept = [place for place in range(len(names)) if place not in apart]
    if not kept:
        raise damaged(path, "it has no column of numbers", "add some")
    texts: dict[int, list[str]] = {place: [] for place in apart}
    numbers = array("f")  # packed: rows of objects would take many times the memory
    for count, row in enumerate(lines, 2):
        if row:
            numbers.frombytes(_numbers(path, count, row, names, kept).tobytes())
            for place in apart:
                texts[place].append(sys.intern(row[place].strip()))  # most labels come often
    if not numbers:
        raise damaged(path, "it has no row under its first line", "add some")
    return Table(
        tuple(names[place] for place in kept),
        np.frombuffer(numbers, np.float32).reshape(-1, len(kept)),
        texts[labels[0]] if labels else None,
        texts[places[SPLIT]] if SPLIT in places else None,
    )


def _unnamed(names: list[str]) -> str | None:
    """What is wrong with the names of columns, if anything is."""
    if not all(names):
        return f"column {names.index('') + 1} has no name"
    often = (item for item in Counter(names).items() if item[1] > 1)
    return next((f"{count} are named {name!r}" for name, count in often), None)


def _numbers(
    path: Path, line: int, row: list[str], names: list[str], kept: list[int]
) -> np.ndarray:
    if len(row) != len(names):
        raise damaged(
            path, f"line {line:,} has {len(row)} values for {len(names)} columns", "complete it"
        )
    try:
        with np.errstate(over="ignore"):
            numbers = np.array([float(row[place]) for place in kept]).astype(np.float32)
        if np.isfinite(numbers).all():
            return numbers
    except ValueError:
        pass
    wrong = next(place for place in kept if not _is_number(row[place]))
    raise damaged(
        path,
        f"line {line:,} has {row[wrong][:40]!r} in the column {names[wrong]!r}, which is no finite "
        "number",
        "put numbers for words, fill gaps, or leave the column or the row out",
    )


def _is_number(text: str) -> bool:
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.float32(float(text))))
    except ValueError:
        return False


def _natural(label: str) -> tuple[float, str]:
    """Sort key by which 9 comes before 10, and numbers before words."""
    return (float(label), label) if _is_number(label) else (float("inf"), label)
