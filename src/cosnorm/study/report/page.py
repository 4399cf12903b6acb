"""One HTML page that needs nothing else: no network, no other file.

Tables are plain HTML; the curves and the unfolding of runs are the script's (assets/).
"""

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from cosnorm.study.report.groups import DatasetGroups, Group
from cosnorm.study.report.links import Links, address
from cosnorm.study.report.page_tables import (
    environment_card,
    pairs_card,
    results_table,
    runs_list,
    settings_card,
)
from cosnorm.study.report.payload import embed, page_data
from cosnorm.study.report.published import CLAIMS
from cosnorm.study.report.tables import error_text, length_text, notes
from cosnorm.study.report.verdicts import Pair, Verdict, compared, left_out, pairs_of

_SCRIPTS = (
    *("shapes.js", "chart.js", "controls.js", "tip.js", "gestures.js"),
    *("save.js", "tables.js", "page.js"),
)


def html_page(
    sections: Sequence[DatasetGroups],
    warnings: Sequence[str],
    title: str,
    made: str,
    links: Links | None = None,
) -> str:
    """The whole page as text; `links` tells what lies beside it."""
    links = links or Links()
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    style = _asset("page.css")
    data = page_data(sections, links)
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
            _files(links.files),
            _warnings(warnings),
            *(_section(i, section, data["differing"], links) for i, section in enumerate(sections)),
            _claims(sections),
            environment_card([run for section in sections for run in section.runs]),
            runs_list(sections, links),
            f'<script type="application/json" id="data">{embed(data)}</script>',
            f"<script>{script}</script>\n</body>\n</html>\n",
        )
    )


def _asset(name: str) -> str:
    return (files("cosnorm.study.report") / "assets" / name).read_text(encoding="utf-8")


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
    told = [
        f"{states[s]} {s}" for s in ("finished", "diverged", "untrained", "running") if states[s]
    ]
    return (
        f"{_count(len(runs), 'run')} ({', '.join(told)}) of {_count(methods, 'method')} on "
        f"{_count(len(sections), 'data set')}"
    )


def _files(names: Sequence[str]) -> str:
    """Links to files beside the page, by their names."""
    told = " ".join(f'<a href="{escape(address(name))}">{escape(name)}</a>' for name in names)
    return f'<p class="files">{told}</p>' if names else ""


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


def _section(index: int, section: DatasetGroups, differing: Mapping[str, Any], links: Links) -> str:
    told = "".join(f"<li>{escape(note)}</li>" for note in notes(section))
    return (
        f'<section id="set-{index}"><h2>{escape(section.label)}</h2>'
        f'<p class="lead">{escape(_finding(section))}</p>'
        f'<div class="card"><div class="chart" id="chart-{index}">'
        "<p>No evaluation has been recorded yet, or scripts are switched off.</p></div>"
        f"{_files(links.figures[index]) if links.figures else ''}</div>"
        f'<div class="card"><div class="scroll">{results_table(section)}</div>'
        f'<ul class="notes">{told}</ul></div>{pairs_card(section)}'
        f"{settings_card(section, differing['config'][index])}</section>"
    )


def _finding(section: DatasetGroups) -> str:
    if section.best and left_out(section):
        return _finding_of_compared(section)
    if section.best:
        told = [f"{group.label}, {error_text(group.test_error)} %" for group in section.best]
        return f"Lowest mean test error: {' and '.join(told)}{_caution(section, section.best)}."
    finished = [group for group in section.groups if group.test_error is not None]
    if not finished:
        return "No run has finished with a result yet."
    if not section.has_one_data:
        return (
            "Not all were made on the same data: their errors do not compare like with like, and "
            "none is marked as the lowest."
        )
    if not section.has_one_length:
        return (
            "Not all were trained for the same length: "
            f"{', '.join(f'{g.label} {_length(section, g)}' for g in finished)}. Their errors do "
            "not compare like with like, and none is marked as the lowest."
        )
    return f"Mean test error: {finished[0].label}, {error_text(finished[0].test_error)} %."


def _length(section: DatasetGroups, group: Group) -> str:
    return length_text(section.length(group), section.unit)


def _finding_of_compared(section: DatasetGroups) -> str:
    """Of many settings: first what the verdicts speak of, then the lowest of all."""
    lowest, *others = sorted(compared(section), key=_mean)
    same = [lowest, *(other for other in others if _mean(other) == _mean(lowest))]
    told = " and ".join(f"{group.label}, {error_text(group.test_error)} %" for group in same)
    best = section.best[0]
    return (
        f"Lowest mean test error of the settings compared below: {told}{_caution(section, same)}. "
        f"Of all {len(section.groups)} settings: {best.label}, {error_text(best.test_error)} %; "
        "chosen by test error, it flatters."
    )


def _mean(group: Group) -> float:
    return math.inf if group.test_error is None else group.test_error.mean


def _caution(section: DatasetGroups, lowest: Sequence[Group]) -> str:
    """What the seeds say of the group with the lowest mean against each other."""
    if len(lowest) > 1:
        return ""
    best = lowest[0].label
    pairs = [pair for pair in pairs_of(section) if best in (pair.first, pair.second)]
    told = []
    for verdict, words in _CAUTIONS.items():
        others = [_other(pair, best) for pair in pairs if _seen_from(best, pair) == verdict]
        told += [f"{words} {', '.join(others)}"] if others else []
    return f"; seed by seed it is {'; '.join(told)}" if told else " (1 seed: no verdict)"


_CAUTIONS: Mapping[Verdict, str] = {
    "better": "better than",
    "equivalent": "equivalent to",
    "undecided": "not clearly apart from",
    "worse": "worse than",
}


def _other(pair: Pair, label: str) -> str:
    return pair.second if label == pair.first else pair.first


def _seen_from(label: str, pair: Pair) -> Verdict:
    """The verdict of a pair for the one of the two that is named."""
    turned: Mapping[Verdict, Verdict] = {"better": "worse", "worse": "better"}
    if label == pair.first or pair.verdict not in turned:
        return pair.verdict
    return turned[pair.verdict]


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
