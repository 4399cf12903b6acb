"""Random choices that must never change: which rows are test rows, which are dropped.

They use numpy's RandomState, whose streams are frozen for ever; Generator's are not.
"""

import numpy as np

SPLIT_SEED = 20171009
TEST_SHARE = 0.2
VALIDATION = ("val", "valid", "validation", "dev")  # names of a part that is the test part alone
_AT_ONCE = 1 << 20  # bytes of rows, moved in one go


def stratified_test_rows(labels: np.ndarray, share: float = TEST_SHARE) -> np.ndarray:
    """A fixed mask of test rows: of each class's n rows, round(share·n), at least one of two.

    A class with a single row keeps it for training, so that every class can be learned.
    """
    random = np.random.RandomState(SPLIT_SEED)
    mask = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        count = min(max(1, round(share * len(rows))), len(rows) - 1)
        mask[rows[:count]] = True
    return mask


def divided(
    x: np.ndarray, y: np.ndarray, test: np.ndarray
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Rows and labels in two parts, those not in the mask `test` and those in it, in their order.

    Rows are moved within `x`, of which both parts are slices: a copy may not fit beside it.
    """
    held, kept = x[test], np.flatnonzero(~test)
    step = max(1, _AT_ONCE // x[:1].nbytes)
    for start in range(0, len(kept), step):
        rows = kept[start : start + step]  # none before `start`, so none that is overwritten
        x[start : start + len(rows)] = x[rows]
    x[len(kept) :] = held
    return (x[: len(kept)], y[~test]), (x[len(kept) :], y[test])


def kept_rows(total: int, keep: int, seed: int) -> np.ndarray:
    """`keep` of `total` row numbers at random by `seed`, in ascending order; all if no more."""
    if total <= keep:
        return np.arange(total)
    return np.sort(np.random.RandomState(seed).permutation(total)[:keep])


def held_out_note(name: str, test: int, total: int) -> str:
    """What is said wherever the test part is one that was held out here."""
    return (
        f"{name} has no test part: {test:,} of its {total:,} examples, a fifth of each class by a "
        "fixed seed, are held out as one"
    )
