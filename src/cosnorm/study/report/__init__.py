"""Run folders in; tables, figures and one HTML page out. Nothing here needs torch.

>>> from cosnorm.study.report import write_report
>>> files = write_report("runs/digits", "runs/digits/report")    # doctest: +SKIP
>>> files.page                                                   # doctest: +SKIP
'runs/digits/report/index.html'
"""

from cosnorm.study.report.groups import DatasetGroups, Group, Spread, group_runs
from cosnorm.study.report.published import CLAIMS, PAPER, Published, PublishedResult
from cosnorm.study.report.runs import ReportError, load_runs
from cosnorm.study.report.write import ReportFiles, write_report
from cosnorm.study.runs.run import Run

__all__ = [
    "CLAIMS",
    "PAPER",
    "DatasetGroups",
    "Group",
    "Published",
    "PublishedResult",
    "ReportError",
    "ReportFiles",
    "Run",
    "Spread",
    "group_runs",
    "load_runs",
    "write_report",
]
