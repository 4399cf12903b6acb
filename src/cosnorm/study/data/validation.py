"""A part of the training rows in the place of the test part, for choices that must not see that."""

from dataclasses import replace

import torch

from cosnorm.study.data.dataset import Dataset, Split, split_of
from cosnorm.study.data.errors import DataError
from cosnorm.study.data.rows import take
from cosnorm.study.data.splits import divided, stratified_test_rows


def held_out(dataset: Dataset, share: float) -> Dataset:
    """The data set with a share of each class of its training part as its test part.

    Which rows these are hangs on the classes alone, by a fixed seed. Both parts lie in the memory
    of the training part, if it is dense: `dataset` is of no use afterwards.
    """
    x, y = dataset.train.x, dataset.train.y
    held = stratified_test_rows(y.numpy(), share)
    if not held.any():
        raise DataError(
            f"{dataset.name} has no class with two training examples, of which one could be held "
            "out: leave held_out out"
        )
    if x.layout == torch.sparse_csr:
        rows = [torch.from_numpy(mask.nonzero()[0]) for mask in (~held, held)]
        train, test = (Split(take(x, each), y[each]) for each in rows)
    else:
        train, test = (split_of(*part) for part in divided(x.numpy(), y.numpy(), held))
    note = (
        f"{len(test):,} of the {len(y):,} training examples of {dataset.name} are held out and "
        "stand in the place of the test part, which is not used"
    )
    return replace(dataset, train=train, test=test, notes=(*dataset.notes, note))
