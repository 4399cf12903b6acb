"""The page's tables as HTML: results, pairs, settings, environment, runs. The script sorts them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape

from cosnorm.study.report.groups import DatasetGroups, Group
from cosnorm.study.report.links import Links
from cosnorm.study.report.settings import (
    comparable,
    differing_keys,
    experiment_settings,
    flat,
    plain,
)
from cosnorm.study.report.tables import (
    DASH,
    cells,
    ending_text,
    header,
    pair_cells,
    pair_header,
    pair_notes,
)
from cosnorm.study.report.verdicts import pairs_of
from cosnorm.study.runs.run import Run

# A whole run list is laid out at once; beyond this many characters a value is cut in tables (the
# run's own settings show it whole).
_VALUE_LENGTH = 120
# Longer tables and lists begin folded; the style sheet has the same numbers.
_ROWS, _RUNS = 20, 50
_VERDICT_MARKS = {"better": "good", "worse": "bad"}


def results_table(section: DatasetGroups) -> str:
    rows = []
    for group in section.groups:
        row = cells(group, section)
        marks = ["", "best" if section.is_best(group) else "", *[""] * (len(row) - 2)]
        if group.having("diverged") or group.having("untrained"):
            marks[4] = "bad"
        rows.append(zip(row, marks, strict=True))
    return _table("results", header(section), rows)


def pairs_card(section: DatasetGroups) -> str:
    """Every two methods seed by seed, with a verdict; nothing where there are no two."""
    pairs = pairs_of(section)
    if not pairs:
        return ""
    place = pair_header(section).index("verdict")
    rows = []
    for pair in pairs:
        row = pair_cells(pair, section)
        marks = [""] * len(row)
        marks[place] = _VERDICT_MARKS.get(pair.verdict, "")
        rows.append(zip(row, marks, strict=True))
    table = _table("results verdicts", pair_header(section), rows)
    told = "".join(f"<li>{escape(note)}</li>" for note in pair_notes(section))
    return (
        f'<div class="card"><h3>Differences between methods</h3><div class="scroll">{table}</div>'
        f'<ul class="notes">{told}</ul></div>'
    )


def _table(kind: str, head: Sequence[str], rows: Sequence[Iterable[tuple[str, str]]]) -> str:
    """A table that the script makes sortable, folds and unfolds; each cell with a mark, or ""."""
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f"<tr>{''.join(f'<td{marked(mark)}>{escape(cell)}</td>' for cell, mark in row)}</tr>"
        for row in rows
    )
    return (
        f'<table class="{kind} sortable"><thead><tr>{names}</tr></thead>'
        f"<tbody{_folded(len(rows), _ROWS, 'rows')}>{body}</tbody></table>"
    )


def _folded(count: int, most: int, what: str) -> str:
    """The attributes of a long list, of which the script shows the beginning until it is asked."""
    return f' class="folded" data-fold="show all {count} {what}"' if count > most else ""


def marked(name: str) -> str:
    return f' class="{name}"' if name else ""


def _short(value: str) -> str:
    return value if len(value) <= _VALUE_LENGTH else value[:_VALUE_LENGTH] + "…"


def settings_card(section: DatasetGroups, differing: Sequence[str]) -> str:
    """The settings of every group side by side, those that differ first and marked."""
    settings = [experiment_settings(group.runs[0]) for group in section.groups]
    names = dict.fromkeys(key for one in settings for key in one)
    order = [*differing, *sorted(set(names) - set(differing))]
    head = "".join(f'<th scope="col">{escape(group.label)}</th>' for group in section.groups)
    rows = "".join(
        f'<tr{marked("differs" if key in differing else "")}><th scope="row">{escape(key)}</th>'
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


def environment_card(runs: Sequence[Run]) -> str:
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
            f'<tr{marked("differs" if key in differing else "")}><th scope="row">{escape(key)}</th>'
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
    runs = f"{count} run{'' if count == 1 else 's'}"
    return f"{_short(value)} ({runs})" if kinds > 1 else _short(value)


def runs_list(sections: Sequence[DatasetGroups], links: Links) -> str:
    rows = "".join(_run_rows(sections, links))
    count = sum(len(section.runs) for section in sections)
    titles = ("data set", "method", "seed", "mean %", "final %", "status", "folder")
    head = "<span></span>" + "".join(f"<span>{title}</span>" for title in titles)
    return (
        '<h2 id="runs">Runs</h2><p class="lead">Open a run for its settings and environment; what '
        "is not the same in all runs (of the data set, for settings) is marked.</p>"
        '<p><input id="filter" type="search" placeholder="filter, e.g. pearson mnist" '
        'aria-label="filter the runs"> <span id="filtered" class="lead" role="status"></span></p>'
        f'<div class="card"><div class="runs-head">{head}</div>'
        f"<div{_folded(count, _RUNS, 'runs')}>{rows}</div></div>"
    )


def _run_rows(sections: Sequence[DatasetGroups], links: Links) -> Iterable[str]:
    position = 0
    for section in sections:
        for group in section.groups:
            for run in group.runs:
                yield _run_row(position, section, group, run, links)
                position += 1


def _run_row(position: int, section: DatasetGroups, group: Group, run: Run, links: Links) -> str:
    mean, final = run.result("test_error_mean"), run.result("final_test_error")
    if run.status == "running":
        final = run.last_test_error
    values = (
        section.label,
        group.label,
        f"seed {_short(run.seed)}",
        DASH if mean is None else f"{mean:.2f}",
        DASH if final is None else f"{final:.2f}",
        ending_text(run),
    )
    bad = marked("bad" if run.status in ("diverged", "untrained") else "")
    *most, status = (f"<span>{escape(value)}</span>" for value in values)
    status = status.replace("<span>", f"<span{bad}>", 1)
    where, name = links.to_folder(run.path), escape(_short(run.name))
    folder = f'<a href="{escape(where)}">{name}</a>' if where else name
    return (
        f'<details class="run" data-run="{position}"><summary>{"".join(most)}{status}'
        f"<span>{folder}</span></summary></details>"
    )
