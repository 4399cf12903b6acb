"""The table that ends a comparison, on the terminal or as JSON."""

import json as json_format
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cosnorm.cli.display import percent

if TYPE_CHECKING:
    from rich.table import Table

    from cosnorm.report import ReportFiles


def reported(out: Path, as_json: bool) -> None:
    """Write the report of all runs in `out`, and print its table."""
    from cosnorm.report import write_report

    files = write_report(out, out / "report")
    if as_json:
        typer.echo(
            json_format.dumps({"event": "report", "page": str(files.page), "rows": _rows(files)})
        )
        return
    _print_table(files)
    typer.echo(f"table: {files.markdown}\npicture and page: {files.page}")


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
                    "seeds": len(group.runs),
                    "diverged": len(group.having("diverged")),
                    "test_error_mean": error and error.mean,
                    "test_error_deviation": error and error.deviation,
                    "published": published and published.test_error,
                }
            )
    return rows


def _print_table(files: "ReportFiles") -> None:
    """The table in the first form for which there is room.

    What a narrow form lacks is its frame, counts that are all 0, and a name that all rows share.
    """
    from rich.console import Console

    console, columns = Console(), _columns(_rows(files))
    plain = {head for head, cells in columns.items() if set(cells) <= {"", "0"}}
    alike = {"data"} if len(set(columns["data"])) == 1 else set()
    forms = [(True, set()), (True, plain), (False, plain), (False, plain | alike)]
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
        table.add_row(*map(Text, cells))  # which takes no brackets in a name for markup
    return table


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    columns = {
        "data": [Path(row["dataset"]).name for row in rows],
        "method": [row["method"] for row in rows],
        "test error": [_error(row) for row in rows],
        "seeds": [str(row["seeds"]) for row in rows],
        "diverged": [str(row["diverged"]) for row in rows],
    }
    papers = [row["published"] for row in rows]
    if any(paper is not None for paper in papers):
        columns["paper"] = ["" if paper is None else percent(paper) for paper in papers]
    return columns


def _error(row: Mapping[str, Any]) -> str:
    mean, deviation = row["test_error_mean"], row["test_error_deviation"]
    if mean is None:
        return "–"
    return percent(mean) + ("" if deviation is None else f" ± {deviation:.2f}")
