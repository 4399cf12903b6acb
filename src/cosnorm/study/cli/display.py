"""What is seen of a run: a live line on a terminal, plain lines elsewhere, JSON for programs."""

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cosnorm.study.cli.outlook import Outlook, Place, counted, time_text
from cosnorm.study.cli.showing import shown
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.progress import Watcher
from cosnorm.study.runs.record import finite


def watcher_for(as_json: bool, name: str) -> Watcher:
    """The way of showing one run that fits where the output goes."""
    return _maker(as_json)(name)


def watchers_for(as_json: bool, names: Sequence[str], outlook: Outlook) -> list[Watcher]:
    """The same for the runs of a comparison, which share a display."""
    make = _maker(as_json, outlook)
    return [make(name, Place(outlook, index)) for index, name in enumerate(names)]


def _maker(as_json: bool, outlook: Outlook | None = None) -> Callable[..., Watcher]:
    if as_json:
        return JsonLines
    if sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
        from cosnorm.study.cli.live import Display, LiveLine

        return functools.partial(LiveLine, Display(outlook))
    return PlainLines


def percent(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.2f}%"


class JsonLines:
    """One JSON object a line: an event, the run's name, and what belongs to the event."""

    def __init__(self, name: str, place: Place | None = None) -> None:
        self.name, self.place = name, place

    def _tell(self, event: str, **values: Any) -> None:
        told = finite({"event": event, "run": self.name, **values})
        print(json.dumps(told, allow_nan=False), flush=True)

    def begin(self, config: Config, step: int, total: int, batch_size: int) -> None:
        told: dict[str, Any] = {}
        if self.place is not None:
            self.place.begin(step, total)
            told = {"number": self.place.number, "runs": self.place.count}
        self._tell("begin", step=step, total=total, **told, config=config.to_dict())

    def step(self, step: int) -> None:
        if self.place is not None:
            self.place.step(step)

    def evaluation(self, evaluation: Mapping[str, Any]) -> None:
        left = {} if self.place is None else {"seconds_left_for_all": self.place.seconds_left()}
        self._tell("evaluation", **evaluation, **left)

    def warning(self, text: str) -> None:
        self._tell("warning", text=text)
        print(f"cosnorm: warning: {shown(text)}", file=sys.stderr, flush=True)

    def end(self, status: str, summary: Mapping[str, Any] | None) -> None:
        if self.place is not None:
            self.place.end()
        self._tell("end", status=status, summary=summary)


class PlainLines:
    """A line at the beginning and at the end, and evaluations no more often than need be."""

    def __init__(self, name: str, place: Place | None = None, pause: float = 2.0) -> None:
        self.name, self.place, self.pause = name, place, pause
        self.total, self._told = 0, 0.0

    def begin(self, config: Config, step: int, total: int, batch_size: int) -> None:
        self.total = total
        verb = f"goes on at step {step:,}" if step else "begins"
        where = ""
        if self.place is not None:
            self.place.begin(step, total)
            where = f" ({self.place.told})"
        steps = counted(total, "step")
        print(f"{self.name}{where}: {verb}, {steps} on {config.device}", flush=True)

    def step(self, step: int) -> None:
        if self.place is not None:
            self.place.step(step)

    def evaluation(self, evaluation: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if now - self._told < self.pause and evaluation["step"] != self.total:
            return
        self._told = now
        told = finite(evaluation)
        loss = "not a number" if told["train_loss"] is None else f"{told['train_loss']:.4f}"
        print(
            f"{self.name}: step {told['step']:,} of {self.total:,}, epoch {told['epoch']}, "
            f"train loss {loss}, test error {percent(told['test_error'])}, "
            f"{told['examples_per_second']:,.0f} examples/s{self._left()}",
            flush=True,
        )

    def _left(self) -> str:
        if self.place is None:
            return ""
        return f", {time_text(self.place.seconds_left())} left for all {self.place.count} runs"

    def warning(self, text: str) -> None:
        print(f"cosnorm: warning: {shown(text)}", file=sys.stderr, flush=True)

    def end(self, status: str, summary: Mapping[str, Any] | None) -> None:
        if self.place is not None:
            self.place.end()
        print(f"{self.name}: {closing(status, summary)}", flush=True)


def closing(status: str, summary: Mapping[str, Any] | None) -> str:
    """How a run ended, in words."""
    if summary is None:
        return status
    took = f"{counted(summary['steps'], 'step')} in {summary['seconds']:.1f} s"
    if status == "diverged":
        return f"diverged at step {summary['steps']:,}: its loss is not a number any more"
    if status == "untrained":
        last = percent(summary["final_test_error"])
        return f"given up at step {summary['steps']:,}: it has learned nothing (test error {last})"
    window, error = summary["window"], summary["test_error_mean"]
    last = counted(window["count"], window["unit"]).removeprefix("1 ")
    return (
        f"done, test error {percent(error)} over the last {last} "
        f"(last {percent(summary['final_test_error'])}), {took}"
    )
