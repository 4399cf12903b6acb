"""What the page's script needs, as JSON: curves thinned for a screen, settings as text."""

import json
from collections.abc import Sequence
from typing import Any

from cosnorm.report.curves import (
    LEAST,
    Curve,
    for_scale,
    group_curve,
    levels,
    off_scale,
    readable_range,
    run_curve,
    thin,
)
from cosnorm.report.groups import (
    DatasetGroups,
    Group,
    comparable,
    differing_keys,
    experiment_settings,
    flat,
    plain,
)
from cosnorm.report.runs import Run, number
from cosnorm.report.style import looks, variant_look
from cosnorm.report.tables import DASH

# Key, name, and the least height of the axis.
_METRICS = (
    ("test_error", "test error (%)", LEAST),
    ("train_loss", "training loss", 1e-3),
    ("test_error_raw", "test error, not averaged (%)", LEAST),
)
_GROUP_POINTS = 400
# The points of all single runs together; a page of some megabytes still opens at once on a phone.
_RUN_POINTS = 60_000
# More curves than this at once cannot be told apart; the others wait in the legend.
_SHOWN_AT_FIRST = 8


def page_data(sections: Sequence[DatasetGroups]) -> dict[str, Any]:
    """Everything that the script draws or unfolds."""
    runs = [(i, run) for i, section in enumerate(sections) for run in section.runs]
    limit = max(60, min(_GROUP_POINTS, _RUN_POINTS // len(runs)))
    environments = [{k: plain(v) for k, v in flat(run.environment).items()} for _, run in runs]
    distinct = list({json.dumps(e, sort_keys=True): e for e in environments}.values())
    return {
        "sections": [_section(i, section, limit) for i, section in enumerate(sections)],
        "runs": [
            {
                "path": str(run.path),
                "section": i,
                "config": {key: plain(value) for key, value in flat(run.config).items()},
                "environment": distinct.index(environment),
            }
            for (i, run), environment in zip(runs, environments, strict=True)
        ],
        "environments": distinct,
        "differing": {
            "config": [
                differing_keys([experiment_settings(run) for run in section.runs])
                for section in sections
            ],
            "environment": differing_keys([comparable(e) for e in environments]),
        },
    }


def embed(data: object) -> str:
    """JSON that is safe inside a script element, whatever the strings in it hold.

    >>> embed("</script>")
    '"\\\\u003c/script\\\\u003e"'
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _section(index: int, section: DatasetGroups, limit: int) -> dict[str, Any]:
    metrics = [
        (key, label, least)
        for key, label, least in _METRICS
        if any(run_curve(run, key, section.unit).x for run in section.runs)
    ]
    factors = [_factor(group, section.unit) for group in section.groups]
    other = "step" if section.unit == "epoch" else "epoch"
    units = [section.unit, other] if all(factors) else [section.unit]
    curves = {
        key: [group_curve(g, key, section.unit) for g in section.groups] for key, *_ in metrics
    }
    return {
        "id": str(index),
        "unit": section.unit,
        "units": units,
        "metrics": [
            {"key": key, "label": label, "least": least, **_scale(section, curves[key], least)}
            for key, label, least in metrics
        ],
        "groups": [
            {
                **_legend(section, group),
                "factor": factors[i],
                "curves": {key: _compact(thin(curves[key][i], _GROUP_POINTS)) for key in curves},
                "runs": [_run(run, list(curves), section.unit, limit) for run in group.runs],
            }
            for i, group in enumerate(section.groups)
        ],
    }


def _legend(section: DatasetGroups, group: Group) -> dict[str, Any]:
    same_method = [other for other in section.groups if other.method == group.method]
    look = looks([other.method for other in section.groups])[group.method]
    look = variant_look(look, same_method.index(group))
    error = group.test_error
    return {
        "label": group.label,
        "value": f"{error.mean:.2f} %" if error else DASH,
        "paper": group.published.test_error if group.published else None,
        "on": len(section.groups) <= _SHOWN_AT_FIRST or group in section.main,
        "ended": group.all_diverged,
        "light": look.light,
        "dark": look.dark,
        "dashes": list(look.dashes),
    }


def _scale(section: DatasetGroups, drawn: Sequence[Curve], least: float) -> dict[str, Any]:
    curves = for_scale(section.groups, drawn)
    far = off_scale(curves, least)
    off = [{"group": i, "level": level} for i, level in enumerate(levels(curves)) if far[i]]
    return {"range": list(readable_range(curves, least)), "off": off}


def _run(run: Run, metrics: Sequence[str], unit: str, limit: int) -> dict[str, Any]:
    return {"curves": {key: _compact(thin(run_curve(run, key, unit), limit)) for key in metrics}}


def _compact(curve: Curve) -> list[list[float | None]]:
    """Five digits are more than a screen shows."""
    short = [
        [None if v is None else float(f"{v:.5g}") for v in line]
        for line in (curve.y, curve.deviation)
    ]
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
