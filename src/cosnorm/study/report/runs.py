"""The runs to report on: found under any folders, read leniently."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cosnorm.study.runs.errors import StorageError
from cosnorm.study.runs.reading import find_runs, read_run
from cosnorm.study.runs.run import Run
from cosnorm.study.runs.storage import Storage, storage_at

Source = Path | str | Storage
_AT_ONCE = 16  # runs that are read: an object store takes its time for each


class ReportError(ValueError):
    """No report can be made of what was given; the message says why and what to do."""


def load_runs(source: Source | Iterable[Source]) -> tuple[list[Run], list[str]]:
    """All runs under a folder, or under each of a list of folders, and the warnings.

    Raises `ReportError` where there is nothing to report on.
    """
    sources = [storage_at(each) for each in _listed(source)]
    warnings: list[str] = []
    try:
        found = find_runs(sources, warnings)
    except StorageError as error:
        raise ReportError(str(error)) from error
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        read = list(pool.map(lambda each: _read(*each), found))
    runs = [run for run, _ in read if run is not None]
    warnings += [warning for _, told in read for warning in told]
    if not runs:
        where = ", ".join(storage.label for storage in sources) or "an empty list"
        told = "".join(f";\n  {warning}" for warning in warnings)
        raise ReportError(
            f"no run folders in {where}: a run folder holds config.json and metrics.jsonl; "
            f"`cosnorm train` and `cosnorm compare` write them{told}"
        )
    return runs, warnings


def _read(place: Storage, name: str) -> tuple[Run | None, list[str]]:
    warnings: list[str] = []
    return read_run(place, name, warnings), warnings


def _listed(source: Source | Iterable[Source]) -> list[Source]:
    if isinstance(source, str) or not isinstance(source, Iterable):
        return [source]
    return list(source)
