"""Run folders in; tables, figures and one HTML page out. Nothing here needs torch.

>>> from cosnorm.report import write_report
>>> files = write_report("runs/digits", "runs/digits/report")    # doctest: +SKIP
>>> files.page                                                   # doctest: +SKIP
PosixPath('runs/digits/report/index.html')
"""

from cosnorm.report.groups import DatasetGroups, Group, Spread, group_runs
from cosnorm.report.published import CLAIMS, PAPER, Published, Result
from cosnorm.report.runs import ReportError, Run, load_runs
from cosnorm.report.write import ReportFiles, write_report

__all__ = [
    "CLAIMS",
    "PAPER",
    "DatasetGroups",
    "Group",
    "Published",
    "ReportError",
    "ReportFiles",
    "Result",
    "Run",
    "Spread",
    "group_runs",
    "load_runs",
    "write_report",
]
