"""On which data runs were made: a file whose rows have changed since is other data by one name."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from cosnorm.study.names import DATASETS, OWN
from cosnorm.study.report.settings import plain
from cosnorm.study.runs.run import Run

_LETTERS = 6  # of a fingerprint, enough to tell a few apart


def data_labels(runs: Sequence[Run], warnings: list[str]) -> dict[int, str]:
    """The beginning of each run's fingerprint of its data, by the run's id, and a warning.

    Only of runs whose data should be the same, by name and settings, and is not. A run that does
    not tell its fingerprint, as while it goes on, is then on data that is not known.
    """
    alike: defaultdict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in runs:
        alike[tuple(plain(run.config.get(key)) for key in _data_settings())].append(run)
    labels: dict[int, str] = {}
    for members in alike.values():
        if len({_fingerprint(run) for run in members} - {None}) > 1:
            labels |= {id(run): _fingerprint(run) or "unknown" for run in members}
    if labels:
        counts = Counter(labels.values())
        told = ", ".join(f"data={label}: {count}" for label, count in counts.items())
        warnings.append(
            f"{runs[0].dataset}: its runs were made on different data ({told} by fingerprint), so "
            "they are neither averaged nor compared with each other: train all of them on the same "
            "data, in a folder of their own"
        )
    return labels


def _data_settings() -> list[str]:
    """The settings that decide what a reader makes of its files."""
    entries = (*DATASETS.values(), *OWN.values())
    return sorted({key for entry in entries for key in entry.settings})


def _fingerprint(run: Run) -> str | None:
    data = (run.summary or {}).get("data")
    found = data.get("fingerprint") if isinstance(data, Mapping) else None
    return found[:_LETTERS] if isinstance(found, str) and found else None
