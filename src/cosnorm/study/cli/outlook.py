"""How many runs a comparison has, which of them are going, and how long all of them will take."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass
class _Going:
    """A run that is going: when and where it began in this session, and where it is."""

    begun: float
    first: int
    step: int
    total: int


class Outlook:
    """The time left for all runs of one length, from what those of this session took.

    A run that has not begun is expected to take as long as those of its method before it; before
    any of its method, as long as a run took on average. A run that is going counts by its rate so
    far. As many runs as are going now are expected to go at once until the end.
    """

    def __init__(self, methods: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.methods, self.count = methods, len(methods)
        self._clock = clock
        self._waiting = set(range(self.count))
        self._took: defaultdict[str, list[float]] = defaultdict(list)
        self._going: dict[int, _Going] = {}

    def begin(self, number: int, step: int, total: int) -> None:
        """The run of this number begins, or goes on, at `step` of `total`; again, if it must."""
        self._waiting.discard(number)
        self._going[number] = _Going(self._clock(), step, step, total)

    def step(self, number: int, step: int) -> None:
        if number in self._going:
            self._going[number].step = step

    def end(self, number: int) -> None:
        """The run is over, now or since an earlier session."""
        going = self._going.pop(number, None)
        if going is not None and (whole := self._whole(going)) is not None:
            self._took[self.methods[number]].append(whole)
        self._waiting.discard(number)

    @property
    def made(self) -> float:
        """How many runs are made, with the parts of those that are going."""
        parts = sum(going.step / going.total for going in self._going.values())
        return self._over + parts

    @property
    def _over(self) -> int:
        return self.count - len(self._waiting) - len(self._going)

    @property
    def told(self) -> tuple[str, str]:
        """Which runs are going, in words and in short."""
        if len(self._going) == 1:
            number = next(iter(self._going)) + 1
            return f"run {number} of {self.count}", f"{number}/{self.count}"
        over, short = self._over, f"{self._over}/{self.count}"
        return f"{over} of {self.count} done, {len(self._going)} going", short

    def seconds_left(self) -> float | None:
        """For the runs that are going and all that wait; None while nothing tells the speed."""
        wholes = {number: self._whole(going) for number, going in self._going.items()}
        expected = {method: statistics.fmean(took) for method, took in self._took.items()}
        for number, whole in wholes.items():
            if whole is not None:
                expected.setdefault(self.methods[number], whole)
        if not expected:
            return None
        usual = statistics.fmean(expected.values())
        waiting = sum(expected.get(self.methods[number], usual) for number in self._waiting)
        rests = []
        for number, going in self._going.items():
            whole = wholes[number] or expected.get(self.methods[number], usual)
            rests.append(whole * (going.total - going.step) / going.total)
        return max([*rests, (waiting + sum(rests)) / max(1, len(rests))])

    def _whole(self, going: _Going) -> float | None:
        """What the run takes from its first step to its last, at its speed so far."""
        made = going.step - going.first
        return (self._clock() - going.begun) * going.total / made if made else None


class Place:
    """One run's place in a comparison."""

    def __init__(self, outlook: Outlook, index: int) -> None:
        self._outlook, self._index = outlook, index
        self.number, self.count = index + 1, outlook.count

    @property
    def told(self) -> str:
        return f"run {self.number} of {self.count}"

    def begin(self, step: int, total: int) -> None:
        self._outlook.begin(self._index, step, total)

    def step(self, step: int) -> None:
        self._outlook.step(self._index, step)

    def end(self) -> None:
        self._outlook.end(self._index)

    def seconds_left(self) -> float | None:
        """For all runs together."""
        return self._outlook.seconds_left()


def opening(runs: int, methods: int, over: int, table: str | None) -> str:
    """How many runs there are, and how many of them need not be made again.

    >>> opening(25, 5, 3, None)
    '25 runs: 5 methods, 5 seeds each; 3 done before'
    """
    parts = [f"{table}, " if table else "", counted(runs, "run"), ": "]
    parts += [counted(methods, "method"), ", ", counted(runs // methods, "seed"), " each"]
    return "".join([*parts, f"; {over} done before" if over else ""])


def counted(number: int, unit: str) -> str:
    return f"{number:,} {unit}" + ("" if number == 1 else "s")


def time_text(seconds: float | None) -> str:
    """`0:07`, `12:30`, `3:05:00`; `-:--` where it is not known.

    >>> time_text(750)
    '12:30'
    """
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
