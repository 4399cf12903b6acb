"""The table that ends a comparison, on the terminal or as JSON, and the files of a report."""

import json as json_format
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cosnorm.cli.display import percent

if TYPE_CHECKING:
    from rich.table import Table

    from cosnorm.report import Group, ReportFiles

# What stands for a sign of ours on a terminal that cannot show it.
_PLAIN = str.maketrans({"±": "+-", "—": "-"})


def reported(out: Path, as_json: bool) -> None:
    """Write the report of all runs in `out`, and print its table."""
    from cosnorm.report import write_report

    files = write_report(out, out / "report")
    if as_json:
        told = {
            "event": "report",
            "page": str(files.page),
            "figures": [str(figure) for figure in files.figures],
            "rows": _rows(files),
        }
        typer.echo(json_format.dumps(told))
        return
    _print_table(files)
    print_files(files)


def print_files(files: "ReportFiles") -> None:
    """Name what a reader of the report opens: table, figures, page."""
    typer.echo(f"table: {_showable(str(files.markdown))}")
    for figure in files.figures:
        typer.echo(f"figure: {_showable(str(figure))}")
    typer.echo(f"page: {_showable(str(files.page))}")


def _showable(text: str) -> str:
    """The text as far as standard output can show it: a sign that it lacks must not end us."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    return text


def _rows(files: "ReportFiles") -> list[dict[str, Any]]:
    """One row a method: mean and deviation over seeds, beside what the paper says."""
    rows = []
    for section in files.sections:
        for group in section.groups:
            error, published = group.test_error, group.published
            rows.append(
                {
                    "dataset": section.dataset,
                    "method": group.label,
                    "seeds": len(group.having("finished")),
                    "diverged": len(group.having("diverged")),
                    "running": len(group.having("running")),
                    "length": section.length(group),
                    "unit": section.unit,
                    "test_error_mean": error and error.mean,
                    "test_error_deviation": error and error.deviation,
                    "published": published and published.test_error,
                }
            )
    return rows


def _print_table(files: "ReportFiles") -> None:
    """The table in the first form for which there is room.

    What a narrow form lacks is its frame and a name that all rows share.
    """
    from rich.console import Console

    console, columns = Console(), _columns(files)
    alike = {"data"} if len(set(columns["data"])) == 1 else set()
    forms = [(True, set()), (False, set()), (False, alike)]
    tables = [_table(columns, frame, left_out) for frame, left_out in forms]
    room = console.options.update(width=1000)
    fitting = (t for t in tables if console.measure(t, options=room).maximum <= console.width)
    console.print(next(fitting, tables[-1]))


def _table(columns: Mapping[str, list[str]], has_frame: bool, left_out: set[str]) -> "Table":
    from rich.box import HEAVY_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=HEAVY_HEAD if has_frame else None, pad_edge=has_frame)
    kept = {head: cells for head, cells in columns.items() if head not in left_out}
    for head in kept:
        table.add_column(head, overflow="fold")
    for cells in zip(*kept.values(), strict=True):
        table.add_row(
            *(Text(_showable(cell)) for cell in cells)
        )  # Text takes no brackets in a name for markup
    return table


def _columns(files: "ReportFiles") -> dict[str, list[str]]:
    from cosnorm.report.tables import length_text, seeds_text

    rows = [(section, group) for section in files.sections for group in section.groups]
    columns = {
        "data": [Path(section.dataset).name for section, _ in rows],
        "method": [group.label for _, group in rows],
        "test error": [_error(group) for _, group in rows],
        "seeds": [seeds_text(group) for _, group in rows],
    }
    if not all(section.has_one_length for section in files.sections):
        columns["trained for"] = [length_text(s.length(group), s.unit) for s, group in rows]
    if any(group.published for _, group in rows):
        papers = [group.published for _, group in rows]
        columns["paper"] = [percent(paper.test_error) if paper else "" for paper in papers]
    return columns


def _error(group: "Group") -> str:
    error = group.test_error
    if error is None:
        return "diverged" if group.all_diverged else "—"
    return percent(error.mean) + ("" if error.deviation is None else f" ± {error.deviation:.2f}")
