"""The readings of 20NEWS: the plan's is the program's, and each other one differs as it says."""

import numpy as np
import pytest
import torch
from tools.detective import READINGS, Reading, dataset_of

from cosnorm.study.data.tfidf import Counts, features, fitted


@pytest.fixture
def parts():
    """Two parts of small documents over thirty words, the last two of them in test alone."""
    random = np.random.default_rng(0)
    made = []
    for documents, words in ((60, 28), (40, 30)):
        counts = random.poisson(0.4, (documents, 30)).astype(np.float64)
        counts[:, words:] = 0
        counts[5:, 27] = 0
        counts[:5, 27] = 2  # five documents have this word
        counts[np.arange(documents), np.arange(documents) % 20] += 1  # and none is empty
        rows, columns = np.nonzero(counts)
        part = Counts.from_triples(rows, columns, counts[rows, columns], counts.shape)
        made.append((part, np.arange(documents) % 3))
    return made


def dense(reading, parts, which="train"):
    split = getattr(dataset_of(reading, *parts, ("a", "b", "c")), which)
    return split.x.to_dense()


@pytest.mark.parametrize("variant", ["raw", "l2"])
def test_the_plans_reading_is_the_programs(parts, variant):
    weighting = fitted(parts[0][0], variant, 5)
    reading = Reading(l2=variant == "l2")
    for which, (counts, _) in zip(("train", "test"), parts, strict=True):
        wanted = features(counts, weighting).to_dense()
        torch.testing.assert_close(dense(reading, parts, which), wanted)


def test_idf_cancels_with_raw_counts_and_not_with_rows_of_length_one(parts):
    torch.testing.assert_close(dense(Reading(idf="plain"), parts), dense(Reading(), parts))
    one, other = dense(Reading(l2=True, idf="plain"), parts), dense(Reading(l2=True), parts)
    assert (one - other).abs().max() > 0.01


def test_each_reading_of_features_is_another(parts):
    names = [name for name, reading in READINGS.items() if not reading.settings]
    found = {name: dense(READINGS[name], parts, "test") for name in names}
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            same = found[one].shape == found[other].shape
            assert not same or not torch.equal(found[one], found[other]), (one, other)


def test_scaled_by_all_documents_no_value_is_above_one(parts):
    assert float(dense(Reading(largest="all"), parts, "test").max()) == 1.0
    assert float(dense(Reading(tf="binary"), parts).max()) == 1.0
