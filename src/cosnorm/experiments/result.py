"""What a run's evaluations come to. Loads no torch."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from cosnorm.experiments.config import Config


def window_of(config: Config) -> dict[str, Any]:
    """The last part of a run over which its error is averaged.

    The last 50 epochs or the last 10,000 steps; of a shorter run, the last quarter.
    """
    unit, length = ("epoch", config.epochs) if config.epochs else ("step", config.steps)
    assert length is not None
    whole = 50 if unit == "epoch" else 10_000
    return {"unit": unit, "count": whole if length >= whole else math.ceil(length / 4)}


def result_of(
    config: Config, metrics: Sequence[Mapping[str, Any]], diverged: bool
) -> dict[str, Any]:
    """Mean and population variance of the test error over the window, and its last value."""
    window = window_of(config)
    length = config.epochs or config.steps
    assert length is not None
    first = length - window["count"]
    errors = [line["test_error"] for line in metrics if line[window["unit"]] > first]
    known = not diverged and bool(errors) and None not in errors
    return {
        "test_error_mean": statistics.fmean(errors) if known else None,
        "test_error_variance": statistics.pvariance(errors) if known else None,
        "final_test_error": metrics[-1]["test_error"] if metrics and not diverged else None,
        "diverged": diverged,
        "window": {**window, "evaluations": len(errors)},
    }
