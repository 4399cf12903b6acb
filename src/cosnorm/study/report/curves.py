"""Curves over seeds: mean and deviation at each evaluation, thinned for the page, and the y-range
in which converged curves can be told apart.

A metric is a key of an evaluation, dots for what lies inside: `test_error`, `layers.2.scale`.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from cosnorm.study.report.groups import Group, Spread
from cosnorm.study.runs.run import Run, number

T = TypeVar("T")


@dataclass(frozen=True)
class Curve:
    """Points in order of x; `deviation` is over seeds, None where a single seed gives none.

    `seconds`: the time at each point since its run began, mean over seeds; None where unknown.
    """

    x: Sequence[float]
    y: Sequence[float]
    deviation: Sequence[float | None]
    seconds: Sequence[float | None]

    def take(self, kept: Sequence[int]) -> "Curve":
        lines = (self.x, self.y, self.deviation, self.seconds)
        return Curve(*([line[i] for i in kept] for line in lines))  # pyright: ignore[reportArgumentType]


EMPTY = Curve((), (), (), ())


def reading(evaluation: Mapping[str, Any], metric: str) -> float | None:
    """The number that an evaluation has for a metric, if it has one.

    >>> reading({"layers": {"2": {"scale": 3.5}}}, "layers.2.scale")
    3.5
    """
    found: Any = evaluation
    for key in metric.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return number(found)


def points(run: Run, metric: str, unit: str) -> list[tuple[float, float, float | None]]:
    """(x, y, seconds) of a run's evaluations that have both x and y."""
    found = []
    for line in run.metrics:
        x, y = number(line.get(unit)), reading(line, metric)
        if x is not None and y is not None:
            found.append((x, y, number(line.get("seconds"))))
    return found


def run_curve(run: Run, metric: str, unit: str) -> Curve:
    found = points(run, metric, unit)
    if not found:
        return EMPTY
    xs, ys, seconds = zip(*found, strict=True)
    return Curve(xs, ys, [None] * len(xs), seconds)


def group_curve(group: Group, metric: str, unit: str) -> Curve:
    """The mean over the group's shown runs at every x that any of them has."""
    values: defaultdict[float, list[float]] = defaultdict(list)
    times: defaultdict[float, list[float | None]] = defaultdict(list)
    for run in group.shown:
        for x, y, seconds in points(run, metric, unit):
            values[x].append(y)
            times[x].append(seconds)
    xs = sorted(values)
    spreads = [spread for x in xs if (spread := Spread.of(values[x])) is not None]
    return Curve(
        xs, [s.mean for s in spreads], [s.deviation for s in spreads], [_mean(times[x]) for x in xs]
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """None where one is missing: a mean over other runs than the rest would jump."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def thin(curve: Curve, limit: int) -> Curve:
    """At most `limit` points that keep the look of the curve: largest triangle, three buckets.

    The first and last point stay; of each bucket between, the point that spans the largest
    triangle with the point kept before it and the mean of the next bucket.
    """
    size = len(curve.x)
    if size <= limit:
        return curve
    edges = [1 + round(i * (size - 2) / (limit - 2)) for i in range(limit - 1)]
    kept = [0]
    for low, high in pairwise(edges):
        after = range(high, max(min(size, 2 * high - low), high + 1))
        goal = (
            statistics.fmean(curve.x[i] for i in after),
            statistics.fmean(curve.y[i] for i in after),
        )
        last = (curve.x[kept[-1]], curve.y[kept[-1]])
        kept.append(
            max(range(low, high), key=lambda i: _area(last, (curve.x[i], curve.y[i]), goal))
        )
    return curve.take([*kept, size - 1])


def _area(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    return abs((a[0] - c[0]) * (b[1] - a[1]) - (a[0] - b[0]) * (c[1] - a[1]))


def for_scale(groups: Sequence[Group], curves: Sequence[Curve]) -> list[Curve]:
    """The curves, those of diverged groups emptied: they have no say in the choice of a range."""
    if all(group.all_diverged for group in groups):
        return list(curves)
    pairs = zip(groups, curves, strict=True)
    return [EMPTY if group.all_diverged else curve for group, curve in pairs]


# A curve whose converged level lies this many times above the median level leaves the scale to
# the others and is named as off scale instead.
OFF_SCALE = 4.0
# The least height of an axis of errors, in percentage points; a twentieth of it is the same.
LEAST = 0.1


def levels(curves: Sequence[Curve]) -> list[float | None]:
    """The converged level of each curve: the median of its last half."""
    return [statistics.median(_tail(c.y)) if c.y else None for c in curves]


def off_scale(curves: Sequence[Curve], least: float = LEAST) -> list[bool]:
    """Which curves lie so far above the rest that they would flatten it; none above a rest at 0."""
    known = [level for level in levels(curves) if level is not None]
    middle = statistics.median_low(known) if known else 0.0
    if middle <= least / 20:
        return [False] * len(curves)
    limit = max(OFF_SCALE * middle, least)
    return [level is not None and level > limit for level in levels(curves)]


def readable_range(curves: Sequence[Curve], least: float = LEAST) -> tuple[float, float]:
    """The y-range that shows the converged part: early transients may leave it at the top.

    Its floor is the lowest point. Its ceiling is the 97th percentile of what comes after the first
    tenth, but stays within 1.2 times the spread of the converged halves above them; where these are
    all the same to a twentieth of `least`, there is nothing to tell apart and the whole fall is
    shown. The bands of the converged halves are inside, as wide as they typically are. The height
    is `least` or more.
    """
    pairs = zip(curves, off_scale(curves, least), strict=True)
    kept = [c for c, off in pairs if not off and c.y]
    if not kept:
        return (0.0, 1.0)
    low = min(min(min(c.y), statistics.median(_tail(c.y)) - _band(c)) for c in kept)
    tail = max(_quantile(_tail(c.y), 0.98) + _band(c) for c in kept)
    if tail - low > least / 20:
        settled = [y for c in kept for y in c.y[len(c.y) // 10 :]]
        spread = max(tail - low, 0.05 * abs(low), least)
        high = min(max(_quantile(settled, 0.97), tail), tail + 1.2 * spread)
    else:
        high = max(max(c.y) for c in kept)
    positive = all(min(c.y) >= 0 for c in kept)
    low, high = _at_least(least, low, high, 0.0 if positive else -math.inf)
    margin = 0.06 * (high - low)
    # A little room below 0 keeps a line that lies on it whole.
    floor = -0.02 * (high - low) if positive else -math.inf
    return (max(low - margin, floor), high + margin)


def _at_least(least: float, low: float, high: float, floor: float) -> tuple[float, float]:
    """The span, grown to `least` on both sides alike, but not below `floor`."""
    missing = max(0.0, least - (high - low))
    down = min(missing / 2, max(0.0, low - floor))
    return (low - down, high + missing - down)


def _tail(values: Sequence[T]) -> Sequence[T]:
    return values[len(values) // 2 :]


def _band(curve: Curve) -> float:
    """The typical deviation over seeds in the converged half."""
    return statistics.median(deviation or 0.0 for deviation in _tail(curve.deviation))


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[math.ceil(share * len(values)) - 1]
