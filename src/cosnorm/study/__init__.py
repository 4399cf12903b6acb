"""The program: data, networks, training, run folders, reports and the command line.

The layers know nothing of it. Names load on first use: help and reports never wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cosnorm.study.names import (
        DATASETS,
        LOGGERS,
        METRICS,
        NETWORKS,
        PIPELINES,
        DatasetEntry,
        LoggerEntry,
        MetricEntry,
        NetworkEntry,
        PipelineEntry,
    )
    from cosnorm.study.report import write_report
    from cosnorm.study.runs.presets import configure
    from cosnorm.study.train.compare import compare
    from cosnorm.study.train.run import load_run

__all__ = [
    "DATASETS",
    "LOGGERS",
    "METRICS",
    "NETWORKS",
    "PIPELINES",
    "DatasetEntry",
    "LoggerEntry",
    "MetricEntry",
    "NetworkEntry",
    "PipelineEntry",
    "compare",
    "configure",
    "load_run",
    "write_report",
]

_HOMES = {
    "DATASETS": "cosnorm.study.names",
    "LOGGERS": "cosnorm.study.names",
    "METRICS": "cosnorm.study.names",
    "NETWORKS": "cosnorm.study.names",
    "PIPELINES": "cosnorm.study.names",
    "DatasetEntry": "cosnorm.study.names",
    "LoggerEntry": "cosnorm.study.names",
    "MetricEntry": "cosnorm.study.names",
    "NetworkEntry": "cosnorm.study.names",
    "PipelineEntry": "cosnorm.study.names",
    "compare": "cosnorm.study.train.compare",
    "configure": "cosnorm.study.runs.presets",
    "load_run": "cosnorm.study.train.run",
    "write_report": "cosnorm.study.report",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'cosnorm.study' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
