"""The table that ends a comparison, on the terminal or as JSON."""

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cosnorm.cli.display import percent

if TYPE_CHECKING:
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
    from rich.console import Console
    from rich.table import Table

    rows = _rows(files)
    has_paper = any(row["published"] is not None for row in rows)
    table = Table("data", "method", "test error", "seeds", "diverged", *["paper"] * has_paper)
    for row in rows:
        error = "–" if row["test_error_mean"] is None else percent(row["test_error_mean"])
        if row["test_error_deviation"] is not None:
            error += f" ± {row['test_error_deviation']:.2f}"
        paper = "" if row["published"] is None else percent(row["published"])
        name = Path(row["dataset"]).name
        counts = str(row["seeds"]), str(row["diverged"])
        table.add_row(name, row["method"], error, *counts, *[paper] * has_paper)
    Console().print(table)
