"""What a run's evaluations come to. Loads no torch."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from cosnorm.study.runs.config import Config

WHOLE = {"epoch": 50, "step": 10_000}  # the paper's windows, and the longest here


def window_of(config: Config) -> dict[str, Any]:
    """The last part of a run over which its error is averaged.

    The last quarter, at most 50 epochs or 10,000 steps.

    >>> window_of(Config(dataset="mnist", method="cosine", lr=10.0, epochs=200))
    {'unit': 'epoch', 'count': 50}
    """
    unit, length = ("epoch", config.epochs) if config.epochs else ("step", config.steps)
    assert length is not None
    return {"unit": unit, "count": min(WHOLE[unit], math.ceil(length / 4))}


def result_of(config: Config, metrics: Sequence[Mapping[str, Any]], status: str) -> dict[str, Any]:
    """Mean and population variance of the test error over the window, and its last value.

    status: "done", "diverged", or "untrained" for a run that was given up; only the first has a
    mean.
    """
    diverged = status == "diverged"
    window = window_of(config)
    length = config.epochs or config.steps
    assert length is not None
    first = length - window["count"]
    errors = [line["test_error"] for line in metrics if line[window["unit"]] > first]
    known = status == "done" and bool(errors) and None not in errors
    return {
        "test_error_mean": statistics.fmean(errors) if known else None,
        "test_error_variance": statistics.pvariance(errors) if known else None,
        "final_test_error": metrics[-1]["test_error"] if metrics and not diverged else None,
        "diverged": diverged,
        "untrained": status == "untrained",
        "window": {**window, "evaluations": len(errors)},
    }


def ended(summary: Mapping[str, Any]) -> str:
    """How a run that is over ended: "done", "diverged" or "untrained"."""
    if summary["diverged"]:
        return "diverged"
    return "untrained" if summary.get("untrained") else "done"
