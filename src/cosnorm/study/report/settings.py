"""Settings and environments of runs side by side: flat, as short text, and where they differ."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from cosnorm.study.runs.config import Config
from cosnorm.study.runs.run import Run

# What groups go by already, and what names a place or a stop, not an experiment.
_BOOKKEEPING = frozenset({"dataset", "method", "seed", "out", "data_dir", "max_minutes", "name"})
# What a run has that was made before there was the setting.
_DEFAULTS = {each.name: each.default for each in fields(Config) if each.default is not MISSING}


def experiment_settings(run: Run) -> dict[str, Any]:
    """The flat settings within a method and data set, without seed and places."""
    settings = flat(run.config)
    if settings.keys() & _DEFAULTS:  # else it is no run of this program
        settings |= {key: v for key, v in _DEFAULTS.items() if key not in settings}
    return {key: value for key, value in settings.items() if key not in _BOOKKEEPING}


def comparable(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a flat environment that can be the same in two runs."""
    return {key: value for key, value in environment.items() if key != "started"}


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys; an empty mapping says nothing.

    >>> flat({"a": 1, "b": {"c": 2}})
    {'a': 1, 'b.c': 2}
    """
    result: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            result |= flat(item, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = item
    return result


def differing_keys(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values are not the same in all of `settings`."""
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if len({plain(one.get(key)) for one in settings}) > 1]


def plain(value: object) -> str:
    """A setting as short text: strings bare, 10.0 as 10, nothing as a dash, the rest as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return "—"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return json.dumps(value, default=str)
