"""Run folders in: find them, read them, and say what could not be read.

A run folder holds config.json, metrics.jsonl (a JSON object per evaluation), environment.json and,
once the run is over, summary.json. A report must come out of whatever is there, so damage is
collected as warnings that name the file (and line), and costs no more than the damaged part.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["finished", "diverged", "running"]


class ReportError(ValueError):
    """No report can be made of what was given; the message says why and what to do."""


@dataclass(frozen=True)
class Run:
    """One run folder as read; `summary` is None while the run is going on."""

    path: Path
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
        return "diverged" if self.summary.get("diverged") else "finished"

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
    """A finite number as float, anything else (null, NaN, text, true) as None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def load_runs(source: Path | str | Iterable[Path | str]) -> tuple[list[Run], list[str]]:
    """All runs under a folder, or under each of a list of folders, and the warnings.

    Raises `ReportError` where there is nothing to report on.
    """
    sources = [Path(source)] if isinstance(source, str | Path) else [Path(s) for s in source]
    warnings: list[str] = []
    runs = [
        run
        for path, name in _find(sources, warnings)
        if (run := read_run(path, name, warnings)) is not None
    ]
    if not runs:
        where = ", ".join(map(str, sources)) or "an empty list"
        told = "".join(f";\n  {warning}" for warning in warnings)
        raise ReportError(
            f"no run folders in {where}: a run folder holds config.json and metrics.jsonl; "
            f"`cosnorm train` and `cosnorm compare` write them{told}"
        )
    return runs, warnings


def _find(sources: Sequence[Path], warnings: list[str]) -> list[tuple[Path, str]]:
    """Folders that hold a config.json, each once, with the name to show for it.

    A folder that holds another file of a run, but no config.json, is left out with a warning.
    """
    found: dict[Path, tuple[Path, str]] = {}
    for source in sources:
        if not source.is_dir():
            raise ReportError(f"{source} is not a folder: give run folders, or a folder of them")
        for folder, children, files in os.walk(source):
            children.sort()
            if "config.json" in files:
                children.clear()
                path = Path(folder)
                name = source.name if path == source else path.relative_to(source).as_posix()
                found.setdefault(path.resolve(), (path, name or path.resolve().name))
            elif remains := sorted({"summary.json", "metrics.jsonl"} & set(files)):
                told = f"{folder}: holds {' and '.join(remains)} but no config.json; left out"
                warnings += [] if told in warnings else [told]
    return list(found.values())


def read_run(path: Path, name: str, warnings: list[str]) -> Run | None:
    """Read one run folder; None where its config.json does not tell data set and method."""
    config = _read_object(path / "config.json", warnings)
    if config is None:
        return None
    missing = [key for key in ("dataset", "method") if not isinstance(config.get(key), str)]
    if missing:
        warnings.append(f"{path / 'config.json'}: no {' and no '.join(missing)}; left out")
        return None
    summary = _read_object(path / "summary.json", warnings, optional=True)
    environment = _read_object(path / "environment.json", warnings, optional=True)
    if environment is None and summary and isinstance(summary.get("environment"), Mapping):
        environment = summary["environment"]
    metrics = _read_metrics(path / "metrics.jsonl", warnings)
    return Run(path, name, config, metrics, summary, environment or {})


def _read_object(path: Path, warnings: list[str], optional: bool = False) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        if not optional:
            warnings.append(f"{path}: missing; left out")
        return None
    except (OSError, ValueError, RecursionError) as error:
        warnings.append(f"{path}: cannot be read ({_reason(error)}); left out")
        return None
    if not isinstance(value, dict):
        warnings.append(f"{path}: not a JSON object; left out")
        return None
    return value


def _read_metrics(path: Path, warnings: list[str]) -> list[dict[str, Any]]:
    """The evaluations in order of step; a damaged line is skipped, with a warning."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        warnings.append(f"{path}: missing; the run has no curve")
        return []
    except OSError as error:
        warnings.append(f"{path}: cannot be read ({_reason(error)}); the run has no curve")
        return []
    evaluations: dict[tuple[float, float], dict[str, Any]] = {}
    for position, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            evaluation = json.loads(line)
            evaluations[_place(evaluation)] = evaluation
        except (ValueError, RecursionError) as error:
            warnings.append(f"{path}, line {position}: damaged ({_reason(error)}); skipped")
    return [evaluations[place] for place in sorted(evaluations)]


def _place(evaluation: object) -> tuple[float, float]:
    if not isinstance(evaluation, dict):
        raise ValueError("not a JSON object")
    epoch, step = number(evaluation.get("epoch")), number(evaluation.get("step"))
    if epoch is None and step is None:
        raise ValueError("neither epoch nor step")
    return (-1.0 if step is None else step, -1.0 if epoch is None else epoch)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error).splitlines()[0]
