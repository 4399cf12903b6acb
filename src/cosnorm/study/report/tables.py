"""Groups out as the cells of tables to read, and the notes below them."""

import re
from collections.abc import Iterable

from cosnorm.study.report.groups import DatasetGroups, Group, Spread
from cosnorm.study.report.verdicts import (
    Cell,
    Interval,
    Pair,
    cell_of,
    compared,
    group_standard_error,
    has_published_length,
    left_out,
)
from cosnorm.study.runs.run import Run, number

DASH = "—"


def error_text(spread: Spread | None) -> str:
    """`1.39 ± 0.02`; without a deviation where there is a single seed."""
    if spread is None:
        return DASH
    if spread.deviation is None:
        return f"{spread.mean:.2f}"
    return f"{spread.mean:.2f} ± {spread.deviation:.2f}"


def variance_text(value: float | None) -> str:
    if value is None:
        return DASH
    return "0" if value == 0 else re.sub(r"e([-+])0*(\d)", r"e\1\2", f"{value:.1e}")


def header(section: DatasetGroups) -> list[str]:
    columns = ["method", "test error %", "variance", "final error %", "seeds"]
    if not section.has_one_length:
        columns.append("trained for")
    columns.append("test-set SE")
    published = ["paper %", "paper variance", "difference", "verdict"]
    return [*columns, *published] if section.published else columns


def cells(group: Group, section: DatasetGroups) -> list[str]:
    """One row of the table to read, in the order of `header`."""
    variance = group.variance
    row = [
        group.label,
        _mean_text(group),
        variance_text(variance.mean if variance else None),
        _final_text(group),
        seeds_text(group),
    ]
    if not section.has_one_length:
        row.append(length_text(section.length(group), section.unit))
    error = group_standard_error(group)
    row.append(DASH if error is None else f"{error:.2f}")
    if section.published is None:
        return row
    if group.published is None:
        return [*row, DASH, DASH, DASH, DASH]
    cell = cell_of(section, group)
    return [
        *row,
        f"{group.published.test_error:.2f}",
        variance_text(group.published.variance),
        DASH if cell is None else difference_text(cell.difference, cell.interval),
        DASH if cell is None else cell_text(cell, has_published_length(section, group)),
    ]


def signed(value: float) -> str:
    """`+0.12`, `−0.12` with a true minus."""
    return f"{value:+.2f}".replace("-", "−")


def difference_text(difference: float | None, interval: Interval | None) -> str:
    """`−0.12 (−0.20 to −0.04)`; without an interval where there is none."""
    if difference is None:
        return DASH
    if interval is None:
        return signed(difference)
    return f"{signed(difference)} ({signed(interval.low)} to {signed(interval.high)})"


def cell_text(cell: Cell, has_its_length: bool) -> str:
    """`agrees within 0.23`, `higher`, or why there is no verdict."""
    if not has_its_length:
        return "not the paper's length: no verdict"
    if cell.interval is None:
        return f"{_seeds(cell.seeds)}: no verdict"
    return f"agrees within {cell.margin:.2f}" if cell.verdict == "agrees" else cell.verdict


def pair_text(pair: Pair) -> str:
    """`better`, `equivalent within 0.12`, or why there is no verdict."""
    if pair.interval is None:
        return f"{_seeds(len(pair.seeds))}: no verdict"
    told = pair.verdict
    return f"{told} within {pair.margin:.2f}" if told == "equivalent" else told


def _seeds(count: int) -> str:
    return {0: "no seed in common", 1: "1 seed"}.get(count, f"{count} seeds")


def pair_header(section: DatasetGroups) -> list[str]:
    columns = ["pair", "difference", "seeds", "verdict"]
    return [*columns, "paper", "order"] if section.published else columns


def pair_cells(pair: Pair, section: DatasetGroups) -> list[str]:
    """One row of the table of pairs, in the order of `pair_header`."""
    row = [
        f"{pair.first} − {pair.second}",
        difference_text(pair.difference, pair.interval),
        str(len(pair.seeds)),
        pair_text(pair),
    ]
    if section.published is None:
        return row
    return [*row, DASH if pair.paper is None else signed(pair.paper), pair.order or DASH]


def pair_notes(section: DatasetGroups) -> list[str]:
    """What a reader must know to read the table of pairs right."""
    lines = [
        "Differences are in percentage points, taken seed by seed: below 0, the first errs less. "
        "In brackets the 95 % interval of their mean: the bootstrap's, or Student's where "
        "that is wider; equal differences are known to no more than the steps of the test set "
        "allow. Equivalent: the interval lies within ± the margin, one test-set standard "
        "error; better, worse: it lies below, above 0; else undecided. One seed gives no verdict.",
    ]
    if told := choice_note(section):
        lines.insert(0, told)
    if section.published:
        lines.append(
            "Order: whether the verdict has the sign of the paper's difference, or is equivalent "
            "where that is within the margin."
        )
    return lines


def choice_note(section: DatasetGroups) -> str:
    """Which setting of each method is compared, and why, where not all are; else nothing."""
    others = left_out(section)
    if not others:
        return ""
    labels = ", ".join(group.label for group in compared(section))
    return (
        f"Compared is one setting of each method: {labels}. {others} other "
        f"{'setting is' if others == 1 else 'settings are'} left out: all pairs would be too many "
        "to read. It is the setting with the most finished runs, of equals the one with the "
        "method's usual learning rate, else the first in the table; never chosen by test error."
    )


def _mean_text(group: Group) -> str:
    if group.test_error is not None:
        return error_text(group.test_error)
    return failure_text(group) or DASH


def failure_text(group: Group) -> str:
    """`diverged` or `not trained` of a group without any other run, else nothing."""
    if group.all_diverged:
        return "diverged"
    failed = len(group.having("diverged")) + len(group.having("untrained"))
    return "not trained" if failed == len(group.runs) else ""


def _final_text(group: Group) -> str:
    if group.final_error is not None:
        return error_text(group.final_error)
    so_far = Spread.of(run.last_test_error for run in group.having("running"))
    return f"{error_text(so_far)} so far" if so_far else DASH


def seeds_text(group: Group) -> str:
    """`3`, or `2 + 1 diverged`: how many runs the mean is over, and what became of the others."""
    others = [
        f"{len(runs)} {word}"
        for word, runs in (
            ("diverged", group.having("diverged")),
            ("not trained", group.having("untrained")),
            ("running", group.having("running")),
        )
        if runs
    ]
    return " + ".join([str(len(group.having("finished"))), *others])


def length_text(length: float | None, unit: str) -> str:
    """`20 epochs`, `1 epoch`."""
    if length is None:
        return DASH
    return f"{length:,.10g} {unit}{'' if length == 1 else 's'}"


HELD_OUT_NOTE = (
    "Held out: the error is that on a share of the training part which was kept from training; "
    "the test part was not used."
)


def notes(section: DatasetGroups) -> list[str]:
    """What a reader must know to read the table right."""
    lines = [
        "Test error: mean ± sample deviation over seeds of each run's mean over "
        f"{_window(section.runs)}; variance: that of the error within this window, averaged over "
        "seeds. Test-set SE: how far the error may be off on other test rows, whatever the seeds."
    ]
    if section.is_held_out:
        lines.insert(0, HELD_OUT_NOTE)
    if not section.has_one_length:
        lines.insert(
            0,
            "Not all were trained for the same length (see the column trained for): their errors "
            "do not compare like with like, and none is marked as the lowest.",
        )
    if not section.has_one_data:
        lines.insert(
            0,
            "Not all were made on the same data (see data= in their names): they are neither "
            "averaged nor compared with each other, and none is marked as the lowest.",
        )
    if section.published:
        lines.append(
            f"Paper: {section.published.source}; difference: measured minus paper, "
            "in percentage points, with the 95 % interval for one further run; agrees: the "
            "interval lies within ± two test-set standard errors."
        )
        lines += _length_note(section)
    for group in section.groups:
        if failed := [run for run in group.runs if run.status in ("diverged", "untrained")]:
            endings = [f"seed {run.seed} {ending_text(run)}" for run in failed]
            lines.append(f"{group.label}: {'; '.join(endings)}.")
    return lines


def ending_text(run: Run) -> str:
    """How a run stands: `finished`, `diverged at epoch 9`, `not trained, given up at step 1`."""
    if run.status not in ("diverged", "untrained"):
        return run.status
    last = number(run.metrics[-1].get(run.unit)) if run.metrics else None
    place, unit = (last, run.unit) if last is not None else (run.result("steps"), "step")
    where = "" if place is None else f" at {unit} {place:,.10g}"
    return f"diverged{where}" if run.status == "diverged" else f"not trained, given up{where}"


def _window(runs: Iterable[Run]) -> str:
    windows = dict.fromkeys(
        f"the last {count:,} {unit}s" if count != 1 else f"the last {unit}"
        for run in runs
        if run.summary and isinstance(window := run.summary.get("window"), dict)
        if isinstance(count := window.get("count"), int) and (unit := window.get("unit"))
    )
    return " or ".join(windows) if 0 < len(windows) < 4 else "its last part"


def _length_note(section: DatasetGroups) -> list[str]:
    """A short run beside the paper's full one is no reproduction: say so."""
    assert section.published is not None
    wanted, unit = section.published.length, section.published.unit
    lengths = sorted(
        {(run.unit, run.length) for run in section.runs if run.length is not None}
        - {(unit, float(wanted))}
    )
    if not lengths:
        return []
    ours = ", ".join(length_text(length, name) for name, length in lengths)
    return [f"Not the paper's length: the paper trains for {wanted:,} {unit}s; here {ours}."]
