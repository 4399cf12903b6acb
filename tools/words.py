"""Tables of the claims in words that the planned runs answer, and of the detective's readings."""

import json
from collections.abc import Sequence
from itertools import combinations, product

from tools.detective import JOINED

from cosnorm.methods import PAPER_METHODS
from cosnorm.study.claims.errors import STEADY_MARGIN, log_variance
from cosnorm.study.report import PAPER, Group, Run
from cosnorm.study.report.verdicts import mean_interval, verdict_of
from tools import reproduction

# Test errors by method, of a reading and its epochs.
Readings = dict[tuple[str, int], dict[str, float | None]]


def convergence() -> str:
    """How soon each method is near its own result: half as much again as its error at the end."""
    sections = [reproduction.section(name) for name in reproduction.NAMES]
    shown = [section for section in sections if section is not None]
    if not shown:
        return "No planned run is made yet."
    rows = []
    for method in (*PAPER_METHODS, "none"):
        row = [method]
        for section in shown:
            found = [_reached(run) for g in section.groups if g.method == method for run in g.runs]
            known = [at for at in found if at is not None]
            row.append(f"{sum(known) / len(known):,.0f}" if known else "")
        rows.append(row)
    head = [f"{reproduction.NAMES[section.dataset]}, {section.unit}s" for section in shown]
    told = [_alike(title, rows, i) for i, title in enumerate(head, 1)]
    return "\n\n".join([reproduction.table(["method", *head], rows), "\n".join(told)])


def _alike(title: str, rows: Sequence[Sequence[str]], column: int) -> str:
    """The rule of the plan: the claim holds for a pair within a factor of two."""
    at = {row[0]: float(row[column].replace(",", "")) for row in rows if row[column]}
    at.pop("none", None)
    apart = [
        f"{one} and {other}"
        for one, other in combinations(at, 2)
        if max(at[one], at[other]) > 2 * min(at[one], at[other])
    ]
    pairs_here = len(at) * (len(at) - 1) // 2
    held = f"- {title}: within a factor of two for {pairs_here - len(apart)} of {pairs_here} pairs"
    return f"{held}; not for {', '.join(apart)}." if apart else f"{held}."


def steadiness() -> str:
    """The variance within the window, method against method, seed by seed, as a factor."""
    rows = []
    for name in reproduction.NAMES:
        section = reproduction.section(name)
        groups = {group.method: group for group in section.main} if section else {}
        for ours, other in product(("pearson", "cosine"), ("batch", "weight", "layer")):
            if ours in groups and other in groups:
                rows.append([reproduction.NAMES[name], *_steadier(groups[ours], groups[other])])
    if not rows:
        return "No planned run is made yet."
    return reproduction.table(["table", "pair", "variance, times", "verdict"], rows)


def _steadier(ours: Group, other: Group) -> list[str]:
    mine, theirs = (
        {run.seed: run.result("test_error_variance") for run in group.having("finished")}
        for group in (ours, other)
    )
    shared = [(mine[seed], theirs[seed]) for seed in mine if seed in theirs]
    logs = [log_variance(a) - log_variance(b) for a, b in shared if None not in (a, b)]
    interval = mean_interval(logs)
    pair = f"{ours.label} to {other.label}"
    if interval is None:
        return [pair, "", f"{len(logs)} seed{'' if len(logs) == 1 else 's'}: no verdict"]
    words = {"better": "steadier", "worse": "less steady", "equivalent": "as steady"}
    verdict = verdict_of(interval, STEADY_MARGIN)
    factor = f"{10**interval.low:.2g} to {10**interval.high:.2g}"
    return [pair, factor, words.get(verdict, verdict)]


def _reached(run: Run) -> float | None:
    """Where the test error is first within 1.5 times the run's result."""
    result = run.result("test_error_mean")
    if result is None:
        return None
    return next(
        (line[run.unit] for line in run.metrics if line["test_error"] <= 1.5 * result), None
    )


def detective() -> str:
    """Each reading's errors on 20NEWS, and how far they are from the paper's in the mean square."""
    paths = [reproduction.RESULTS / name for name in ("detective.json", "cpu/detective.json")]
    found = [json.loads(path.read_text())["rows"] for path in paths if path.exists()]
    if not found:
        return "Not made yet."
    errors = _planned()
    for row in (row for part in found for row in part):
        place = errors.setdefault((row["reading"], row["epochs"]), {})
        place[row["method"]] = row["test_error_mean"]
    errors |= _joined(errors)
    paper_errors = {m: PAPER["20news"].results[m].test_error for m in PAPER_METHODS}
    lines = [["the paper", "", *(f"{error:.2f}" for error in paper_errors.values()), "0"]]
    for (reading, epochs), mine in errors.items():
        known = {m: e for m, e in mine.items() if m in PAPER_METHODS and e is not None}
        off = [(known[m] - paper_errors[m]) ** 2 for m in known]
        cells_of = [f"{known[m]:.2f}" if m in known else "" for m in PAPER_METHODS]
        distance = f"{(sum(off) / len(off)) ** 0.5:.2f}" if len(off) == len(PAPER_METHODS) else ""
        lines.append([reading, str(epochs), *cells_of, distance])
    return reproduction.table(["reading", "epochs", *PAPER_METHODS, "distance"], lines)


def _planned() -> Readings:
    """The planned runs of the first seed, which are the plan's reading at its length."""
    section = reproduction.whole("20news")
    if section is None:
        return {}
    first = {
        group.method: run.result("test_error_mean")
        for group in section.groups
        for run in group.runs
        if run.seed == "0"
    }
    return {("plan", 200): first}


def _joined(errors: Readings) -> Readings:
    """Readings of which each method has its own, at the length of the planned runs."""
    return {
        (name, 200): {
            method: errors.get((of.get(method, "plan"), 200), {}).get(method)
            for method in PAPER_METHODS
        }
        for name, of in JOINED.items()
        if all(method in errors.get((reading, 200), {}) for method, reading in of.items())
    }
