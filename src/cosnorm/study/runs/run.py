"""A run as it is read from its folder. Loads no torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["finished", "diverged", "untrained", "running"]


@dataclass(frozen=True)
class Run:
    """One run folder as read; `summary` is None while the run is going on.

    path: the folder, in the words of its storage. config: the settings, as they are stored.
    """

    path: str
    name: str
    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]] = ()
    summary: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dataset(self) -> str:
        return str(self.config["dataset"])

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def seed(self) -> str:
        return str(self.config.get("seed", "?"))

    @property
    def status(self) -> Status:
        if self.summary is None:
            return "running"
        if self.summary.get("diverged"):
            return "diverged"
        return "untrained" if self.summary.get("untrained") else "finished"

    def result(self, key: str) -> float | None:
        """A number of the summary; None where there is none (or it is not finite)."""
        return number(self.summary.get(key)) if self.summary else None

    @property
    def unit(self) -> str:
        """What the run counts in: "epoch" or "step"; the summary says, else the config."""
        window = (self.summary or {}).get("window")
        unit = window.get("unit") if isinstance(window, Mapping) else None
        if unit in ("epoch", "step"):
            return unit
        return "epoch" if self.config.get("epochs") else "step"

    @property
    def length(self) -> float | None:
        """The length of the whole training that the config asks for, in `unit`s."""
        return number(self.config.get("epochs" if self.unit == "epoch" else "steps"))

    @property
    def last_test_error(self) -> float | None:
        """The error of the last evaluation that gave a number, for runs that have no summary."""
        errors = (number(line.get("test_error")) for line in reversed(self.metrics))
        return next((error for error in errors if error is not None), None)


def number(value: object) -> float | None:
    """A finite number as it is, anything else (null, NaN, text, true) as None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None
