"""The one reader of run folders: strict for a run that goes on, lenient for a report.

A run that goes on must be what was written, so damage is an error that names the file and the fix.
A report must come out of whatever is there, so damage is a warning that names the file and what it
costs, which is no more than the damaged part. Loads no torch.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from cosnorm.study.runs.errors import RunError, StorageError
from cosnorm.study.runs.formats import UnknownFormat, check_format
from cosnorm.study.runs.run import Run, number
from cosnorm.study.runs.storage import Storage

METRICS = "metrics.jsonl"
MOST_SETTINGS = 1 << 16  # bytes; settings take about a thousand

_NUMBER = (int, float)
_EVALUATION: dict[str, tuple[type, ...]] = {
    "epoch": _NUMBER,
    "step": (int,),
    "train_loss": (*_NUMBER, type(None)),
    "test_error": (*_NUMBER, type(None)),
}
_LINE = "restore the file, or delete that line"
# Where an evaluation stands: step and epoch, -1 for one that it does not tell.
Place = tuple[float, float]


class RunReader:
    """The files of one run, on any storage.

    warnings: None to refuse what is damaged, with a `RunError`; a list to go on without it, with a
        line in the list.
    """

    def __init__(self, storage: Storage, warnings: list[str] | None = None) -> None:
        self.storage, self.warnings = storage, warnings

    def _fault(self, name: str, fault: str, *, fix: str, cost: str) -> None:
        """Refuse for a fault, with what mends it; or go on, with what it costs."""
        place = f"{self.storage.label}/{name}"
        if self.warnings is None:
            raise RunError(f"{place} {fault}: {fix}")
        self.warnings.append(f"{place} {fault}; {cost}")

    def _content(self, name: str, cost: str) -> bytes | None:
        try:
            return self.storage.read(name)
        except StorageError as error:
            if self.warnings is None:
                raise
            self.warnings.append(f"{error}; {cost}")
            return None

    def read(self, name: str, most: int | None = None) -> dict[str, Any] | None:
        """The JSON object in a file of at most so many bytes; None where there is none."""
        if most is not None and (size := self.storage.size(name) or 0) > most:
            fault = f"has {size:,} bytes, where {most:,} are plenty"
            self._fault(name, fault, fix="restore it", cost="left out")
            return None
        content = self._content(name, "left out")
        if content is None:
            return None
        try:
            value = json.loads(content)
        except (ValueError, RecursionError) as error:
            fault = f"is not JSON ({_reason(error)})"
            self._fault(name, fault, fix="restore or delete it", cost="left out")
            return None
        if not isinstance(value, dict):
            self._fault(name, "is no JSON object", fix="restore or delete it", cost="left out")
            return None
        return value if self._is_known(name, value) else None

    def _is_known(self, name: str, value: Mapping[str, Any]) -> bool:
        try:
            check_format(f"{self.storage.label}/{name}", value)
        except UnknownFormat as error:
            if self.warnings is None:
                raise
            self.warnings.append(f"{error}; left out")
            return False
        return True

    def metrics(self) -> list[dict[str, Any]]:
        """The evaluations in order of their steps.

        Strictly: each as it is written, one after another; a last line cut short by a crash does
        not count. Leniently: whatever tells its step or epoch, the last of two of one step.
        """
        found: dict[Place, dict[str, Any]] = {}
        last: Place = (-1, -1)
        for position, line in self._lines():
            name = f"{METRICS}, line {position},"
            try:
                evaluation = _evaluation_in(line, strict=self.warnings is None)
            except (ValueError, RecursionError) as error:
                self._fault(name, f"is damaged ({_reason(error)})", fix=_LINE, cost="skipped")
                continue
            place = _place(evaluation)
            if place <= last:
                self._tell_of_order(name, place, last, place in found)
            found[place], last = evaluation, max(last, place)
        return [found[place] for place in sorted(found)]

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        told = len(self.warnings or ())
        content = self._content(METRICS, "the run has no curve")
        if content is None and self.warnings is not None and len(self.warnings) == told:
            self.warnings.append(f"{self.storage.label}/{METRICS} is missing; the run has no curve")
        lines = (content or b"").split(b"\n")
        if self.warnings is None:
            lines.pop()
        return ((position, line) for position, line in enumerate(lines, 1) if line.strip())

    def _tell_of_order(self, name: str, place: Place, last: Place, is_twice: bool) -> None:
        self._fault(
            name,
            f"is of {_told(place)} and stands after {_told(last)}, but steps go up, each once",
            fix=_LINE,
            cost="it counts, the earlier one does not" if is_twice else "put in its place",
        )


def read_run(storage: Storage, name: str, warnings: list[str]) -> Run | None:
    """One run folder, read leniently; `name` is to show for it.

    None, with a warning, where nothing tells data set and method.
    """
    try:
        return _read_run(RunReader(storage, warnings), name)
    except (StorageError, UnknownFormat) as error:
        told = f"{error}; left out"
        warnings += [] if told in warnings else [told]
        return None


def _read_run(reader: RunReader, name: str) -> Run | None:
    summary = reader.read("summary.json")
    config = _settings(reader, summary)
    if config is None:
        return None
    environment = reader.read("environment.json") or (summary or {}).get("environment")
    environment = environment if isinstance(environment, Mapping) else {}
    return Run(reader.storage.label, name, config, reader.metrics(), summary, environment)


def _settings(reader: RunReader, summary: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The settings in config.json; where that is not there, those in the summary."""
    name = "config.json"
    if name in reader.storage.names(name):
        config = reader.read(name, MOST_SETTINGS)
    else:
        name = "summary.json"
        stored = (summary or {}).get("config")
        config = stored if isinstance(stored, dict) else {}
    if config is None:
        return None
    missing = [key for key in ("dataset", "method") if not isinstance(config.get(key), str)]
    if missing:
        fault = f"tells no {' and no '.join(missing)}"
        reader._fault(name, fault, fix="restore it", cost="left out")
        return None
    return without_format(config)


def find_runs(sources: Iterable[Storage], warnings: list[str]) -> list[tuple[Storage, str]]:
    """Folders that hold a config.json or a summary.json, each once, with the name to show for it.

    A folder that holds evaluations, but nothing that says of what, is left out with a warning.
    Folders in a run folder are its own.
    """
    found: dict[str, tuple[Storage, str]] = {}
    for source in sources:
        inside: list[str] = []
        for folder, names in source.folders():
            if any(map(folder.startswith, inside)):
                continue
            storage = source.at(folder) if folder else source
            if "config.json" in names or "summary.json" in names:
                inside.append(f"{folder}/" if folder else "")
                found.setdefault(storage.key, (storage, folder or PurePath(storage.key).name))
            elif METRICS in names:
                told = f"{storage.label}: holds {METRICS} but no config.json; left out"
                warnings += [] if told in warnings else [told]
    return list(found.values())


def without_format(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that config.json tells, which its format is none of."""
    return {key: value for key, value in fields.items() if key != "format"}


def _evaluation_in(line: bytes, strict: bool) -> dict[str, Any]:
    """The evaluation that a line holds; ValueError where it is not one."""
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    if strict:
        odd = [k for k, kinds in _EVALUATION.items() if type(value.get(k, value)) not in kinds]
        if odd or value["step"] < 1:
            raise ValueError(f"{(odd or ['step'])[0]} is missing or not what is written there")
    elif _place(value) == (-1, -1):
        raise ValueError("neither epoch nor step")
    return value


def step_of(line: bytes) -> int | None:
    """The step of the evaluation that a line holds; None where it is not one that was written."""
    try:
        return _evaluation_in(line, strict=True)["step"]
    except (ValueError, RecursionError):
        return None


def _place(evaluation: Mapping[str, Any]) -> Place:
    epoch, step = number(evaluation.get("epoch")), number(evaluation.get("step"))
    return (-1 if step is None else step, -1 if epoch is None else epoch)


def _told(place: Place) -> str:
    step, epoch = place
    return f"epoch {epoch:,}" if step == -1 else f"step {step:,}"


def _reason(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
