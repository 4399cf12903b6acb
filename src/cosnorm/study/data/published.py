"""Facts about the published sets that every reader checks."""

from pathlib import Path

import numpy as np

from cosnorm.study.data.errors import damaged

# Training and test examples of each release.
COUNTS = {
    "mnist": (60_000, 10_000),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "20news": (11_269, 7_505),
    "svhn": (73_257, 26_032),
    "svhn with extra": (604_388, 26_032),
}


def check_counts(release: str, train: int, test: int, where: Path) -> None:
    """Refuse a set of which one part is the published one and the other is not.

    A set of quite other counts is somebody's own in the same format, and welcome; one part of the
    published size beside one of another is a file cut short or mixed up.
    """
    wanted = COUNTS[release]
    if train == 0 or test == 0:
        raise damaged(
            where, f"{release} has {train:,} training and {test:,} test examples; none is empty"
        )
    if (train == wanted[0]) != (test == wanted[1]):
        raise damaged(
            where,
            f"{release} has {wanted[0]:,} training and {wanted[1]:,} test examples, "
            f"here are {train:,} and {test:,}",
        )


def check_labels(labels: np.ndarray, classes: int, path: Path, first: int = 0) -> None:
    """Refuse labels outside first…first+classes-1, naming the first such row."""
    wrong = np.flatnonzero(~((labels >= first) & (labels < first + classes)))
    if len(wrong):
        raise damaged(
            path,
            f"label {labels.reshape(-1)[wrong[0]]} of example {wrong[0]:,} is out of range "
            f"{first}…{first + classes - 1}",
        )
