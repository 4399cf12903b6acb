"""Runs that differ in nothing but their seed belong together: group them and average over seeds.

A method that was run with several settings gets several groups, named by the settings that differ,
so that no mean ever mixes two experiments.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath

from cosnorm.methods import METHODS
from cosnorm.study.report.fingerprints import data_labels
from cosnorm.study.report.published import PAPER, Published, PublishedResult
from cosnorm.study.report.settings import differing_keys, experiment_settings, plain
from cosnorm.study.runs.run import Run, Status, number

MOST_LABEL = 80  # characters; a figure takes minutes to place a label of many thousand


@dataclass(frozen=True)
class Spread:
    """Mean and sample deviation over seeds; the deviation needs two of them."""

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread | None":
        present = [value for value in values if value is not None]
        if not present:
            return None
        deviation = statistics.stdev(present) if len(present) > 1 else None
        return cls(statistics.fmean(present), deviation, len(present))


@dataclass(frozen=True)
class Group:
    """The runs of one method with one choice of settings; `variant` names the choice, or is "".

    data: which data they were made on, where the runs of the data set were made on several.
    """

    method: str
    variant: str
    runs: Sequence[Run]
    published: PublishedResult | None = None
    data: str = ""

    @property
    def label(self) -> str:
        return brief(f"{self.method} ({self.variant})" if self.variant else self.method)

    def having(self, status: Status) -> list[Run]:
        return [run for run in self.runs if run.status == status]

    @property
    def shown(self) -> list[Run]:
        """The runs whose curve stands for the group: finished, else going on, else the rest."""
        return self.having("finished") or self.having("running") or list(self.runs)

    @property
    def all_diverged(self) -> bool:
        return all(run.status == "diverged" for run in self.runs)

    @cached_property
    def test_error(self) -> Spread | None:
        """Over the seeds that finished without diverging, of each run's mean over its window."""
        return Spread.of(run.result("test_error_mean") for run in self.having("finished"))

    @property
    def variance(self) -> Spread | None:
        """Over seeds, of each run's variance within its window."""
        return Spread.of(run.result("test_error_variance") for run in self.having("finished"))

    @property
    def final_error(self) -> Spread | None:
        return Spread.of(run.result("final_test_error") for run in self.having("finished"))

    @property
    def difference(self) -> float | None:
        """Measured minus published, in percentage points."""
        if self.published is None or self.test_error is None:
            return None
        return self.test_error.mean - self.published.test_error


@dataclass(frozen=True)
class DatasetGroups:
    """All groups of one data set, and what the paper published on it."""

    dataset: str
    label: str
    groups: Sequence[Group]
    published: Published | None

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]

    @property
    def is_held_out(self) -> bool:
        """Whether the runs were tested on a part of the training part, not on the test part."""
        return any(_share_held_out(run) for run in self.runs)

    @cached_property
    def unit(self) -> str:
        """The axis that every run has: epochs where all count in epochs, else steps."""
        return "epoch" if all(run.unit == "epoch" for run in self.runs) else "step"

    def length(self, group: Group) -> float | None:
        """How long the group's runs are trained, in `unit`s; None where nothing tells."""
        run = group.shown[0]
        return run.length if run.unit == self.unit else run.result("steps")

    @cached_property
    def has_one_length(self) -> bool:
        """Whether all groups with a result were trained for the same length."""
        lengths = {self.length(group) for group in self.groups if group.test_error is not None}
        return len(lengths) < 2

    @cached_property
    def has_one_data(self) -> bool:
        """Whether all groups with a result were made on the same data."""
        return len({group.data for group in self.groups if group.test_error is not None}) < 2

    @cached_property
    def best(self) -> list[Group]:
        """The groups with the lowest mean, all of them where it is the same.

        None of them unless there are two to choose from, trained for the same length on the same
        data.
        """
        means = {
            id(group): group.test_error.mean
            for group in self.groups
            if group.test_error is not None
        }
        if len(means) < 2 or not (self.has_one_length and self.has_one_data):
            return []
        lowest = min(means.values())
        return [group for group in self.groups if means.get(id(group)) == lowest]

    def is_best(self, group: Group) -> bool:
        return any(group is best for best in self.best)

    @property
    def main(self) -> list[Group]:
        """One group a method, never chosen by its error.

        The one with the most finished runs; of equals, that with the method's usual learning rate,
        else the first.
        """
        best: dict[str, Group] = {}
        for group in self.groups:
            rival = best.get(group.method)
            if rival is None or _weight(group) > _weight(rival):
                best[group.method] = group
        return list(best.values())


def _weight(group: Group) -> tuple[int, bool]:
    usual = METHODS[group.method].lr if group.method in METHODS else None
    return len(group.having("finished")), group.runs[0].config.get("lr") == usual


def group_runs(
    runs: Sequence[Run],
    warnings: list[str],
    published: Mapping[str, Published] | None = None,
) -> list[DatasetGroups]:
    """Runs by data set, then method and settings, in the paper's order.

    Runs that were tested on a part held out of the training part are on a set of their own: their
    errors are not to be compared with test errors, of the paper or of other runs.

    `published` are the tables to compare with, by data set; None means the paper's.
    """
    tables = PAPER if published is None else published
    by_dataset: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_dataset[_tested_on(run)].append(run)
    order = [*(name for name in PAPER if name in by_dataset), *sorted(set(by_dataset) - set(PAPER))]
    labels = _labels(order)
    return [
        DatasetGroups(
            name,
            labels[name],
            _groups(by_dataset[name], tables.get(name), warnings),
            tables.get(name),
        )
        for name in order
    ]


def _share_held_out(run: Run) -> float | None:
    return number(run.config.get("held_out"))


def _tested_on(run: Run) -> str:
    share = _share_held_out(run)
    return f"{run.dataset} ({share:g} held out)" if share else run.dataset


def _labels(datasets: Sequence[str]) -> dict[str, str]:
    """A data set given as a path is shown by its last part, unless two share it."""
    short = {name: PurePath(name).name or name for name in datasets}
    shared = Counter(short.values())
    return {name: brief(name if shared[label] > 1 else label) for name, label in short.items()}


def brief(label: str, most: int = MOST_LABEL) -> str:
    """A label as tables, figures and pages can show it: not too long, and of characters.

    A path need not be text; what is not stands there as its number.
    """
    text = label.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _groups(runs: Sequence[Run], table: Published | None, warnings: list[str]) -> list[Group]:
    by_method: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_method[run.method].append(run)
    made_on = data_labels(runs, warnings)
    groups = []
    for method in sorted(by_method, key=method_rank):
        result = table.results.get(method) if table else None
        for variant, members in _variants(by_method[method], made_on):
            members = _one_a_seed(members, warnings)
            data = made_on.get(id(members[0]), "")
            groups.append(Group(method, variant, members, result, data))
    return groups


def method_rank(method: str) -> tuple[int, str]:
    """Sort key: the paper's order, then unknown methods by name."""
    known = list(METHODS)
    return (known.index(method) if method in known else len(known), method)


def _variants(runs: Sequence[Run], made_on: Mapping[int, str]) -> list[tuple[str, list[Run]]]:
    """Split one method's runs by settings and data; each part is named by what differs."""
    settings = [experiment_settings(run) for run in runs]
    keys = differing_keys(settings)
    parts: defaultdict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run, values in zip(runs, settings, strict=True):
        told = [plain(values.get(key)) for key in keys]
        parts[*told, made_on.get(id(run), plain(None))].append(run)
    keys = [*keys, "data"]
    return [(_variant(keys, values), parts[values]) for values in sorted(parts, key=_natural)]


def _variant(keys: Sequence[str], values: Sequence[str]) -> str:
    pairs = zip(keys, values, strict=True)
    return ", ".join(f"{key}={value}" for key, value in pairs if value != plain(None))


def _one_a_seed(runs: Sequence[Run], warnings: list[str]) -> list[Run]:
    """A seed that was run twice with the same settings adds no evidence: keep one, and say so."""
    rank = {"finished": 0, "untrained": 1, "diverged": 2, "running": 3}
    kept: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: (seed_rank(run.seed), rank[run.status], str(run.path))):
        first = kept.setdefault(run.seed, run)
        if first is not run:
            warnings.append(
                f"{run.path}: same settings and seed as {first.path}; only the latter is counted"
            )
    return list(kept.values())


def seed_rank(seed: str) -> tuple[int, str]:
    is_number = seed.isdecimal() and len(seed) < 20  # Python turns no more than 4,300 digits
    return (int(seed), "") if is_number else (-1, seed)


def _natural(values: Sequence[str]) -> list[tuple[float, str]]:
    """Sort key by which 9 comes before 10."""
    keys = []
    for value in values:
        try:
            keys.append((float(value), ""))
        except ValueError:
            keys.append((float("inf"), value))
    return keys
