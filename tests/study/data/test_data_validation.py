"""A part of the training rows in the place of the test part."""

import pytest
import torch
from experiment_cases import dataset_of, sparse_data, vector_data

from cosnorm.study.data import DataError, held_out, load


@pytest.mark.parametrize("data", [vector_data, sparse_data])
def test_no_row_is_lost_doubled_or_of_the_test_part(data):
    whole, parted = data(), held_out(data(), 0.2)
    assert (len(parted.train), len(parted.test)) == (48, 12)
    assert torch.bincount(parted.test.y).tolist() == [4, 4, 4]

    def rows(*splits):
        dense = [s.x.to_dense().flatten(1) for s in splits]
        return sorted(map(tuple, torch.cat(dense).tolist()))

    assert rows(parted.train, parted.test) == rows(whole.train)
    again = held_out(data(), 0.2)
    assert again.fingerprint == parted.fingerprint != whole.fingerprint
    assert parted.notes == (
        f"12 of the 60 training examples of {whole.name} are held out and stand in the place of "
        "the test part, which is not used",
    )


def test_rows_and_classes_stay_together():
    digits = load("digits")
    rows = zip(digits.train.x, digits.train.y, strict=True)
    known = {tuple(x.flatten().tolist()): int(y) for x, y in rows}
    parted = held_out(digits, 0.1)
    # No second copy, which might not fit beside the first.
    start = digits.train.x.data_ptr()
    assert parted.train.x.data_ptr() == start
    assert parted.test.x.data_ptr() == start + parted.train.x.nbytes
    for split in (parted.train, parted.test):
        for x, y in zip(split.x, split.y, strict=True):
            assert known[tuple(x.flatten().tolist())] == int(y)


def test_where_nothing_can_be_held_out():
    x, y = torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
    with pytest.raises(DataError, match="no class with two training examples"):
        held_out(dataset_of("few", x[:2], x[2:], y, "vector"), 0.5)
