"""What moves a chart's view or reads its values: keys, fingers, buttons, in a real browser."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from browser import DOWN, UP, labels, move, plot_point, scheme
from synthetic import config_of, write_comparison, write_run

from cosnorm.study.report import write_report

pytestmark = pytest.mark.slow

LEFT, RIGHT, HOME, END, SHIFT = "\ue012", "\ue014", "\ue011", "\ue010", "\ue008"
UPWARDS, ESCAPE = "\ue013", "\ue00c"
VIEW = "return (({x0, x1, y0, y1}) => [x0, x1, y0, y1])(charts[0].range())"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    runs = tmp_path_factory.mktemp("gestures")
    write_comparison(runs, seeds=2, epochs=50)
    return write_report(runs, runs / "report", title="Gestures")


@pytest.fixture
def page(session, report):
    session.devtools("Emulation.clearDeviceMetricsOverride")
    session.devtools("Emulation.setEmulatedMedia", features=scheme("light"))
    session.open(Path(report.page))
    yield session
    assert session.log("browser") == []


@pytest.fixture
def phone(page, report):
    """The page on a phone, its chart in the middle of the screen."""
    page.devtools(
        "Emulation.setDeviceMetricsOverride",
        width=390, height=844, deviceScaleFactor=2, mobile=True,
    )  # fmt: skip
    page.devtools("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=5)
    page.open(Path(report.page))
    page.run("document.querySelector('#chart-0').scrollIntoView({block: 'center'})")
    yield page
    page.devtools("Emulation.setTouchEmulationEnabled", enabled=False)


def keys(page, text):
    page.type("#chart-0 svg", text)


def tip(page):
    return page.run(
        "const t = document.querySelector('#chart-0 .tip'); return t.hidden ? null : t.innerText"
    )


def epoch(page):
    return int(re.match(r"epoch (\d+)", tip(page))[1])


def curves_in_view(page):
    """How many curves have a part inside the axes."""
    box, paths = page.run(
        "const r = document.querySelector('#chart-0 clipPath rect');"
        "return [['x', 'y', 'width', 'height'].map(k => +r.getAttribute(k)),"
        " [...document.querySelectorAll('#chart-0 path.curve')].map(c => c.getAttribute('d'))]"
    )
    return sum(any(crosses(box, *ends) for ends in pairwise(points_of(path))) for path in paths)


def points_of(path):
    return [tuple(map(float, point.split())) for point in re.split("[ML]", path) if point]


def crosses(box, a, b):
    """Whether the line from a to b has a point inside the box."""
    low, high = 0.0, 1.0
    for k in (0, 1):
        first, way = box[k] - a[k], b[k] - a[k]
        if way == 0:
            if not 0 <= -first <= box[k + 2]:
                return False
            continue
        ends = sorted((first / way, (first + box[k + 2]) / way))
        low, high = max(low, ends[0]), min(high, ends[1])
    return low <= high


def test_arrows_go_one_evaluation_at_a_time(page):
    keys(page, RIGHT)
    assert epoch(page) == 50, "they begin at the last"
    keys(page, LEFT)
    assert epoch(page) == 49
    keys(page, LEFT * 3 + RIGHT)
    assert epoch(page) == 47
    keys(page, HOME)
    assert epoch(page) == 1
    keys(page, LEFT)
    assert epoch(page) == 1
    keys(page, END)
    assert epoch(page) == 50


def test_the_view_follows_the_evaluation_that_is_shown(page):
    keys(page, HOME)
    keys(page, "++")
    x0, x1, _, _ = page.run(VIEW)
    assert x0 <= 1 <= x1 < 25
    keys(page, END)
    x0, x1, _, _ = page.run(VIEW)
    assert x0 <= 50 <= x1
    assert epoch(page) == 50


def test_shift_and_an_arrow_pan(page):
    keys(page, "+")
    x0, x1, y0, y1 = page.run(VIEW)
    keys(page, SHIFT + RIGHT)
    right = page.run(VIEW)
    assert right[0] == pytest.approx(x0 + 0.2 * (x1 - x0))
    assert right[1] - right[0] == pytest.approx(x1 - x0)
    assert right[2:] == [y0, y1]
    keys(page, SHIFT + LEFT * 9)
    left = page.run(VIEW)
    assert left[0] == 0, "not beyond the beginning"
    assert left[1] == pytest.approx(x1 - x0)
    keys(page, SHIFT + UPWARDS)
    up = page.run(VIEW)
    assert up[2] == pytest.approx(y0 + 0.2 * (y1 - y0))
    keys(page, ESCAPE)
    assert page.run("return charts[0].view") is None


@pytest.mark.parametrize("way", ["key", "button"])
def test_plus_keeps_a_curve_in_view(page, way):
    for _ in range(12):
        if way == "key":
            keys(page, "+")
        else:
            page.click("#chart-0 .zoom button")
        assert curves_in_view(page) >= 1
    x0, x1, _, _ = page.run(VIEW)
    assert x1 - x0 < 0.2
    for _ in range(20):
        keys(page, "-")
    assert page.run("return charts[0].view") is None, "far enough out is where it began"


def test_plus_comes_closer_to_the_evaluation_that_is_shown(page):
    keys(page, HOME + RIGHT * 11)
    assert epoch(page) == 12
    keys(page, "++++")
    x0, x1, _, _ = page.run(VIEW)
    assert x0 < 12 < x1
    assert x1 - x0 < 10


def steps(*points):
    """One finger down at the first point, along the others, and up."""
    first, *others = points
    return [move(*first), DOWN, *(move(x, y, 80) for x, y in others), UP]


def test_a_finger_reads_values(phone):
    phone.touch(steps(plot_point(phone, 0.5, 0.5)))
    assert epoch(phone) == 25
    phone.touch(steps(plot_point(phone, 0.5, 0.5), plot_point(phone, 0.8, 0.5)))
    assert epoch(phone) == 40
    assert phone.run("return charts[0].view") is None


def test_two_fingers_stretch(phone):
    (ax, y), (bx, _) = plot_point(phone, 0.4, 0.5), plot_point(phone, 0.6, 0.5)
    (cx, _), (dx, _) = plot_point(phone, 0.2, 0.5), plot_point(phone, 0.8, 0.5)
    before = phone.run(VIEW)
    phone.touch(steps((ax, y), (cx, y)), steps((bx, y), (dx, y)))
    x0, x1, y0, y1 = phone.run(VIEW)
    assert x1 - x0 == pytest.approx((before[1] - before[0]) / 3, rel=0.1)
    assert (x0 + x1) / 2 == pytest.approx(25, abs=1.5)
    assert y1 - y0 == pytest.approx((before[3] - before[2]) / 3, rel=0.1)
    phone.touch(steps((cx, y), (ax, y)), steps((dx, y), (bx, y)))
    wider = phone.run(VIEW)
    assert wider[1] - wider[0] == pytest.approx(before[1] - before[0], rel=0.1)


def test_in_a_zoomed_chart_a_finger_pans(phone):
    phone.run("zoomBy(charts[0], 0.5)")
    x0, x1, y0, y1 = phone.run(VIEW)
    where = "return document.scrollingElement.scrollTop"
    scrolled = phone.run(where)
    begin, end = plot_point(phone, 0.6, 0.4), plot_point(phone, 0.4, 0.7)
    phone.touch(steps(begin, end))
    after = phone.run(VIEW)
    assert after[0] - x0 == pytest.approx(0.2 * (x1 - x0), rel=0.15)
    assert after[2] - y0 == pytest.approx(0.3 * (y1 - y0), rel=0.15)
    assert phone.run(where) == scrolled, "the page stays where it is"


def test_in_a_chart_that_is_not_zoomed_a_finger_scrolls_the_page(phone):
    where = "return document.scrollingElement.scrollTop"
    scrolled = phone.run(where)
    x, y = plot_point(phone, 0.5, 0.9)
    phone.touch([move(x, y), DOWN, *(move(x, y - 20 * i, 40) for i in range(1, 9)), UP])
    phone.until(f"(() => {{ {where} }})() > {scrolled + 40}")
    assert phone.run("return charts[0].view") is None


def test_a_single_evaluation_can_be_stepped_to_and_zoomed(session, tmp_path):
    write_run(tmp_path / "a", config_of("pearson", epochs=1))
    session.open(Path(write_report(tmp_path, tmp_path / "report").page))
    keys(session, LEFT)
    assert epoch(session) == 1
    keys(session, "++--")
    assert labels(session, "middle") == [0, 1]
    assert session.log("browser") == []
