import statistics

import matplotlib
import pytest
from synthetic import LEVELS, config_of, write_comparison, write_errors, write_run

from cosnorm.study.report import group_runs, load_runs
from cosnorm.study.report.figures import _RC, _comparison, _settings, figure_files
from cosnorm.study.report.style import looks, variant_look


@pytest.fixture
def section(tmp_path):
    write_comparison(tmp_path / "mnist")
    write_run(tmp_path / "n0", config_of("none", 0), state="diverged", upto=9)
    write_run(tmp_path / "f0", config_of("flat", 0), level=90.0)
    write_run(tmp_path / "p0", config_of("pending", 0), state="running", upto=40)
    write_run(tmp_path / "v0", config_of("layer", 0, init_std=0.3))
    (section,) = group_runs(load_runs(tmp_path)[0], [])
    return section


def legend_of(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_one_curve_a_method_named_with_its_state(section):
    with matplotlib.rc_context(_RC):
        (ax,) = _comparison(section).axes
    (flat,) = next(group for group in section.groups if group.method == "flat").runs
    level = statistics.median(line["test_error"] for line in flat.metrics[100:])
    assert legend_of(ax) == [
        "pearson",
        "cosine",
        "batch",
        "weight",
        "layer (init_std=0.1)",
        "none, diverged",
        f"flat, off scale at {level:.1f} %",
        "pending, in progress",
    ]
    low, high = ax.get_ylim()
    assert low < min(LEVELS.values()) < max(LEVELS.values()) < high < 10
    assert ax.get_xlabel() == "epoch"


def test_bands_only_where_there_are_several_seeds(section):
    with matplotlib.rc_context(_RC):
        (ax,) = _comparison(section).axes
    assert len(ax.collections) == 5


def test_settings_get_a_panel_for_each_method_that_has_several(section):
    with matplotlib.rc_context(_RC):
        (ax,) = _settings(section, ["layer"]).axes
    assert legend_of(ax) == ["init_std=0.1", "init_std=0.3"]
    assert ax.get_title(loc="left") == "mnist: layer"


def test_every_method_and_variant_looks_its_own():
    methods = ["pearson", "cosine", "batch", "weight", "layer", "none", "a", "b", "c", "d"]
    own = looks(methods)
    for part in ("light", "dark", "dashes"):
        assert len({getattr(look, part) for look in own.values()}) == len(methods)
    variants = [variant_look(own["weight"], i) for i in range(6)]
    assert len({look.dashes for look in variants}) == 6
    assert len({look.light for look in variants}) == 1


def test_diverged_methods_do_not_choose_the_range(tmp_path):
    for method in ("batch", "weight", "layer"):
        write_run(tmp_path / method, config_of(method), level=90.0, state="diverged")
    write_run(tmp_path / "p", config_of("pearson"))
    (section,) = group_runs(load_runs(tmp_path)[0], [])
    with matplotlib.rc_context(_RC):
        (ax,) = _comparison(section).axes
    assert ax.get_ylim()[1] < 5


def drawn(folder):
    (section,) = group_runs(load_runs(folder)[0], [])
    with matplotlib.rc_context(_RC):
        figure = _comparison(section)
        figure.canvas.draw()
    return figure


def test_an_error_of_0_leaves_an_axis_with_round_numbers(tmp_path):
    for method in ("pearson", "cosine"):
        write_errors(tmp_path / method, config_of(method), [50.0, 30.0, 8.0] + [0.0] * 17)
    (ax,) = drawn(tmp_path).axes
    low, high = ax.get_ylim()
    assert low < 0 < 50 < high
    assert ax.yaxis.get_offset_text().get_text() == ""
    assert all(tick == int(tick) for tick in ax.get_xticks())


def test_a_single_evaluation_is_a_whole_dot(tmp_path):
    for method, error in (("pearson", 5.0), ("cosine", 6.0), ("flat", 90.0)):
        write_errors(tmp_path / method, config_of(method), [error])
    (ax,) = drawn(tmp_path).axes
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    assert [tuple(dot.get_xydata()[0]) for dot in dots] == [(1, 5), (1, 6)], "flat is off scale"
    assert not any(dot.get_clip_on() for dot in dots)
    assert list(ax.get_xticks()) == [0, 1]


@pytest.mark.parametrize("letter", ["W", "i", "\u6570"])
def test_long_names_leave_room_for_the_axes(tmp_path, letter, recwarn):
    name = letter * 300
    for place in range(2):
        write_run(tmp_path / str(place), config_of(name[place:], dataset=f"/{name}", epochs=4))
        noted = config_of("pearson", dataset=f"/{name}", epochs=4, note=name[place:])
        write_run(tmp_path / f"p{place}", noted)
    (section,) = group_runs(load_runs(tmp_path)[0], [])
    assert figure_files(section).keys() == {".png", ".pdf", "-settings.png", "-settings.pdf"}
    assert [str(warning.message) for warning in recwarn] == []
