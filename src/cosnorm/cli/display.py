"""What is seen of a run: a live line on a terminal, plain lines elsewhere, JSON for programs."""

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from cosnorm.experiments.config import Config
from cosnorm.experiments.record import finite
from cosnorm.experiments.watching import Watcher


def watcher_for(as_json: bool, name: str) -> Watcher:
    """The way of showing that fits where the output goes."""
    if as_json:
        return JsonLines(name)
    if sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
        from cosnorm.cli.live import LiveLine

        return LiveLine(name)
    return PlainLines(name)


def counted(number: int, unit: str) -> str:
    return f"{number:,} {unit}" + ("" if number == 1 else "s")


def percent(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.2f}%"


class JsonLines:
    """One JSON object a line: an event, the run's name, and what belongs to the event."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _tell(self, event: str, **values: Any) -> None:
        told = finite({"event": event, "run": self.name, **values})
        print(json.dumps(told, allow_nan=False), flush=True)

    def begin(self, config: Config, step: int, total: int, batch_size: int) -> None:
        self._tell("begin", step=step, total=total, config=config.to_dict())

    def step(self, step: int) -> None:
        pass

    def evaluation(self, evaluation: Mapping[str, Any]) -> None:
        self._tell("evaluation", **evaluation)

    def warning(self, text: str) -> None:
        self._tell("warning", text=text)
        print(f"cosnorm: warning: {text}", file=sys.stderr, flush=True)

    def end(self, status: str, summary: Mapping[str, Any] | None) -> None:
        self._tell("end", status=status, summary=summary)


class PlainLines:
    """A line at the beginning and at the end, and evaluations no more often than need be."""

    def __init__(self, name: str, pause: float = 2.0) -> None:
        self.name, self.pause = name, pause
        self.total, self._told = 0, 0.0

    def begin(self, config: Config, step: int, total: int, batch_size: int) -> None:
        self.total = total
        verb = f"goes on at step {step:,}" if step else "begins"
        print(f"{self.name}: {verb}, {counted(total, 'step')} on {config.device}", flush=True)

    def step(self, step: int) -> None:
        pass

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
            f"{told['examples_per_second']:,.0f} examples/s",
            flush=True,
        )

    def warning(self, text: str) -> None:
        print(f"cosnorm: warning: {text}", file=sys.stderr, flush=True)

    def end(self, status: str, summary: Mapping[str, Any] | None) -> None:
        print(f"{self.name}: {closing(status, summary)}", flush=True)


def closing(status: str, summary: Mapping[str, Any] | None) -> str:
    """How a run ended, in words."""
    if summary is None:
        return status
    took = f"{counted(summary['steps'], 'step')} in {summary['seconds']:.1f} s"
    if status == "diverged":
        return f"diverged at step {summary['steps']:,}: its loss is not a number any more"
    window, error = summary["window"], summary["test_error_mean"]
    last = counted(window["count"], window["unit"]).removeprefix("1 ")
    return (
        f"done, test error {percent(error)} over the last {last} "
        f"(last {percent(summary['final_test_error'])}), {took}"
    )
