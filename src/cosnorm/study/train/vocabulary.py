"""The words of a run on documents, kept in its folder so that it can classify text by itself."""

import numpy as np
import torch

from cosnorm.study.data import Dataset
from cosnorm.study.data.text import TextFeatures
from cosnorm.study.data.tfidf import Weighting
from cosnorm.study.runs.errors import RunError
from cosnorm.study.runs.progress import Watcher
from cosnorm.study.runs.record import VOCABULARY
from cosnorm.study.runs.sealing import DamagedCheckpoint, seal, unseal
from cosnorm.study.runs.storage import Storage


def keep_vocabulary(storage: Storage, dataset: Dataset, watcher: Watcher) -> None:
    """Store how texts become rows, where the data is made of texts and says how."""
    if dataset.text is not None:
        content = _sealed(dataset.text)
        if storage.read(VOCABULARY) != content:
            storage.write(VOCABULARY, content)
    elif dataset.kind == "sparse":
        watcher.warning(
            f"{dataset.name} came without its list of words (vocabulary.txt), so the run will "
            "classify rows of features but no text; `cosnorm data fetch 20news` brings the list"
        )


def _sealed(text: TextFeatures) -> bytes:
    words = np.frombuffer(b"\n".join(text.words), dtype=np.uint8).copy()
    weighting = text.weighting
    arrays = {"words": words, "idf": weighting.idf, "largest": weighting.largest}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return seal(tensors, {"tfidf": weighting.variant})


def read_vocabulary(storage: Storage, features: int) -> TextFeatures:
    """How texts become the `features` columns of a run's rows; `RunError` where it is not known."""
    content = storage.read(VOCABULARY)
    if content is None:
        raise RunError(
            f"{storage.label} has no {VOCABULARY}: the data came without its list of words "
            "(vocabulary.txt) when the run was made, so it cannot read text; give rows of features "
            "(.npy, .npz), or train again with the list beside the data"
        )
    try:
        tensors, state = unseal(content, f"{storage.label}/{VOCABULARY}")
    except DamagedCheckpoint as error:
        raise RunError(
            f"{storage.label}/{VOCABULARY} is damaged: {error}; restore it from a copy"
        ) from error
    words = tuple(tensors["words"].numpy().tobytes().split(b"\n"))
    idf, largest = tensors["idf"].numpy(), tensors["largest"].numpy()
    if not len(words) == len(idf) == len(largest) == features:
        raise RunError(
            f"{storage.label}/{VOCABULARY} is of another run: it has {len(words):,} words for "
            f"{features:,} features; restore it from a copy"
        )
    return TextFeatures(words, Weighting(np.arange(features), idf, largest, state["tfidf"]))
