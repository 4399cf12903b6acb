"""The table that ends a comparison, on the terminal or as JSON, and the files of a report."""

import json as json_format
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cosnorm.study.cli.display import percent
from cosnorm.study.cli.showing import shown

if TYPE_CHECKING:
    from rich.table import Table

    from cosnorm.study.report import Group, ReportFiles


def reported(out: str, as_json: bool) -> None:
    """Write the report of all runs in `out`, and print its table."""
    from cosnorm.study.report import write_report
    from cosnorm.study.runs.storage import storage_at

    storage = storage_at(out)
    files = write_report(storage, storage.at("report"))
    if as_json:
        told = {
            "event": "report",
            "page": files.page,
            "figures": list(files.figures),
            "rows": _rows(files),
            "pairs": _pairs(files),
        }
        typer.echo(json_format.dumps(told))
        return
    print_tables(files)
    print_files(files)


def print_tables(files: "ReportFiles") -> None:
    """The methods and their errors, and the verdicts on every two of them."""
    from cosnorm.study.report.tables import HELD_OUT_NOTE

    _print_table(_columns(files))
    _print_pairs(files)
    if any(section.is_held_out for section in files.sections):
        typer.echo(HELD_OUT_NOTE)


def print_files(files: "ReportFiles") -> None:
    """Name what a reader of the report opens: table, figures, page."""
    typer.echo(f"table: {shown(files.markdown)}")
    for figure in files.figures:
        typer.echo(f"figure: {shown(figure)}")
    typer.echo(f"page: {shown(files.page)}")


def _rows(files: "ReportFiles") -> list[dict[str, Any]]:
    """One row a method: mean and deviation over seeds, beside what the paper says."""
    from cosnorm.study.report.payload import cell_row

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
                    "untrained": len(group.having("untrained")),
                    "running": len(group.having("running")),
                    "length": section.length(group),
                    "unit": section.unit,
                    "test_error_mean": error and error.mean,
                    "test_error_deviation": error and error.deviation,
                    "published": published and published.test_error,
                    **cell_row(section, group),
                }
            )
    return rows


def _pairs(files: "ReportFiles") -> list[dict[str, Any]]:
    from cosnorm.study.report.payload import pair_rows

    return [
        {"dataset": section.dataset, **row}
        for section in files.sections
        for row in pair_rows(section)
    ]


def _print_pairs(files: "ReportFiles") -> None:
    """The verdicts, pair by pair; of single seeds, a line that there are none."""
    from cosnorm.study.report.tables import choice_note, pair_cells, pair_header
    from cosnorm.study.report.verdicts import pairs_of

    found = [(section, pairs_of(section)) for section in files.sections]
    if not any(pairs for _, pairs in found):
        return
    if all(pair.interval is None for _, pairs in found for pair in pairs):
        typer.echo("1 seed: no verdict on any pair of methods; --seeds 3 or more may give one")
        return
    rows = [
        {
            "data": Path(section.dataset).name,
            **dict(zip(pair_header(section), pair_cells(pair, section), strict=True)),
        }
        for section, pairs in found
        for pair in pairs
    ]
    heads = dict.fromkeys(head for row in rows for head in row)
    _print_table({head: [row.get(head, "") for row in rows] for head in heads})
    for note in filter(None, (choice_note(section) for section, _ in found)):
        typer.echo(shown(note))


def _print_table(columns: Mapping[str, list[str]]) -> None:
    """The table in the first form for which there is room.

    What a narrow form lacks is its frame and a name that all rows share.
    """
    from rich.console import Console

    console = Console()
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
            *(Text(shown(cell)) for cell in cells)
        )  # Text takes no brackets in a name for markup
    return table


def _columns(files: "ReportFiles") -> dict[str, list[str]]:
    from cosnorm.study.report.tables import (
        cell_text,
        difference_text,
        length_text,
        seeds_text,
    )
    from cosnorm.study.report.verdicts import cell_of, has_published_length

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
        measured = [(cell_of(s, group), has_published_length(s, group)) for s, group in rows]
        columns["difference"] = [
            difference_text(cell.difference, cell.interval) if cell else "" for cell, _ in measured
        ]
        columns["verdict"] = [cell_text(cell, whole) if cell else "" for cell, whole in measured]
    return columns


def _error(group: "Group") -> str:
    from cosnorm.study.report.tables import failure_text

    error = group.test_error
    if error is None:
        return failure_text(group) or "—"
    return percent(error.mean) + ("" if error.deviation is None else f" ± {error.deviation:.2f}")
