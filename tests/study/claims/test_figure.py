"""What a study's figure shows: lines with gaps, and points."""

import math

from cosnorm.study.claims.figure import _by_label, _draw, figure_files, panel_of
from cosnorm.study.report.figures import new_figure
from cosnorm.study.report.style import looks


def drawn(rows, key):
    panel = panel_of(rows, "title", key, "error", ("x", "y"), "xy")
    _, axes = new_figure(1, 1, 4, 3)
    _draw(axes.flat[0], panel, looks(["none"]))
    assert figure_files([panel])[".png"].startswith(b"\x89PNG")
    return axes.flat[0].get_lines()[0]


def test_a_line_has_a_gap_where_no_run_has_a_number():
    errors = {0.1: 3.0, 1.0: None, 10.0: 90.0}
    line = drawn([{"method": "none", "lr": lr, "error": e} for lr, e in errors.items()], "lr")
    assert list(line.get_xdata()) == [0.1, 1.0, 10.0]
    first, middle, last = line.get_ydata()
    assert (first, last) == (3.0, 90.0) and math.isnan(middle)


def test_one_number_of_a_run_is_a_point_for_each_seed():
    line = drawn([{"method": "none", "error": error} for error in (1.0, 2.0, 4.0)], "method")
    assert list(line.get_ydata()) == [1.0, 2.0, 4.0] and line.get_linestyle() == "None"


def test_the_legend_shows_the_line_where_a_method_has_points_too():
    rows = [{"method": "none", "lr": lr, "error": 3.0} for lr in (0.1, 1.0)]
    _, axes = new_figure(2, 1, 4, 3)
    for ax, key in zip(axes.flat, ("lr", "method"), strict=True):
        _draw(ax, panel_of(rows, "title", key, "error", ("x", "y")), looks(["none"]))
    assert _by_label(axes.flat)["none"] is axes.flat[0].get_lines()[0]
