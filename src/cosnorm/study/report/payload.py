"""What programs take of a report, as plain values: the page's script, and readers of JSON."""

import json
from collections.abc import Sequence
from typing import Any

from cosnorm.study.report.groups import DatasetGroups, Group
from cosnorm.study.report.links import Links
from cosnorm.study.report.series import chart_data
from cosnorm.study.report.settings import (
    comparable,
    differing_keys,
    experiment_settings,
    flat,
    plain,
)
from cosnorm.study.report.verdicts import Interval, cell_of, group_standard_error, pairs_of


def page_data(sections: Sequence[DatasetGroups], links: Links) -> dict[str, Any]:
    """Everything that the script draws or unfolds."""
    runs = [(i, run) for i, section in enumerate(sections) for run in section.runs]
    environments = [{k: plain(v) for k, v in flat(run.environment).items()} for _, run in runs]
    distinct = list({json.dumps(e, sort_keys=True): e for e in environments}.values())
    return {
        "sections": [chart_data(i, section, len(runs)) for i, section in enumerate(sections)],
        "runs": [
            {
                "path": str(run.path),
                "link": links.to_folder(run.path),
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


def cell_row(section: DatasetGroups, group: Group) -> dict[str, Any]:
    """What a group's error allows to be said, as plain values; None where it allows nothing."""
    cell = cell_of(section, group)
    return {
        "test_set_standard_error": group_standard_error(group),
        "difference": cell and cell.difference,
        "interval": _ends(cell and cell.interval),
        "margin": cell and cell.margin,
        "verdict": cell and cell.verdict,
    }


def pair_rows(section: DatasetGroups) -> list[dict[str, Any]]:
    """Every pair of the section's methods with its verdict, as plain values."""
    return [
        {
            "first": pair.first,
            "second": pair.second,
            "seeds": len(pair.seeds),
            "difference": pair.difference,
            "interval": _ends(pair.interval),
            "margin": pair.margin,
            "verdict": pair.verdict,
            "paper": pair.paper,
            "order": pair.order,
        }
        for pair in pairs_of(section)
    ]


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]
