"""Text in, rows out: documents that come after training, as the training documents were read."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from torch import Tensor

from cosnorm.study.data.tfidf import Counts, Weighting, features

_WORD = re.compile(rb"[a-z]{2,}")
_HEAD = re.compile(rb"(?:[!-9;-~]+:.*\n(?:[ \t].*\n)*)+\r?\n")
_SENDER = re.compile(rb"^(?:from|subject):", re.IGNORECASE | re.MULTILINE)


def words_in(text: bytes) -> Counter[bytes]:
    """The words of a text, in lower case: runs of two or more letters."""
    return Counter(_WORD.findall(text.lower()))


def body_of(post: bytes) -> bytes:
    """What follows the first empty line of a post; all of it where there is none."""
    return re.split(rb"\r?\n\r?\n", post, maxsplit=1)[-1]


def without_head(document: bytes) -> bytes:
    """A post's body; any other text as it is.

    A head is lines of the form `Name: value` before the first empty line, From or Subject among
    them.
    """
    head = _HEAD.match(document)
    return document[head.end() :] if head and _SENDER.search(head[0]) else document


@dataclass(frozen=True, eq=False)
class TextFeatures:
    """How the documents of a set became rows, for documents that come later.

    words: the word of each feature. weighting: of those words, numbered as here.
    """

    words: tuple[bytes, ...]
    weighting: Weighting

    @classmethod
    def of(cls, vocabulary: Sequence[bytes], weighting: Weighting) -> "TextFeatures":
        """Of the words, by number, that `weighting` has chosen."""
        chosen = tuple(vocabulary[number] for number in weighting.words)
        return cls(chosen, replace(weighting, words=np.arange(len(chosen))))

    @cached_property
    def _columns(self) -> dict[bytes, int]:
        return {word: number for number, word in enumerate(self.words)}

    def rows(self, documents: Sequence[bytes]) -> Tensor:
        """Documents as sparse CSR rows (documents, features); words that are no feature are passed.

        >>> text.rows([b"Space, the final frontier"]).shape  # doctest: +SKIP
        torch.Size([1, 21566])
        """
        triples = [
            (number, self._columns[word], count)
            for number, document in enumerate(documents)
            for word, count in words_in(document).items()
            if word in self._columns
        ]
        number, column, count = np.array(triples, dtype=np.int64).reshape(-1, 3).T
        shape = (len(documents), len(self.words))
        counts = Counts.from_triples(number, column, count, shape)
        return features(counts, self.weighting)
