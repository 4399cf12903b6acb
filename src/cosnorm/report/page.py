"""One HTML page that needs nothing else: no network, no other file.

Tables are plain HTML; the curves and the unfolding of runs are the script's (assets/).
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from cosnorm.report.groups import (
    DatasetGroups,
    Group,
    comparable,
    differing_keys,
    experiment_settings,
    flat,
    plain,
)
from cosnorm.report.payload import embed, page_data
from cosnorm.report.published import CLAIMS
from cosnorm.report.runs import Run
from cosnorm.report.tables import DASH, cells, error_text, header, length_text, notes

_SCRIPTS = ("shapes.js", "chart.js", "controls.js", "page.js")
# A whole run list is laid out at once; beyond this many characters a value is cut in tables (the
# run's own settings show it whole).
_VALUE_LENGTH = 120


def html_page(
    sections: Sequence[DatasetGroups], warnings: Sequence[str], title: str, made: str
) -> str:
    """The whole page as text."""
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    style = _asset("page.css")
    data = page_data(sections)
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(script, style)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style>\n</head>\n<body>",
            f"<header><div><h1>{escape(title)}</h1>",
            f'<p class="lead">{escape(_lead(sections))}. Made {escape(made)}.</p></div>',
            '<button id="theme" type="button">theme: auto</button></header>',
            _navigation(sections),
            _warnings(warnings),
            *(_section(i, section, data["differing"]) for i, section in enumerate(sections)),
            _claims(sections),
            _environment([run for section in sections for run in section.runs]),
            _runs(sections),
            f'<script type="application/json" id="data">{embed(data)}</script>',
            f"<script>{script}</script>\n</body>\n</html>\n",
        )
    )


def _asset(name: str) -> str:
    return (files("cosnorm.report") / "assets" / name).read_text(encoding="utf-8")


def _policy(script: str, style: str) -> str:
    """Only our own script and style may act, and nothing may be fetched."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _lead(sections: Sequence[DatasetGroups]) -> str:
    runs = [run for section in sections for run in section.runs]
    states = Counter(run.status for run in runs)
    methods = len({run.method for run in runs})
    told = [f"{states[s]} {s}" for s in ("finished", "diverged", "running") if states[s]]
    return (
        f"{_count(len(runs), 'run')} ({', '.join(told)}) of {_count(methods, 'method')} on "
        f"{_count(len(sections), 'data set')}"
    )


def _navigation(sections: Sequence[DatasetGroups]) -> str:
    links = [
        f'<a href="#set-{i}">{escape(section.label)}</a>' for i, section in enumerate(sections)
    ]
    return f'<nav>{"".join(links)}<a href="#runs">runs</a></nav>' if len(sections) > 1 else ""


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = "".join(f"<li>{escape(warning)}</li>" for warning in warnings)
    more = _count(len(warnings), "warning")
    return (
        f'<details class="card warnings"{" open" if len(warnings) < 6 else ""}>'
        f"<summary>{more} while reading the runs</summary><ul>{items}</ul></details>"
    )


def _section(index: int, section: DatasetGroups, differing: Mapping[str, Any]) -> str:
    told = "".join(f"<li>{escape(note)}</li>" for note in notes(section))
    return (
        f'<section id="set-{index}"><h2>{escape(section.label)}</h2>'
        f'<p class="lead">{escape(_finding(section))}</p>'
        f'<div class="card"><div class="chart" id="chart-{index}">'
        "<p>No evaluation has been recorded yet, or scripts are switched off.</p></div></div>"
        f'<div class="card"><div class="scroll">{_results(section)}</div>'
        f'<ul class="notes">{told}</ul></div>'
        f"{_settings(section, differing['config'][index])}</section>"
    )


def _finding(section: DatasetGroups) -> str:
    if section.best:
        told = [f"{group.label}, {error_text(group.test_error)} %" for group in section.best]
        return f"Lowest mean test error: {' and '.join(told)}{_caution(section)}."
    finished = [group for group in section.groups if group.test_error is not None]
    if not finished:
        return "No run has finished with a result yet."
    if not section.has_one_length:
        return (
            "Not all were trained for the same length: "
            f"{', '.join(f'{g.label} {_length(section, g)}' for g in finished)}. Their errors do "
            "not compare like with like, and none is marked as the lowest."
        )
    return f"Mean test error: {finished[0].label}, {error_text(finished[0].test_error)} %."


def _length(section: DatasetGroups, group: Group) -> str:
    return length_text(section.length(group), section.unit)


def _caution(section: DatasetGroups) -> str:
    """Which groups reach the best within both deviations."""
    errors = [group.test_error for group in section.best if group.test_error is not None]
    if any(error.deviation is None for error in errors):
        return " (one seed: how far chance reaches is not known)"
    ceiling = max(error.mean + (error.deviation or 0) for error in errors)
    near = [
        group.label
        for group in section.groups
        if not section.is_best(group) and (error := group.test_error) is not None
        if error.mean - (error.deviation or 0) <= ceiling
    ]
    those = "it" if len(errors) == 1 else "them"
    return f"; not clearly apart from {those}: {', '.join(near)}" if near else ""


def _results(section: DatasetGroups) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header(section))
    rows = []
    for group in section.groups:
        row = [escape(cell) for cell in cells(group, section)]
        marks = ["", "best" if section.is_best(group) else "", "", "", ""]
        if group.having("diverged"):
            marks[4] = "bad"
        body = "".join(
            f"<td{_mark(mark, bool(mark))}>{cell}</td>"
            for cell, mark in zip(row, [*marks, "", "", ""], strict=False)
        )
        rows.append(f"<tr>{body}</tr>")
    return (
        f'<table class="results"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _mark(name: str, wanted: bool) -> str:
    return f' class="{name}"' if wanted else ""


def _short(value: str) -> str:
    return value if len(value) <= _VALUE_LENGTH else value[:_VALUE_LENGTH] + "…"


def _settings(section: DatasetGroups, differing: Sequence[str]) -> str:
    """The settings of every group side by side, those that differ first and marked."""
    settings = [experiment_settings(group.runs[0]) for group in section.groups]
    names = dict.fromkeys(key for one in settings for key in one)
    order = [*differing, *sorted(set(names) - set(differing))]
    head = "".join(f'<th scope="col">{escape(group.label)}</th>' for group in section.groups)
    rows = "".join(
        f'<tr{_mark("differs", key in differing)}><th scope="row">{escape(key)}</th>'
        + "".join(
            f"<td>{escape(_short(plain(one[key])) if key in one else DASH)}</td>"
            for one in settings
        )
        + "</tr>"
        for key in order
    )
    same = len(order) - len(differing)
    return (
        '<details class="card"><summary>Settings: '
        f"{len(differing)} not the same in all runs, {same} the same throughout</summary>"
        f'<div class="scroll"><table class="compare"><thead><tr><th scope="col">setting</th>{head}'
        f"</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _claims(sections: Sequence[DatasetGroups]) -> str:
    if not any(section.published for section in sections):
        return ""
    items = "".join(
        f"<li><b>{escape(claim.name)}</b>: {escape(claim.text)}</li>" for claim in CLAIMS
    )
    return (
        '<details class="card"><summary>What the paper claims, to be held against the figures above'
        f'</summary><ul class="notes">{items}</ul></details>'
    )


def _environment(runs: Sequence[Run]) -> str:
    """What all runs share, and, marked, what they do not, with the number of runs for each."""
    environments = [flat(run.environment) for run in runs]
    differing = differing_keys([comparable(one) for one in environments])
    names = dict.fromkeys(key for one in environments for key in one)
    rows = []
    for key in [*differing, *(name for name in names if name not in differing)]:
        if key == "started":
            continue
        counts = Counter(plain(one[key]) if key in one else DASH for one in environments)
        text = "; ".join(_with_count(value, n, len(counts)) for value, n in counts.most_common(8))
        more = f"; and {len(counts) - 8} more" if len(counts) > 8 else ""
        rows.append(
            f'<tr{_mark("differs", key in differing)}><th scope="row">{escape(key)}</th>'
            f"<td>{escape(text + more)}</td></tr>"
        )
    if not rows:
        return ""
    told = (
        f"{len(differing)} of {len(rows)} entries differ" if differing else "the same for all runs"
    )
    return (
        f'<h2>Environment</h2><details class="card"><summary>Where the runs were made: {told}'
        f'</summary><table class="pairs"><tbody>{"".join(rows)}</tbody></table></details>'
    )


def _with_count(value: str, count: int, kinds: int) -> str:
    return f"{_short(value)} ({_count(count, 'run')})" if kinds > 1 else _short(value)


def _runs(sections: Sequence[DatasetGroups]) -> str:
    rows = "".join(_run_rows(sections))
    titles = ("data set", "method", "seed", "mean %", "final %", "status", "folder")
    head = "<span></span>" + "".join(f"<span>{title}</span>" for title in titles)
    return (
        '<h2 id="runs">Runs</h2><p class="lead">Open a run for its settings and environment; what '
        "is not the same in all runs (of the data set, for settings) is marked.</p>"
        '<input id="filter" type="search" placeholder="filter, e.g. pearson mnist" '
        'aria-label="filter the runs">'
        f'<div class="card"><div class="runs-head">{head}</div>{rows}</div>'
    )


def _run_rows(sections: Sequence[DatasetGroups]) -> Iterable[str]:
    position = 0
    for section in sections:
        for group in section.groups:
            for run in group.runs:
                yield _run_row(position, section, group, run)
                position += 1


def _run_row(position: int, section: DatasetGroups, group: Group, run: Run) -> str:
    mean, final = run.result("test_error_mean"), run.result("final_test_error")
    if run.status == "running":
        final = run.last_test_error
    values = (
        section.label,
        group.label,
        f"seed {run.seed}",
        DASH if mean is None else f"{mean:.2f}",
        DASH if final is None else f"{final:.2f}",
        run.status,
        run.name,
    )
    cells = "".join(
        f"<span{_mark('bad', value == 'diverged')}>{escape(value)}</span>" for value in values
    )
    return f'<details class="run" data-run="{position}"><summary>{cells}</summary></details>'
