"""A part of the training rows in the place of the test part, for choices that must not see that."""

from dataclasses import replace

import torch

from cosnorm.study.data.dataset import Dataset, Split
from cosnorm.study.data.errors import DataError
from cosnorm.study.data.rows import take
from cosnorm.study.data.splits import stratified_test_rows


def held_out(dataset: Dataset, share: float) -> Dataset:
    """The data set with a share of each class of its training part as its test part.

    Which rows these are hangs on the classes alone, by a fixed seed. The test part itself is gone.
    """
    train = dataset.train
    mask = torch.from_numpy(stratified_test_rows(train.y.numpy(), share))
    if not mask.any():
        raise DataError(
            f"{dataset.name} has no class with two training examples, of which one could be held "
            "out: leave held_out out"
        )
    kept, held = ((~mask).nonzero().squeeze(1), mask.nonzero().squeeze(1))
    note = (
        f"{len(held):,} of the {len(train):,} training examples of {dataset.name} are held out and "
        "stand in the place of the test part, which is not used"
    )
    parts = {
        name: Split(take(train.x, rows), train.y[rows])
        for name, rows in {"train": kept, "test": held}.items()
    }
    return replace(dataset, **parts, notes=(*dataset.notes, note))
