"""Tables as text: Markdown and LaTeX to read, CSV at full precision to compute with."""

import csv
import io
import re
from collections.abc import Iterable, Sequence

from cosnorm.study.names import METRICS
from cosnorm.study.report.groups import DatasetGroups, Group
from cosnorm.study.report.tables import (
    cells,
    header,
    notes,
    pair_cells,
    pair_header,
    pair_notes,
)
from cosnorm.study.report.verdicts import cell_of, group_standard_error, pairs_of


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
        parts.append(_markdown_pairs(section))
    return "\n".join(part for part in parts if part)


def _markdown_pairs(section: DatasetGroups) -> str:
    pairs = pairs_of(section)
    if not pairs:
        return ""
    head = pair_header(section)
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    rows += [[_markdown_escape(cell) for cell in pair_cells(pair, section)] for pair in pairs]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    told = "\n".join(f"- {_markdown_escape(note)}" for note in pair_notes(section))
    return f"{table}\n\n{told}\n"


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
        "dataset", "method", "settings", "seeds", "diverged", "untrained", "running",
        "test_error_mean", "test_error_deviation", "test_error_variance",
        "final_test_error", "final_test_error_deviation", "test_set_standard_error",
        "published_test_error", "published_variance", "difference", "difference_low",
        "difference_high", "margin", "verdict", "length", "unit",
    )  # fmt: skip
    return _csv(names, (_table_line(s, group) for s in sections for group in s.groups))


def _table_line(section: DatasetGroups, group: Group) -> list[object]:
    error, variance, final = group.test_error, group.variance, group.final_error
    paper, cell = group.published, cell_of(section, group)
    interval = cell and cell.interval
    return [
        section.dataset, group.method, group.variant,
        *(len(group.having(status)) for status in ("finished", "diverged", "untrained", "running")),
        error and error.mean, error and error.deviation, variance and variance.mean,
        final and final.mean, final and final.deviation, group_standard_error(group),
        paper and paper.test_error, paper and paper.variance, group.difference,
        interval and interval.low, interval and interval.high,
        cell and cell.margin, cell and cell.verdict, section.length(group), section.unit,
    ]  # fmt: skip


def pairs_csv(sections: Sequence[DatasetGroups]) -> str:
    """One line per pair of methods."""
    names = (
        "dataset", "first", "second", "seeds", "difference", "low", "high", "margin", "verdict",
        "published_difference", "order",
    )  # fmt: skip
    lines = (
        [
            section.dataset, pair.first, pair.second, len(pair.seeds), pair.difference,
            pair.interval and pair.interval.low, pair.interval and pair.interval.high,
            pair.margin, pair.verdict, pair.paper, pair.order,
        ]
        for section in sections for pair in pairs_of(section)
    )  # fmt: skip
    return _csv(names, lines)


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
    values = ("epoch", "step", "seconds", *METRICS)
    lines = (
        [section.dataset, group.method, group.variant, run.seed, *map(evaluation.get, values)]
        for section in sections for group in section.groups for run in group.runs
        for evaluation in run.metrics
    )  # fmt: skip
    return _csv(("dataset", "method", "settings", "seed", *values), lines)


def layers_csv(sections: Sequence[DatasetGroups]) -> str:
    """Every layer at every evaluation that tells of layers; "" where none does."""
    values = ("weight_norm", "effective_lr", "scale")
    lines = [
        [
            section.dataset, group.method, group.variant, run.seed,
            evaluation.get("epoch"), evaluation.get("step"), layer, *map(figures.get, values),
        ]
        for section in sections for group in section.groups for run in group.runs
        for evaluation in run.metrics
        if isinstance(layers := evaluation.get("layers"), dict)
        for layer, figures in layers.items() if isinstance(figures, dict)
    ]  # fmt: skip
    names = ("dataset", "method", "settings", "seed", "epoch", "step", "layer", *values)
    return _csv(names, lines) if lines else ""


def _csv(names: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(lines)
    return text.getvalue()
