"""The report as files, each put in its place at once, so that nobody ever reads half of one."""

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cosnorm import __version__
from cosnorm.study.report.figures import figure_files
from cosnorm.study.report.formats import (
    curves_csv,
    latex,
    layers_csv,
    markdown,
    pairs_csv,
    runs_csv,
    table_csv,
)
from cosnorm.study.report.groups import DatasetGroups, group_runs
from cosnorm.study.report.links import Links
from cosnorm.study.report.page import html_page
from cosnorm.study.report.published import Published
from cosnorm.study.report.runs import Source, load_runs
from cosnorm.study.runs.storage import Storage, storage_at

_LIST = "files.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReportFiles:
    """What was written, the groups that the tables show, and what could not be read.

    Files are told in the storage's words: of a folder, by their paths.
    """

    page: str
    markdown: str
    latex: str
    csv: str
    pairs_csv: str
    runs_csv: str
    curves_csv: str
    figures: tuple[str, ...]
    sections: tuple[DatasetGroups, ...]
    warnings: tuple[str, ...]


def write_report(
    runs: Source | Iterable[Source],
    out: Source,
    *,
    title: str | None = None,
    published: Mapping[str, Published] | None = None,
) -> ReportFiles:
    """Write tables, figures and the page for all runs found.

    Arguments:
        runs: a folder, or any storage, that is searched for run folders; or a list of them.
        out: the folder, or storage, for the report; made if it is not there. What an
            earlier report wrote there is replaced or removed, and nothing else.
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
    storage = storage_at(out)
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC by cosnorm {__version__}"
    texts = {
        "table.md": markdown(sections),
        "table.tex": latex(sections),
        "table.csv": table_csv(sections),
        "pairs.csv": pairs_csv(sections),
        "runs.csv": runs_csv(sections),
        "curves.csv": curves_csv(sections),
    }
    if layers := layers_csv(sections):
        texts["layers.csv"] = layers
    figures = _figures(sections)
    links = Links(storage.label, list(texts), [list(files) for files in figures])
    texts["index.html"] = html_page(sections, warnings, title or _title(sections), made, links)
    # A path need not be text: what no encoding has must not cost the report.
    encoded = {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}
    pictures = {name: content for files in figures for name, content in files.items()}
    written = {**pictures, **encoded}
    for name, content in written.items():
        storage.write(name, content)
    _tidy(storage, written)

    def place(name: str) -> str:
        return f"{storage.label}/{name}"

    return ReportFiles(
        page=place("index.html"),
        markdown=place("table.md"),
        latex=place("table.tex"),
        csv=place("table.csv"),
        pairs_csv=place("pairs.csv"),
        runs_csv=place("runs.csv"),
        curves_csv=place("curves.csv"),
        figures=tuple(map(place, pictures)),
        sections=tuple(sections),
        warnings=tuple(warnings),
    )


def _tidy(storage: Storage, written: Mapping[str, bytes]) -> None:
    """Remove what an earlier report here wrote and this one did not; keep the list for the next.

    A file that is not what was written, by its checksum, is somebody's own by now and stays.
    """
    for name, checksum in _listed(storage).items():
        if name not in written and _checksum(storage.read(name) or b"") == checksum:
            storage.delete(name)
    listed = {name: _checksum(content) for name, content in written.items()}
    storage.write(_LIST, f"{json.dumps({'files': listed}, indent=2)}\n".encode())


def _listed(storage: Storage) -> dict[str, str]:
    """The files of the report before, with their checksums; none where the list is damaged."""
    try:
        files = json.loads(storage.read(_LIST) or b"{}")["files"]
        return {name: str(files[name]) for name in files if re.fullmatch(r"[\w-][\w.-]*", name)}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _title(sections: Sequence[DatasetGroups]) -> str:
    if len(sections) == 1:
        return f"Normalisations compared on {sections[0].label}"
    return f"Normalisations compared on {len(sections)} data sets"


def _figures(sections: Sequence[DatasetGroups]) -> list[dict[str, bytes]]:
    """The figures of each data set by the names of their files."""
    return [
        {f"{name}{end}": content for end, content in figure_files(section).items()}
        for name, section in zip(_file_names(sections), sections, strict=True)
    ]


def _file_names(sections: Sequence[DatasetGroups]) -> list[str]:
    """A plain file name for each data set; two that come out the same are numbered."""
    names: list[str] = []
    for section in sections:
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", section.label).strip("._")[:60] or "data"
        taken = names.count(name)
        names.append(f"{name}-{taken + 1}" if taken else name)
    return names
