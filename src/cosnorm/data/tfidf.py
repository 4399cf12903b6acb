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

from cosnorm.data.errors import DataError
from cosnorm.data.rows import sparse_csr

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


def features(train: Counts, test: Counts, variant: Variant, min_df: int) -> tuple[Tensor, Tensor]:
    """Both parts as float32 sparse CSR tensors over the words with df ≥ `min_df` on training."""
    if variant not in ("raw", "l2"):
        raise DataError(f"tfidf must be 'raw' or 'l2', received {variant!r}")
    if not isinstance(min_df, int) or min_df < 1:
        raise DataError(f"min_df must be a whole number of at least 1, received {min_df!r}")
    df = np.bincount(train.words, minlength=train.vocabulary)
    chosen = df >= min_df
    if not chosen.any():
        raise DataError(f"no word occurs in {min_df} training documents; lower min_df")
    column = np.where(chosen, np.cumsum(chosen) - 1, -1)
    idf = np.log((1 + train.documents) / (1 + df)) + 1
    parts = [_weighted(part, idf, column, variant) for part in (train, test)]
    largest = np.zeros(int(chosen.sum()))
    np.maximum.at(largest, parts[0][1], parts[0][2])
    return _scaled(*parts[0], largest), _scaled(*parts[1], largest)


def _weighted(
    part: Counts, idf: np.ndarray, column: np.ndarray, variant: Variant
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """indptr, columns and tf·idf of the chosen words; rows of length one for `l2`."""
    columns = column[part.words]
    kept = columns >= 0
    rows = part.rows()[kept]
    values = part.counts[kept] * idf[part.words[kept]]
    if variant == "l2":
        lengths = np.sqrt(np.bincount(rows, weights=values**2, minlength=part.documents))
        values /= lengths[rows]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=part.documents))])
    return indptr, columns[kept], values


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
