import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import LEVELS, config_of, write_comparison, write_run

from cosnorm.study.report import group_runs, load_runs
from cosnorm.study.report.curves import LEAST, Curve, group_curve, off_scale, readable_range, thin

heights = st.lists(st.floats(-1e6, 1e6), min_size=0, max_size=300)


def curve(ys):
    return Curve(list(range(len(ys))), ys, [None] * len(ys), [None] * len(ys))


@given(heights, st.integers(3, 50))
def test_thinning_keeps_the_ends_the_order_and_real_points(ys, limit):
    whole = curve(ys)
    short = thin(whole, limit)
    assert len(short.x) == min(limit, len(ys))
    assert list(short.x) == sorted(set(short.x))
    assert [ys[x] for x in short.x] == short.y
    if ys:
        assert (short.x[0], short.x[-1]) == (0, len(ys) - 1)


def test_thinning_keeps_a_spike():
    ys = [1.0] * 5000
    ys[3210] = 50.0
    assert 50.0 in thin(curve(ys), 200).y


def test_group_curve_is_mean_and_deviation_at_each_evaluation(tmp_path):
    write_comparison(tmp_path, seeds=3)
    (section,) = group_runs(load_runs(tmp_path)[0], [])
    group = section.groups[2]
    drawn = group_curve(group, "test_error", "epoch")
    assert list(drawn.x) == list(range(1, 201))
    errors = [run.metrics[120]["test_error"] for run in group.runs]
    assert drawn.y[120] == statistics.fmean(errors)
    assert drawn.deviation[120] == statistics.stdev(errors)


def test_null_errors_leave_gaps_not_zeros(tmp_path):
    write_run(tmp_path / "a", config_of("pearson"), state="diverged", upto=10)
    (section,) = group_runs(load_runs(tmp_path)[0], [])
    drawn = group_curve(section.groups[0], "test_error", "epoch")
    assert len(drawn.x) == 9


def falling(level, start=90.0, length=200):
    return curve([level + (start - level) * math.exp(-i / 4) for i in range(length)])


def test_the_range_lets_converged_curves_be_told_apart():
    low, high = readable_range([falling(level) for level in LEVELS.values()])
    assert low < min(LEVELS.values())
    assert high < 2.5
    gap = sorted(LEVELS.values())[1] - sorted(LEVELS.values())[0]
    assert gap / (high - low) > 0.03


def test_a_curve_that_never_fell_does_not_flatten_the_others():
    curves = [falling(level) for level in (6.4, 7.3, 8.1, 7.4)] + [curve([90.0] * 200)]
    assert off_scale(curves) == [False, False, False, False, True]
    assert readable_range(curves)[1] < 15


def test_curves_that_end_at_no_error_have_an_axis_that_can_be_read():
    done = [curve([50.0, 20.0, 8.0, 1.0] + [0.0] * 16), curve([40.0, 2.0] + [0.0] * 18)]
    low, high = readable_range(done)
    assert high >= 50, "the fall is all that there is to see"
    assert -0.05 * high < low < 0, "a line at 0 is inside, not on the edge"
    low, high = readable_range([curve([0.0] * 20)])
    assert high - low >= LEAST


def test_the_fall_yields_to_differences_that_the_table_shows():
    low, high = readable_range([falling(0.0), falling(0.05)])
    assert high < 0.5
    assert low < 0


@pytest.mark.parametrize("ys", [[], [3.0], [0.0, 0.0, 0.0], [5.0] * 100, [-2.0, -1.0]])
def test_the_range_is_never_empty(ys):
    low, high = readable_range([curve(ys)])
    assert low < high
    assert all(low <= y <= high for y in ys)
