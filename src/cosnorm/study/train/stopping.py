"""Reasons to stop before the end: a signal, or time that is up.

The program begins with this module, before anything heavy is imported: it loads next to nothing.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from cosnorm.study.train.ranks import Ranks

REASONS = {signal.SIGINT: "SIGINT", signal.SIGTERM: "SIGTERM"}
_PAUSE_S = 0.02  # between two looks at whether an import is over
_BY_RANK = (None, "max_minutes", *REASONS.values())  # a later one goes before an earlier one


class GiveUp(NamedTuple):
    """When a run that learns nothing is ended: its parameters err above `error` % at `step`."""

    step: int = 5000
    error: float = 85.0

    def on(self, step: int, error: float) -> bool:
        """Whether an evaluation at `step` with `error` is a reason; at later steps, too."""
        return step >= self.step and error > self.error


class Interrupted(BaseException):
    """A signal that came when there was nothing to save.

    `reason` names it, `code` is the exit code for it.

    No Exception, as KeyboardInterrupt is none: a reader that takes any error for a damaged file
    must not take this for one.
    """

    def __init__(self, number: int) -> None:
        self.reason = REASONS[signal.Signals(number)]
        self.code = 128 + number
        super().__init__(f"interrupted by {self.reason}")


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

    def agreed(self, ranks: "Ranks", is_time_to_save: bool = False) -> tuple[str | None, bool]:
        """A reason that any rank has to stop, and whether the first wants to save.

        For all to do so after the same step.
        """
        wish = is_time_to_save and ranks.is_first
        reason, save = ranks.most((_BY_RANK.index(self.reason), int(wish)))
        return _BY_RANK[reason], bool(save)

    @contextmanager
    def listening(self) -> Iterator[None]:
        if self._deadline is None and self._seconds is not None:
            self._deadline = time.monotonic() + self._seconds
        with _handled_by(self._heard):
            yield

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            raise Interrupted(number)
        self._signal = REASONS[signal.Signals(number)]


class StartedStop(Stop):
    """The stop of a process that torchrun or Ray has started: more signals say the same again.

    Where every process gets a signal, as from SLURM, those two pass on theirs besides. They kill
    what does not end.
    """

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._signal = REASONS[signal.Signals(number)]


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGINT and SIGTERM into `Interrupted` wherever no `Stop` is listening.

    One that comes in the middle of an import waits for its end: packages half imported answer an
    exception with others of their own, or swallow it.
    """
    waiting = _Waiting()

    def heard(number: int, frame: FrameType | None) -> None:
        if not waiting.put_off(number, frame):
            raise Interrupted(number)

    with _handled_by(heard):
        try:
            yield
        finally:
            waiting.end()


class _Waiting:
    """A signal put off until no import is under way: it is sent again, and again."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._before: Any = None

    def put_off(self, number: int, frame: FrameType | None) -> bool:
        """Whether the signal comes at a bad moment; if so it comes again."""
        if not _is_importing(frame) or not hasattr(signal, "setitimer"):
            self._number = None
            return False
        before = signal.signal(signal.SIGALRM, self._send)
        self._before = self._before if before == self._send else before
        self._number = number
        signal.setitimer(signal.ITIMER_REAL, _PAUSE_S)
        return True

    def _send(self, number: int, frame: FrameType | None) -> None:
        if self._number is not None:
            os.kill(os.getpid(), self._number)

    def end(self) -> None:
        """Leave the alarm as it was; a signal that still waits is one now."""
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)
        if self._number is not None:
            raise Interrupted(self._number)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether an import is under way, or a destructor, from which no exception comes through."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib") or code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


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
