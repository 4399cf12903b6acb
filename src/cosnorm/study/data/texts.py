"""The user's own documents: a folder of class folders with .txt files."""

from array import array
from pathlib import Path

import numpy as np
import torch

from cosnorm.study.data.dataset import Dataset, Split
from cosnorm.study.data.errors import DataError
from cosnorm.study.data.folders import File, class_folders
from cosnorm.study.data.text import TextFeatures, without_head, words_in
from cosnorm.study.data.tfidf import Counts, Variant, features, fitted

MOST_BYTES = 64 << 20  # of one document


def text_folders(root: Path, tfidf: Variant = "raw", min_df: int = 5) -> Dataset:
    """A data set from `root/train/CLASS/*.txt` and `root/test/CLASS/*.txt`, or `root/CLASS/*.txt`.

    Which folders are the parts, `class_folders` says. A file is one document; its words are runs of
    two or more letters a to z, in lower case, and the head of a post is left out. Features are the
    TF-IDF of the words in at least `min_df` training documents, as for 20news.

    Args:
        tfidf: "raw" (tf · idf) or "l2" (each document then of length one).
        min_df: training documents that a word must be in.
    """
    found = class_folders(root, is_document, "texts")
    numbers: dict[bytes, int] = {}
    triples = [_triples(part, numbers) for part in (found.train, found.test)]
    if not numbers:
        raise DataError(f"{root}: no words of two or more letters a to z in its texts")
    counts = [
        Counts.from_triples(entries[0], entries[1], entries[2], (len(part), len(numbers)))
        for entries, part in zip(triples, (found.train, found.test), strict=True)
    ]
    weighting = fitted(counts[0], tfidf, min_df)
    train, test = (
        Split(features(part, weighting), torch.tensor([label for _, label in files]))
        for part, files in zip(counts, (found.train, found.test), strict=True)
    )
    text = TextFeatures.of(list(numbers), weighting)
    return Dataset(root.name, train, test, found.classes, "sparse", text, notes=found.notes)


def is_document(path: Path) -> bool:
    """By its name and kind: opening a pipe would wait for ever."""
    return path.suffix.lower() == ".txt" and not path.name.startswith(".") and path.is_file()


def read_document(path: Path) -> bytes:
    """The text of a file, without the head of a post."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if b"\0" in content:
        raise DataError(f"{path}: not a text file in UTF-8 or another plain encoding")
    if len(content) > MOST_BYTES:
        raise DataError(f"{path}: more than {MOST_BYTES:,} bytes; divide it into documents")
    return without_head(content)


def _triples(files: list[File], numbers: dict[bytes, int]) -> np.ndarray:
    """Documents, words and counts, row by row; new words get the next number."""
    triples = array("q")
    for document, (path, _) in enumerate(files):
        for word, count in words_in(read_document(path)).items():
            triples.extend((document, numbers.setdefault(word, len(numbers)), count))
    return np.frombuffer(triples, np.int64).reshape(-1, 3).T
