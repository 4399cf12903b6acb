"""Reasons to stop before the end: a signal, or time that is up."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from cosnorm.experiments.ranks import Ranks

REASONS = {signal.SIGINT: "SIGINT", signal.SIGTERM: "SIGTERM"}
_BY_RANK = (None, "max_minutes", *REASONS.values())  # a later one goes before an earlier one


class Interrupted(BaseException):
    """A signal that came when there was nothing to save; `reason` names it.

    No Exception, as KeyboardInterrupt is none: a reader that takes any error for a damaged file
    must not take this for one.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"interrupted by {reason}")
        self.reason = reason


class Stop:
    """Asked between steps: `reason` is None, "SIGINT", "SIGTERM" or "max_minutes".

    The time counts from the first `listening`, so that every start of the program gets somewhere.
    While `listening`, SIGINT and SIGTERM only set the reason, so that the step in hand is finished
    and saved; a second signal of the kind ends the program at once. A run in another thread than
    the main one hears no signals, and stops when its time is up.
    """

    def __init__(self, max_minutes: float | None = None) -> None:
        self._seconds = None if max_minutes is None else 60 * max_minutes
        self._deadline: float | None = None
        self._signal: str | None = None

    @property
    def reason(self) -> str | None:
        if self._signal is None and self._deadline is not None:
            return "max_minutes" if time.monotonic() >= self._deadline else None
        return self._signal

    def agreed(self, ranks: Ranks) -> str | None:
        """A reason that any rank has, for all to stop after the same step."""
        return _BY_RANK[ranks.most(_BY_RANK.index(self.reason))]

    @contextmanager
    def listening(self) -> Iterator[None]:
        if self._deadline is None and self._seconds is not None:
            self._deadline = time.monotonic() + self._seconds
        with _handled_by(self._heard):
            yield

    def _heard(self, number: int, frame: FrameType | None) -> None:
        reason = REASONS[signal.Signals(number)]
        if self._signal is not None:
            raise Interrupted(reason)
        self._signal = reason


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGINT and SIGTERM into `Interrupted` wherever no `Stop` is listening."""

    def raise_interrupted(number: int, frame: FrameType | None) -> None:
        raise Interrupted(REASONS[signal.Signals(number)])

    with _handled_by(raise_interrupted):
        yield


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Give the signals to `handler`, where Python allows it: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in REASONS}
    try:
        yield
    finally:
        for number, previous in before.items():
            # None stands for a handler that Python did not set and cannot set again.
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
