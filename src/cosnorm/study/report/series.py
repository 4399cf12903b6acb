"""What the page's charts draw: the curves that there are, thinned for a screen, and their looks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cosnorm.study.names import METRICS
from cosnorm.study.report.curves import (
    Curve,
    for_scale,
    group_curve,
    levels,
    off_scale,
    readable_range,
    run_curve,
    thin,
)
from cosnorm.study.report.groups import DatasetGroups, Group
from cosnorm.study.report.style import looks, variant_look
from cosnorm.study.report.tables import DASH, ending_text, failure_text
from cosnorm.study.runs.run import Run, Status, number


@dataclass(frozen=True)
class Metric:
    """One quantity of an evaluation.

    key: as `curves.reading` takes it. least: the least height of its axis.
    layer: the layer that it is of. whole: nothing of it is an early transient to be left out.
    """

    key: str
    label: str
    least: float
    layer: str | None = None
    whole: bool = False


_LAYER_METRICS = (
    ("weight_norm", "weight norm |w|"),
    ("effective_lr", "effective learning rate lr/|w|²"),
    ("scale", "scale"),
)
_GROUP_POINTS = 400
_LAYER_POINTS = 100
# The points of all single runs together; a page of some megabytes still opens at once on a phone.
_RUN_POINTS = 60_000
_STATES: dict[Status, str] = {
    "diverged": "diverged",
    "untrained": "not trained",
    "running": "in progress",
}
# More curves than this at once cannot be told apart; the others wait in the legend.
_SHOWN_AT_FIRST = 12


def chart_data(index: int, section: DatasetGroups, runs: int) -> dict[str, Any]:
    """The chart of one data set; `runs` is the number of those on the whole page."""
    found = [metric for metric in _metrics(section) if _is_recorded(section, metric)]
    curves = {m.key: [group_curve(g, m.key, section.unit) for g in section.groups] for m in found}
    factors = [_factor(group, section.unit) for group in section.groups]
    limits = _limits(found, runs)
    return {
        "id": str(index),
        "label": section.label,
        "unit": section.unit,
        "units": _units(section, curves, factors),
        "metrics": [_described(section, metric, curves[metric.key]) for metric in found],
        "groups": [
            {
                **_legend(section, group),
                "factor": factors[i],
                "curves": {
                    m.key: _compact(
                        thin(curves[m.key][i], _LAYER_POINTS if m.layer else _GROUP_POINTS)
                    )
                    for m in found
                },
                "runs": [_run(run, limits, section.unit) for run in group.runs],
            }
            for i, group in enumerate(section.groups)
        ],
    }


def _metrics(section: DatasetGroups) -> list[Metric]:
    """Those of a run, then those of each layer that any evaluation tells of."""
    layers: set[str] = set()
    for run in section.runs:
        for line in run.metrics:
            if isinstance(found := line.get("layers"), Mapping):
                layers |= {name for name in found if name.isdecimal() and len(name) < 4}
    return [
        *(Metric(entry.name, entry.label, entry.least) for entry in METRICS.values()),
        *(
            Metric(f"layers.{layer}.{key}", label, 1e-9, layer, whole=True)
            for key, label in _LAYER_METRICS
            for layer in sorted(layers, key=int)
        ),
    ]


def _is_recorded(section: DatasetGroups, metric: Metric) -> bool:
    return any(run_curve(run, metric.key, section.unit).x for run in section.runs)


def _units(
    section: DatasetGroups, curves: dict[str, list[Curve]], factors: Sequence[float | None]
) -> list[str]:
    """The axes that every curve has: epochs and steps where one follows from the other, time."""
    other = "step" if section.unit == "epoch" else "epoch"
    timed = all(
        second is not None for some in curves.values() for c in some for second in c.seconds
    )
    return [
        section.unit,
        *([other] if all(factors) else []),
        *(["time"] if timed and curves else []),
    ]


def _limits(metrics: Sequence[Metric], runs: int) -> dict[str, int]:
    """How many points a single run may have in each metric."""
    share = _RUN_POINTS // runs
    layers = sum(metric.layer is not None for metric in metrics)
    of_run, of_layer = max(60, min(_GROUP_POINTS, share)), max(20, share // max(1, layers))
    return {m.key: min(of_layer, _LAYER_POINTS) if m.layer else of_run for m in metrics}


def _described(section: DatasetGroups, metric: Metric, drawn: Sequence[Curve]) -> dict[str, Any]:
    curves = for_scale(section.groups, drawn)
    far = off_scale(curves, metric.least)
    off = [{"group": i, "level": level} for i, level in enumerate(levels(curves)) if far[i]]
    near = {"range": list(readable_range(curves, metric.least)), "off": off}
    return {
        "key": metric.key,
        "label": metric.label,
        "layer": metric.layer,
        "least": metric.least,
        **({"range": None, "off": []} if metric.whole else near),
    }


def _legend(section: DatasetGroups, group: Group) -> dict[str, Any]:
    same_method = [other for other in section.groups if other.method == group.method]
    look = looks([other.method for other in section.groups])[group.method]
    look = variant_look(look, same_method.index(group))
    error = group.test_error
    is_first = any(group is other for other in section.main)
    return {
        "label": group.label,
        "value": f"{error.mean:.2f} %" if error else DASH,
        "state": _state(group),
        "paper": group.published.test_error if group.published else None,
        "first": is_first or len(section.groups) <= _SHOWN_AT_FIRST,
        "on": is_first or len(section.groups) <= _SHOWN_AT_FIRST,
        "ended": group.all_diverged,
        "light": look.light,
        "dark": look.dark,
        "dashes": list(look.dashes),
    }


def _state(group: Group) -> str:
    """What a reader must know of the group's curve: that runs failed, or still go on."""
    failed = [run for run in group.runs if run.status in ("diverged", "untrained")]
    if len(failed) == len(group.runs):
        told = list(dict.fromkeys(map(ending_text, failed)))
        return told[0] if len(told) == 1 else failure_text(group)
    counts = {word: len(group.having(status)) for status, word in _STATES.items()}
    parts = [f"{n} of {len(group.runs)} {word}" for word, n in counts.items() if n]
    return "in progress" if counts["in progress"] == len(group.runs) else ", ".join(parts)


def _run(run: Run, limits: dict[str, int], unit: str) -> dict[str, Any]:
    curves = {
        key: _compact(thin(run_curve(run, key, unit), limit)) for key, limit in limits.items()
    }
    return {"curves": curves, "ended": run.status == "diverged"}


def _compact(curve: Curve) -> list[list[float | None]]:
    """[x, y, deviation, seconds]; five digits are more than a screen shows."""
    lines = [list(curve.y), list(curve.deviation), list(curve.seconds)]
    known = [line if any(v is not None for v in line) else [] for line in lines]
    short = [[None if v is None else float(f"{v:.5g}") for v in line] for line in known]
    return [[int(x) if x == int(x) else x for x in curve.x], *short]


def _factor(group: Group, unit: str) -> float | None:
    """Steps per epoch (or the inverse, from steps), where it is one number for the whole group."""
    other = "step" if unit == "epoch" else "epoch"
    ratios = set()
    for run in group.runs:
        for line in run.metrics:
            x, y = number(line.get(unit)), number(line.get(other))
            if x is None or y is None:
                return None
            if x or y:
                ratios.add(float(f"{y / x:.6g}") if x and y else None)
    return ratios.pop() if len(ratios) == 1 else None
