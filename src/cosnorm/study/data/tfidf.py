"""Word counts in, scaled TF-IDF features out, sparse throughout.

For n training documents, df_j of which hold word j:

    idf_j = ln((1 + n) / (1 + df_j)) + 1
    raw:  v_ij = tf_ij · idf_j
    l2:   v_ij = tf_ij · idf_j / ‖tf_i · idf‖₂
    both: x_ij = v_ij / max over training documents k of v_kj

Words with df_j below a minimum are left out. Word selection, idf and the maxima come from the
training documents alone, so training values lie in [0, 1]; a test value may exceed 1 and is not
clipped. In the raw variant idf_j cancels: x_ij is the word's count over its largest count.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from cosnorm.study.data.errors import DataError
from cosnorm.study.data.rows import sparse_csr

Variant = Literal["raw", "l2"]


@dataclass(frozen=True)
class Counts:
    """How often each word occurs in each document: CSR with words ascending in every row."""

    indptr: np.ndarray
    words: np.ndarray
    counts: np.ndarray
    vocabulary: int

    @classmethod
    def from_triples(
        cls, document: np.ndarray, word: np.ndarray, count: np.ndarray, shape: tuple[int, int]
    ) -> "Counts":
        """From (document, word, count) in any order; entries for the same pair are added up."""
        documents, vocabulary = shape
        cell = document.astype(np.int64) * vocabulary + word
        if np.any(np.diff(cell) <= 0):
            cell, place = np.unique(cell, return_inverse=True)
            count = np.bincount(place.reshape(-1), weights=count, minlength=len(cell))
        per_document = np.bincount(cell // vocabulary, minlength=documents)
        indptr = np.concatenate([[0], np.cumsum(per_document)])
        return cls(indptr, cell % vocabulary, count.astype(np.float64), vocabulary)

    @property
    def documents(self) -> int:
        return len(self.indptr) - 1

    def rows(self) -> np.ndarray:
        """The document of each entry."""
        return np.repeat(np.arange(self.documents), np.diff(self.indptr))


@dataclass(frozen=True, eq=False)
class Weighting:
    """What the training documents decide.

    words: the numbers of the words with df ≥ the minimum, ascending; one feature each.
    idf, largest: of each feature, as above.
    """

    words: np.ndarray
    idf: np.ndarray
    largest: np.ndarray
    variant: Variant


def fitted(train: Counts, variant: Variant, min_df: int) -> Weighting:
    """The weighting of the words with df ≥ `min_df` on training."""
    if variant not in ("raw", "l2"):
        raise DataError(f"tfidf must be 'raw' or 'l2', received {variant!r}")
    if not isinstance(min_df, int) or min_df < 1:
        raise DataError(f"min_df must be a whole number of at least 1, received {min_df!r}")
    df = np.bincount(train.words, minlength=train.vocabulary)
    words = np.flatnonzero(df >= min_df)
    if len(words) == 0:
        raise DataError(f"no word occurs in {min_df} training documents; lower min_df")
    idf = np.log((1 + train.documents) / (1 + df[words])) + 1
    largest = np.zeros(len(words))
    weighting = Weighting(words, idf, largest, variant)
    _, columns, values = _weighted(train, weighting)
    np.maximum.at(largest, columns, values)
    return weighting


def features(part: Counts, weighting: Weighting) -> Tensor:
    """Documents as a float32 sparse CSR tensor (documents, features)."""
    return _scaled(*_weighted(part, weighting), weighting.largest)


def _weighted(part: Counts, weighting: Weighting) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """indptr, columns and tf·idf of the chosen words; rows of length one for `l2`."""
    column = np.full(part.vocabulary, -1)
    column[weighting.words] = np.arange(len(weighting.words))
    columns = column[part.words]
    kept = columns >= 0
    rows, columns = part.rows()[kept], columns[kept]
    values = part.counts[kept] * weighting.idf[columns]
    if weighting.variant == "l2":
        lengths = np.sqrt(np.bincount(rows, weights=values**2, minlength=part.documents))
        values /= lengths[rows]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=part.documents))])
    return indptr, columns, values


def _scaled(
    indptr: np.ndarray, columns: np.ndarray, values: np.ndarray, largest: np.ndarray
) -> Tensor:
    # 32-bit indices: half the memory of 64-bit ones, and what the sparse libraries work in.
    return sparse_csr(
        torch.from_numpy(indptr.astype(np.int32)),
        torch.from_numpy(columns.astype(np.int32)),
        torch.from_numpy((values / largest[columns]).astype(np.float32)),
        (len(indptr) - 1, len(largest)),
    )
