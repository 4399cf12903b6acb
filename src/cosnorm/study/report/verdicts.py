"""What measured errors allow to be said: differences by seed, their intervals, and a verdict.

Two sources of chance are kept apart. Seeds: how much a result changes when the same training begins
anew, in the intervals. Test rows: how far an error may be off on other rows, `standard_error`,
which no number of seeds makes smaller and no interval holds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from cosnorm.study.report.groups import DatasetGroups, Group
from cosnorm.study.runs.run import number

Verdict = Literal["better", "equivalent", "worse", "undecided", "no verdict"]
CellVerdict = Literal["lower", "agrees", "higher", "undecided", "no verdict"]
Order = Literal["as in the paper", "against the paper", "open"]

LEVEL = 0.95
_RESAMPLES = 10_000
# Of more groups than this, one a method is compared: twenty-eight pairs can still be read.
_MOST_GROUPS = 8


@dataclass(frozen=True)
class Interval:
    """From `low` to `high`, both included."""

    low: float
    high: float


@dataclass(frozen=True)
class Pair:
    """One method against another, seed by seed.

    first, second: the groups' labels. seeds: those that both have finished.
    difference, interval: the mean of first minus second in points, and its interval.
    margin: what counts as no difference: one standard error of the test set.
    verdict: of the first: better has the lower error.
    paper: the published difference. order: whether the verdict is the paper's.
    """

    first: str
    second: str
    seeds: tuple[str, ...]
    difference: float | None
    interval: Interval | None
    margin: float | None
    verdict: Verdict
    paper: float | None
    order: Order | None


@dataclass(frozen=True)
class Cell:
    """A measured error beside the published one.

    difference, interval: measured minus published in points, and the interval of that for one
    further run, since the published number is one run's. margin: two standard errors of the test
    set.
    """

    difference: float
    interval: Interval | None
    margin: float | None
    verdict: CellVerdict
    seeds: int


def standard_error(error: float, rows: int) -> float:
    """The standard error, in points, of an error in percent on `rows` rows: √(p(1 - p)/rows).

    >>> round(standard_error(1.4, 10_000), 2)
    0.12
    """
    share = min(max(error / 100, 0.0), 1.0)
    return 100 * math.sqrt(share * (1 - share) / rows)


def least_deviation(rows: int | None, errors: int = 1) -> float:
    """The least deviation, in points, that a sum or difference of errors on `rows` rows has.

    An error is a multiple of 100/rows, as if rounded to it, so values that come out equal are not
    known to be; a value rounded to steps of d is off by d/√12 (as a standard deviation). 0 where
    the number of rows is not known.

    >>> round(least_deviation(359, errors=2), 3)
    0.114
    """
    return 0.0 if rows is None else 100 / rows * math.sqrt(errors / 12)


def mean_interval(values: Sequence[float], least: float = 0.0) -> Interval | None:
    """The 95 % interval of the mean of `values`; None of fewer than two.

    The bootstrap's: percentiles of the means of resamples, drawn by a fixed seed. A bootstrap of a
    few values is too narrow, so where Student's interval is wider, at either end, it is that one's.
    `least` is the least deviation that Student's takes them to have.

    >>> mean_interval([1.0, 1.0, 1.0])
    Interval(low=1.0, high=1.0)
    """
    if len(values) < 2:
        return None
    sample = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(0).integers(len(sample), size=(_RESAMPLES, len(sample)))
    low, high = np.quantile(sample[drawn].mean(axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    half = student(len(sample) - 1) * max(sample.std(ddof=1), least) / math.sqrt(len(sample))
    mean = sample.mean()
    return Interval(float(min(low, mean - half)), float(max(high, mean + half)))


def run_interval(values: Sequence[float], least: float = 0.0) -> Interval | None:
    """Where one further value would lie, Student's: mean ± t·s·√(1 + 1/n); None of under two.

    `least` is the least s.
    """
    if len(values) < 2:
        return None
    sample = np.asarray(values, dtype=np.float64)
    spread = max(sample.std(ddof=1), least) * math.sqrt(1 + 1 / len(sample))
    half = student(len(sample) - 1) * spread
    return Interval(float(sample.mean() - half), float(sample.mean() + half))


def student(degrees: int, level: float = LEVEL) -> float:
    """The t with which a share `level` of Student's distribution lies within ± t.

    >>> round(student(4), 3)
    2.776
    """
    low, high = 0.0, 1.0
    while _within(high, degrees) < level:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < level else (low, middle)
    return high


def _within(t: float, degrees: int) -> float:
    """The share of Student's distribution within ± t, by its finite series in the angle."""
    angle = math.atan2(t, math.sqrt(degrees))
    cosine = math.cos(angle)
    odd = degrees % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(1, degrees // 2 + 1):
        total += term
        term *= cosine**2 * ((2 * k) / (2 * k + 1) if odd else (2 * k - 1) / (2 * k))
    share = math.sin(angle) * total
    return 2 / math.pi * (angle + share) if odd else share


def verdict_of(interval: Interval | None, margin: float | None) -> Verdict:
    """What an interval of a difference says of the first: lower errors are better.

    A difference that is sure, but within the margin, is none that matters: equivalent.
    """
    if interval is None:
        return "no verdict"
    if margin is not None and -margin <= interval.low and interval.high <= margin:
        return "equivalent"
    if interval.high < 0:
        return "better"
    return "worse" if interval.low > 0 else "undecided"


def compared(section: DatasetGroups) -> list[Group]:
    """The groups of which pairs are made: all with a result; of too many, one a method."""
    groups = [group for group in section.groups if group.test_error is not None]
    if len(groups) > _MOST_GROUPS:
        return [group for group in section.main if group.test_error is not None]
    return groups


def left_out(section: DatasetGroups) -> int:
    """How many groups with a result no pair has."""
    return sum(g.test_error is not None for g in section.groups) - len(compared(section))


def pairs_of(section: DatasetGroups) -> list[Pair]:
    """Every two groups trained for the same length on the same data, in the order of the table."""
    return [
        _pair(first, second)
        for first, second in combinations(compared(section), 2)
        if section.length(first) == section.length(second) and first.data == second.data
    ]


def _pair(first: Group, second: Group) -> Pair:
    ours, theirs = errors_by_seed(first), errors_by_seed(second)
    seeds = tuple(seed for seed in ours if seed in theirs)
    differences = [ours[seed] - theirs[seed] for seed in seeds]
    rows = tested_rows(first)
    interval = mean_interval(differences, least_deviation(rows, errors=2))
    both = [errors[seed] for seed in seeds for errors in (ours, theirs)]
    known = bool(seeds) and rows is not None and rows == tested_rows(second)
    margin = standard_error(math.fsum(both) / len(both), rows) if known and rows else None
    verdict = verdict_of(interval, margin)
    paper = None
    if first.published and second.published and first.method != second.method:
        paper = first.published.test_error - second.published.test_error
    return Pair(
        first.label,
        second.label,
        seeds,
        math.fsum(differences) / len(differences) if differences else None,
        interval,
        margin,
        verdict,
        paper,
        None if paper is None else order_of(verdict, paper, margin),
    )


def order_of(verdict: Verdict, paper: float, margin: float | None) -> Order:
    """Whether a verdict is the one that the published difference would have.

    >>> order_of("equivalent", -0.01, 0.12), order_of("worse", -2.0, 0.5)
    ('as in the paper', 'against the paper')
    """
    if verdict == "equivalent":
        assert margin is not None
        return "as in the paper" if abs(paper) <= margin else "against the paper"
    if verdict not in ("better", "worse"):
        return "open"
    return "as in the paper" if (paper < 0) == (verdict == "better") else "against the paper"


def cell_of(section: DatasetGroups, group: Group) -> Cell | None:
    """The group's error against the published one; None where either is missing.

    Runs of another length than the published ones have a difference, but no verdict.
    """
    if group.published is None or group.difference is None:
        return None
    values = [error - group.published.test_error for error in errors_by_seed(group).values()]
    rows = tested_rows(group)
    margin = None if rows is None else 2 * standard_error(group.published.test_error, rows)
    interval = run_interval(values, least_deviation(rows))
    words: Mapping[Verdict, CellVerdict] = {
        "better": "lower",
        "equivalent": "agrees",
        "worse": "higher",
        "undecided": "undecided",
        "no verdict": "no verdict",
    }
    same = has_published_length(section, group)
    verdict = words[verdict_of(interval, margin)] if same else "no verdict"
    return Cell(group.difference, interval, margin, verdict, len(values))


def has_published_length(section: DatasetGroups, group: Group) -> bool:
    """Whether the group was trained as long as the published results were."""
    run, table = group.shown[0], section.published
    return table is not None and (run.unit, run.length) == (table.unit, float(table.length))


def errors_by_seed(group: Group) -> dict[str, float]:
    """Each finished run's error, by its seed."""
    errors = {run.seed: run.result("test_error_mean") for run in group.having("finished")}
    return {seed: error for seed, error in errors.items() if error is not None}


def tested_rows(group: Group) -> int | None:
    """How many test rows the errors are over, where all runs tell the same number."""
    counts = set()
    for run in group.having("finished"):
        data = (run.summary or {}).get("data")
        counts.add(number(data.get("test")) if isinstance(data, Mapping) else None)
    count = counts.pop() if len(counts) == 1 else None
    return int(count) if count and count >= 1 else None


def group_standard_error(group: Group) -> float | None:
    """`standard_error` at the group's mean error."""
    error, rows = group.test_error, tested_rows(group)
    return None if error is None or rows is None else standard_error(error.mean, rows)
