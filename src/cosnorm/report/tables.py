"""Groups out as tables: Markdown and LaTeX to read, CSV at full precision to compute with."""

import csv
import io
import re
from collections.abc import Iterable, Sequence

from cosnorm.report.groups import DatasetGroups, Group, Spread
from cosnorm.report.runs import Run

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
    return [*columns, "paper %", "paper variance", "difference"] if section.published else columns


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
    if section.published is None:
        return row
    if group.published is None:
        return [*row, DASH, DASH, DASH]
    difference = group.difference
    return [
        *row,
        f"{group.published.test_error:.2f}",
        variance_text(group.published.variance),
        DASH if difference is None else f"{difference:+.2f}".replace("-", "−"),
    ]


def _mean_text(group: Group) -> str:
    if group.test_error is not None:
        return error_text(group.test_error)
    return "diverged" if group.all_diverged else DASH


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


def notes(section: DatasetGroups) -> list[str]:
    """What a reader must know to read the table right."""
    lines = [
        "Test error: mean ± sample deviation over seeds of each run's mean over "
        f"{_window(section.runs)}; variance: that of the error within this window, averaged over "
        "seeds."
    ]
    if not section.has_one_length:
        lines.insert(
            0,
            "Not all were trained for the same length (see the column trained for): their errors "
            "do not compare like with like, and none is marked as the lowest.",
        )
    if section.published:
        lines.append(
            f"Paper: {section.published.source}; difference: measured minus paper, "
            "in percentage points."
        )
        lines += _length_note(section)
    for group in section.groups:
        lines += [f"Diverged: {group.label}, seed {run.seed}." for run in group.having("diverged")]
    return lines


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


def markdown(sections: Sequence[DatasetGroups]) -> str:
    parts = []
    for section in sections:
        rows = [header(section), ["---", *["---:"] * (len(header(section)) - 1)]]
        for group in section.groups:
            row = [_markdown_escape(cell) for cell in cells(group, section)]
            if section.is_best(group):
                row[1] = f"**{row[1]}**"
            rows.append(row)
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        told = "\n".join(f"- {_markdown_escape(note)}" for note in notes(section))
        parts.append(f"## {_markdown_escape(section.label)}\n\n{table}\n\n{told}\n")
    return "\n".join(parts)


def _markdown_escape(text: str) -> str:
    return re.sub(r"([\\|*_`<>\[\]#])", r"\\\1", _one_line(text))


def latex(sections: Sequence[DatasetGroups]) -> str:
    """One `table` a data set; needs the booktabs package."""
    return "% needs \\usepackage{booktabs}\n" + "\n".join(map(_latex_table, sections))


def _latex_table(section: DatasetGroups) -> str:
    lines = [
        r"\begin{table}[htb]",
        r"\centering\small",
        rf"\caption{{{latex_escape(section.label)}. {latex_escape(' '.join(notes(section)))}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(header(section)) - 1)}}}",
        r"\toprule",
        " & ".join(map(latex_escape, header(section))) + r" \\",
        r"\midrule",
    ]
    for group in section.groups:
        row = [latex_escape(cell) for cell in cells(group, section)]
        if section.is_best(group):
            row[1] = rf"\textbf{{{row[1]}}}"
        lines.append(" & ".join(row) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "±": r"$\pm$", "−": r"$-$", "—": "--",
    **{char: f"\\{char}" for char in "&%$#_"},
}  # fmt: skip


def latex_escape(text: str) -> str:
    """Plain text as LaTeX; 1.0e-5 becomes a product with a power of ten."""
    escaped = "".join(_LATEX.get(char, char) for char in _one_line(text))
    return re.sub(
        r"^(\d(?:\.\d+)?)e([-+]\d+)$",
        lambda m: rf"${m[1]}\times10^{{{int(m[2])}}}$",
        escaped,
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def table_csv(sections: Sequence[DatasetGroups]) -> str:
    """One line per data set, method and settings."""
    names = (
        "dataset", "method", "settings", "seeds", "diverged", "running",
        "test_error_mean", "test_error_deviation", "test_error_variance",
        "final_test_error", "final_test_error_deviation",
        "published_test_error", "published_variance", "difference", "length", "unit",
    )  # fmt: skip
    return _csv(names, (_table_line(s, group) for s in sections for group in s.groups))


def _table_line(section: DatasetGroups, group: Group) -> list[object]:
    error, variance, final = group.test_error, group.variance, group.final_error
    paper = group.published
    return [
        section.dataset, group.method, group.variant,
        *(len(group.having(status)) for status in ("finished", "diverged", "running")),
        error and error.mean, error and error.deviation, variance and variance.mean,
        final and final.mean, final and final.deviation,
        paper and paper.test_error, paper and paper.variance, group.difference,
        section.length(group), section.unit,
    ]  # fmt: skip


def runs_csv(sections: Sequence[DatasetGroups]) -> str:
    """One line per run that is counted."""
    results = (
        "test_error_mean", "test_error_variance", "final_test_error", "steps", "seconds",
    )  # fmt: skip
    names = ("dataset", "method", "settings", "seed", "status", *results, "run")
    lines = (
        [
            section.dataset, group.method, group.variant, run.seed, run.status,
            *map(run.result, results), run.path,
        ]
        for section in sections for group in section.groups for run in group.runs
    )  # fmt: skip
    return _csv(names, lines)


def curves_csv(sections: Sequence[DatasetGroups]) -> str:
    """Every evaluation of every run that is counted, nothing thinned."""
    values = ("epoch", "step", "train_loss", "test_error", "test_error_raw")
    lines = (
        [section.dataset, group.method, group.variant, run.seed, *map(evaluation.get, values)]
        for section in sections for group in section.groups for run in group.runs
        for evaluation in run.metrics
    )  # fmt: skip
    return _csv(("dataset", "method", "settings", "seed", *values), lines)


def _csv(names: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(lines)
    return text.getvalue()
