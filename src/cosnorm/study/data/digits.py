"""The 1,797 handwritten digits of 8 × 8 pixels that come with scikit-learn."""

from pathlib import Path

import numpy as np

from cosnorm.study.data.dataset import Dataset, split_of
from cosnorm.study.data.errors import require
from cosnorm.study.data.splits import stratified_test_rows


def digits(root: Path) -> Dataset:
    """The digits, a fifth of each class for test by a fixed seed; levels 0…16 become 0…255.

    Nothing of them is in `root`, where the published sets lie.
    """
    source = require("sklearn.datasets", "the embedded digits").load_digits()
    images = np.rint(source.images * (255 / 16)).astype(np.uint8)[:, None]
    labels, test = source.target, stratified_test_rows(source.target)
    return Dataset(
        "digits",
        split_of(images[~test], labels[~test]),
        split_of(images[test], labels[test]),
        tuple("0123456789"),
        "image",
    )
