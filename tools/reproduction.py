"""The tables of the page Reproduction, from the small files of the planned runs in results/runs.

Every number is made by the code that makes a user's report: groups, intervals and verdicts are
those of `cosnorm.study.report`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from cosnorm.methods import PAPER_METHODS
from cosnorm.study.report import PAPER, DatasetGroups, Group, Run, group_runs, load_runs
from cosnorm.study.report.tables import (
    cell_text,
    difference_text,
    error_text,
    failure_text,
    pair_text,
    seeds_text,
    signed,
    variance_text,
)
from cosnorm.study.report.verdicts import (
    cell_of,
    group_standard_error,
    has_published_length,
    pairs_of,
)
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.result import result_of

RESULTS = Path(__file__).resolve().parent.parent / "results"
SHORT = 25_000  # steps, at which a longer run is read to be compared with short ones
NAMES = {
    "mnist": "MNIST",
    "20news": "20NEWS",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
}
# Each table's parts of the plan that compare with the paper, in the order of the page: the runs of
# the paper's length, and those of the short one.
WHOLE = {name: (name,) for name in ("mnist", "20news", "cifar10", "cifar100")}
BRIEF = {
    "cifar10": ("cifar10", "cifar10-short"),
    "cifar100": ("cifar100", "cifar100-short"),
    "svhn": ("svhn",),
}
NOT_YET = "No run of this table is made yet."


def runs_of(parts: Sequence[str]) -> list[Run]:
    """The runs of these parts of the plan; a damaged file is a fault of ours, and an error."""
    folders = [RESULTS / "runs" / part for part in dict.fromkeys(parts)]
    folders = [folder for folder in folders if folder.is_dir()]
    if not folders:
        return []
    runs, warnings = load_runs(folders)
    if warnings:
        raise ValueError("; ".join(warnings))
    return runs


def section_of(dataset: str, runs: Sequence[Run]) -> DatasetGroups | None:
    """The runs of a data set as its one section; None without runs."""
    if not runs:
        return None
    (section,) = group_runs(runs, [])
    assert section.dataset == dataset
    return section


def read_at(run: Run, steps: int) -> Run | None:
    """The run as it was after `steps`: the rate is constant, so that is a run of that length.

    None where it did not get there.
    """
    if run.summary is None or run.config.get("steps") is None or run.config["steps"] < steps:
        return None
    config = {**run.config, "steps": steps}
    lines = [line for line in run.metrics if line["step"] <= steps]
    if (run.result("steps") or 0) < steps:  # it ended before, and how is what there is to say
        return replace(run, config=config)
    result = result_of(Config.from_dict(_plain(config)), lines, "done")
    return replace(run, config=config, metrics=lines, summary={**run.summary, **result})


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "format"}


@cache
def whole(dataset: str) -> DatasetGroups | None:
    """The runs of the paper's length."""
    return section_of(dataset, runs_of(WHOLE.get(dataset, ())))


@cache
def brief(dataset: str) -> DatasetGroups | None:
    """The runs read after 25,000 steps."""
    found = [read_at(run, SHORT) for run in runs_of(BRIEF.get(dataset, ()))]
    return section_of(dataset, [run for run in found if run is not None])


def section(dataset: str) -> DatasetGroups | None:
    """The runs that stand for a table: those of the paper's length, else those that there are."""
    return whole(dataset) or brief(dataset)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def paper() -> str:
    """What the paper prints."""
    rows = [
        [method, *(f"{PAPER[name].results[method].test_error:.2f}" for name in NAMES)]
        for method in PAPER_METHODS
    ]
    return table(["method", *NAMES.values()], rows)


def measured(group: Group) -> str:
    """`1.44 ± 0.03 (5)`: mean, deviation over seeds, seeds; or what became of the runs."""
    if group.test_error is None:
        return failure_text(group)
    return f"{error_text(group.test_error)} ({seeds_text(group)})"


def short() -> str:
    """The measured errors beside the paper's, a row a method."""
    shown = {name: found for name in NAMES if (found := section(name)) is not None}
    if not shown:
        told = "None of the [planned runs](results/PLAN.md) is made yet; the paper's own:"
        return f"{told}\n\n{paper()}"
    rows = []
    for method in (*PAPER_METHODS, "none"):
        row = [method]
        for found in shown.values():
            groups = [group for group in found.main if group.method == method]
            row += [measured(groups[0]) if groups else "", _printed(found, method)]
        rows.append(row)
    head = [h for name in shown for h in (f"{NAMES[name]}{_length(shown[name])}", "paper")]
    return table(["method", *head], rows)


def _length(section: DatasetGroups) -> str:
    assert section.published is not None
    alike = all(has_published_length(section, group) for group in section.groups)
    return "" if alike else f", {SHORT:,} steps"


def _printed(section: DatasetGroups, method: str) -> str:
    result = section.published.results.get(method) if section.published else None
    return f"{result.test_error:.2f}" if result else ""


def cells(dataset: str) -> str:
    """One table: measured, paper, difference with its interval, verdict."""
    found = section(dataset)
    if found is None:
        return NOT_YET
    head = ["method", "test error %", "seeds", "variance", "test-set SE", "paper %", "difference"]
    cells_of = table([*head, "verdict"], [_cell_row(found, group) for group in found.groups])
    return f"{cells_of}\n\n![{NAMES[dataset]}](figures/{dataset}.png)"


def _cell_row(section: DatasetGroups, group: Group) -> list[str]:
    cell, error, variance = cell_of(section, group), group_standard_error(group), group.variance
    whole_length = has_published_length(section, group)
    return [
        group.label,
        error_text(group.test_error) if group.test_error else failure_text(group),
        seeds_text(group),
        variance_text(variance.mean if variance else None),
        "—" if error is None else f"{error:.2f}",
        f"{group.published.test_error:.2f}" if group.published else "—",
        difference_text(cell.difference, cell.interval) if cell else "—",
        cell_text(cell, whole_length) if cell else "—",
    ]


def pairs(dataset: str) -> str:
    """Every pair of a table, by the runs that have the most seeds."""
    sections = [s for s in (brief(dataset), whole(dataset)) if s is not None]
    if not sections:
        return NOT_YET
    section = max(sections, key=lambda s: len(s.runs))
    rows = [
        [
            f"{pair.first} − {pair.second}",
            difference_text(pair.difference, pair.interval),
            pair_text(pair),
            "—" if pair.paper is None else signed(pair.paper),
            pair.order or "—",
        ]
        for pair in pairs_of(section)
    ]
    told = f"{_length(section).removeprefix(', ') or 'The paper’s length'}."
    return f"{table(['pair', 'difference', 'verdict', 'paper', 'order'], rows)}\n\n{told}"


def orders() -> str:
    """How many pairs of each table are as in the paper."""
    rows = []
    for name, title in NAMES.items():
        sections = [s for s in (brief(name), whole(name)) if s is not None]
        section = max(sections, key=lambda s: len(s.runs), default=None)
        found = [pair.order for pair in pairs_of(section)] if section else []
        counts = [found.count(word) for word in ("as in the paper", "against the paper", "open")]
        rows.append([title, *map(str, counts), str(10 - sum(counts))])
    return table(["table", "as in the paper", "against", "open", "not measured"], rows)


def made() -> str:
    """What of the plan is made, the device time that it took, and by which state of the program."""
    parts = json.loads((RESULTS / "sitting.json").read_text())["parts"]
    rows = []
    for name in dict.fromkeys(part["part"] for part in parts):
        counts = [len(p["methods"]) * len(p["seeds"]) for p in parts if p["part"] == name]
        runs = runs_of((name,))
        shares = [run.environment.get("together", 1) for run in runs]  # runs in the same seconds
        seconds = [run.result("seconds") or 0.0 for run in runs]
        minutes = sum(s / share for s, share in zip(seconds, shares, strict=True)) / 60
        places = {str(run.environment.get("gpu") or run.environment.get("cpu")) for run in runs}
        found = {run.environment.get("commit") for run in runs}
        commits = {str(commit)[:7] if commit else "not recorded" for commit in found}
        row = [f"{len(runs)} of {sum(counts)}", f"{minutes:.1f}" if runs else ""]
        rows.append([name, *row, ", ".join(sorted(places)), ", ".join(sorted(commits))])
    return table(["part", "runs made", "minutes", "device", "commit"], rows)
