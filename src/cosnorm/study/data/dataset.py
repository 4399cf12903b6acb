"""A data set as the training loop sees it: two parts of tensors and the names of the classes."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from cosnorm.study.data.text import TextFeatures

Kind = Literal["image", "vector", "sparse"]


@dataclass(frozen=True, eq=False)
class Split:
    """Examples `x` and their classes `y` (int64), row for row.

    `x` is uint8 (N, C, H, W) for images, float32 (N, F) for vectors, float32 sparse CSR (N, F)
    for sparse sets.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return self.y.shape[0]

    def to(self, device: torch.device | str) -> "Split":
        """The same rows on `device`, where augmentation and selection then run."""
        return Split(self.x.to(device), self.y.to(device))


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test part, on the CPU, as read from the publisher's files.

    text: how texts became the rows of a set of documents, where the words are known.
    columns: the names of the numbers in a row, where they have some.
    notes: what the user should know of how the parts were made.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    kind: Kind
    text: "TextFeatures | None" = None
    columns: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one example, e.g. (3, 32, 32) or (21566,)."""
        return tuple(self.train.x.shape[1:])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the shapes, types and bytes of both parts, as used: equal iff the data is.

        Computed on first use: hashing the largest set takes seconds.
        """
        digest = hashlib.sha256(self.kind.encode())
        for tensor in _tensors(self.train, self.test):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
            if tensor.numel():  # an empty buffer cannot be cast
                digest.update(tensor.contiguous().numpy().data.cast("B"))
        return digest.hexdigest()


def _tensors(*splits: Split) -> Iterator[Tensor]:
    for split in splits:
        x = split.x.cpu()
        if x.layout == torch.sparse_csr:
            yield torch.tensor(x.shape)
            yield from (x.crow_indices(), x.col_indices(), x.values())
        else:
            yield x
        yield split.y.cpu()


def split_of(x: np.ndarray, y: np.ndarray) -> Split:
    """A part from arrays; `x` is shared, not copied, where its memory allows it."""
    rows = np.require(x, requirements=["C", "W"])
    return Split(torch.from_numpy(rows), torch.from_numpy(y.astype(np.int64).reshape(-1)))
