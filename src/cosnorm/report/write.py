"""The report as files, each put in its place at once, so that nobody ever reads half of one."""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cosnorm import __version__
from cosnorm.experiments.storage import LocalStorage
from cosnorm.report.figures import figure_files
from cosnorm.report.groups import DatasetGroups, group_runs
from cosnorm.report.page import html_page
from cosnorm.report.published import Published
from cosnorm.report.runs import load_runs
from cosnorm.report.tables import curves_csv, latex, markdown, runs_csv, table_csv

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReportFiles:
    """What was written, the groups that the tables show, and what could not be read."""

    page: Path
    markdown: Path
    latex: Path
    csv: Path
    runs_csv: Path
    curves_csv: Path
    figures: tuple[Path, ...]
    sections: tuple[DatasetGroups, ...]
    warnings: tuple[str, ...]


def write_report(
    runs: Path | str | Iterable[Path | str],
    out: Path | str,
    *,
    title: str | None = None,
    published: Mapping[str, Published] | None = None,
) -> ReportFiles:
    """Write tables, figures and the page for all runs found.

    Arguments:
        runs: a folder that is searched for run folders, or a list of such folders.
        out: the folder for the report; made if it is not there, older files replaced.
        title: the page's heading.
        published: tables to compare with, by data set; None means the paper's, {} none.

    Raises `ReportError` where there is no run to report on, `StorageError` where `out` cannot be
    written. What is damaged is left out, logged as a warning and told in the page.

    Example:
        `write_report("runs/digits", "runs/digits/report").page` is the path of index.html.
    """
    found, warnings = load_runs(runs)
    sections = group_runs(found, warnings, published)
    for warning in warnings:
        _log.warning("%s", warning)
    out = Path(out)
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC by cosnorm {__version__}"
    page = html_page(sections, warnings, title or _title(sections), made)
    texts = {
        "table.md": markdown(sections),
        "table.tex": latex(sections),
        "table.csv": table_csv(sections),
        "runs.csv": runs_csv(sections),
        "curves.csv": curves_csv(sections),
        "index.html": page,
    }
    figures = _figures(sections)
    storage = LocalStorage(out)
    for name, content in {**figures, **{k: v.encode() for k, v in texts.items()}}.items():
        storage.write(name, content)
    return ReportFiles(
        page=out / "index.html",
        markdown=out / "table.md",
        latex=out / "table.tex",
        csv=out / "table.csv",
        runs_csv=out / "runs.csv",
        curves_csv=out / "curves.csv",
        figures=tuple(out / name for name in figures),
        sections=tuple(sections),
        warnings=tuple(warnings),
    )


def _title(sections: Sequence[DatasetGroups]) -> str:
    if len(sections) == 1:
        return f"Normalisations compared on {sections[0].label}"
    return f"Normalisations compared on {len(sections)} data sets"


def _figures(sections: Sequence[DatasetGroups]) -> dict[str, bytes]:
    figures: dict[str, bytes] = {}
    for name, section in zip(_file_names(sections), sections, strict=True):
        figures |= {f"{name}{end}": content for end, content in figure_files(section).items()}
    return figures


def _file_names(sections: Sequence[DatasetGroups]) -> list[str]:
    """A plain file name for each data set; two that come out the same are numbered."""
    names: list[str] = []
    for section in sections:
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", section.label).strip("._")[:60] or "data"
        taken = names.count(name)
        names.append(f"{name}-{taken + 1}" if taken else name)
    return names
