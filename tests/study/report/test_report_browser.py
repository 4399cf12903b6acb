"""The page in a real browser: what a reader sees and does. Without a browser these tests fail."""

import json
import re
from pathlib import Path

import pytest
from browser import DOWN, UP, choose, labels, move, plot_point, scheme
from synthetic import ENVIRONMENT, LEVELS, config_of, write_comparison, write_errors, write_run

from cosnorm.study.report import write_report

pytestmark = pytest.mark.slow

EVIL = "</script><script>document.title='pwned'</script><img src=x onerror=\"document.title='x'\">"
ELSEWHERE = {**ENVIRONMENT, "device": "cuda", EVIL: EVIL}
CURVES = "[...document.querySelectorAll('#chart-0 path.curve')]"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    runs = tmp_path_factory.mktemp("report")
    write_comparison(runs / "mnist")
    write_run(runs / "evil", config_of(EVIL, dataset=EVIL), environment=ELSEWHERE)
    write_run(runs / "gone", config_of("none", dataset=EVIL), state="diverged", upto=9)
    return write_report(runs, runs / "report", title="Test page")


@pytest.fixture
def page(session, report):
    """The page, newly opened, light and wide; afterwards it must have been silent and alone."""
    session.devtools("Emulation.clearDeviceMetricsOverride")
    session.devtools("Emulation.setEmulatedMedia", features=scheme("light"))
    session.open(Path(report.page))
    yield session
    assert session.log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in session.log("performance")]
    urls = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert urls <= {Path(report.page).resolve().as_uri()}
    assert session.run("return document.title") == "Test page"


def test_hover_shows_the_values_of_every_curve(page, report):
    page.pointer(move(*plot_point(page, 0.5, 0.5)))
    tip = page.run("return document.querySelector('#chart-0 .tip').innerText")
    assert page.run("return !document.querySelector('#chart-0 .tip').hidden")
    assert tip.startswith("epoch 100")
    for group in report.sections[0].groups:
        errors = [run.metrics[99]["test_error"] for run in group.runs]
        assert re.search(rf"{group.method}\s+{sum(errors) / 3:.2f}\s+± ", tip)
    page.pointer(move(2, 2))
    assert page.run("return document.querySelector('#chart-0 .tip').hidden")


def test_dragging_zooms_and_reset_restores(page):
    before = page.run("return document.querySelector('#chart-0 svg').innerHTML")
    page.pointer(
        move(*plot_point(page, 0.5, 0.6)), DOWN, move(*plot_point(page, 0.75, 0.95), 50), UP
    )
    inside = labels(page, "middle")
    assert inside
    assert 100 <= min(inside) <= max(inside) <= 150
    page.click("#chart-0 .reset")
    page.pointer(move(2, 2))
    assert page.run("return document.querySelector('#chart-0 svg').innerHTML") == before


def test_a_flat_drag_zooms_one_axis_only(page):
    heights = labels(page, "end")
    page.pointer(
        move(*plot_point(page, 0.2, 0.5)), DOWN, move(*plot_point(page, 0.4, 0.51), 50), UP
    )
    assert labels(page, "end") == heights
    assert max(labels(page, "middle")) <= 80


def test_buttons_and_keys_zoom_too(page):
    whole = labels(page, "middle")
    page.click("#chart-0 .zoom button")
    closer = labels(page, "middle")
    assert max(closer) - min(closer) < max(whole) - min(whole)
    page.run("document.querySelector('#chart-0 svg').focus()")
    page.type("#chart-0 svg", "\ue00c")
    assert labels(page, "middle") == whole
    page.type("#chart-0 svg", "\ue012")
    assert page.run("return document.querySelector('#chart-0 .tip').innerText").startswith("epoch")


def test_a_method_can_be_switched_off_and_on(page):
    shown = f"return {CURVES}.map(c => c.dataset.group).sort()"
    assert page.run(shown) == ["0", "1", "2", "3", "4"]
    page.click('#chart-0 .legend [data-group="2"]')
    assert page.run(shown) == ["0", "1", "3", "4"]
    page.pointer(move(*plot_point(page, 0.5, 0.5)))
    assert "batch" not in page.run("return document.querySelector('#chart-0 .tip').innerText")
    page.click('#chart-0 .legend [data-group="2"]')
    assert page.run(shown) == ["0", "1", "2", "3", "4"]


def test_converged_curves_are_apart_on_the_screen(page):
    ends = page.run(
        f"return {CURVES}.map(c => c.getPointAtLength(c.getTotalLength())).map(p => p.y)"
    )
    order = sorted(LEVELS, key=LEVELS.get)
    heights = dict(zip(LEVELS, ends, strict=True))
    assert heights["pearson"] - heights["weight"] > 60
    assert heights[order[0]] - heights[order[1]] > 6


def test_controls_change_what_is_drawn(page):
    choose(page, "against", "step")
    assert max(labels(page, "middle")) == 120_000
    choose(page, "range", "whole")
    assert max(labels(page, "end")) > 30
    choose(page, "scale", "log")
    heights = sorted(labels(page, "end"))
    assert heights[-1] / heights[0] >= 10
    choose(page, "show", "training loss")
    title = "return document.querySelector('#chart-0 svg').getAttribute('aria-label')"
    assert page.run(title) == "training loss against step"


def test_single_runs_and_bands_can_be_switched(page):
    count = "return document.querySelectorAll('#chart-0 svg ' + arguments[0]).length"
    assert (page.run(count, ".band"), page.run(count, "path.run")) == (5, 0)
    page.run("document.querySelectorAll('#chart-0 .tick input').forEach(box => box.click())")
    assert (page.run(count, ".band"), page.run(count, "path.run")) == (0, 15)
    assert page.run(count, ".paper") == 0


def test_light_and_dark(page):
    colour = "return getComputedStyle(document.body).backgroundColor"
    stroke = f"return {CURVES}[0].getAttribute('stroke')"
    light = page.run(colour), page.run(stroke)
    page.devtools("Emulation.setEmulatedMedia", features=scheme("dark"))
    page.until("document.documentElement.dataset.theme === 'dark'")
    dark = page.run(colour), page.run(stroke)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    page.click("#theme")
    assert (page.run(colour), page.run(stroke)) == light
    page.click("#theme")
    page.click("#theme")
    assert (page.run(colour), page.run(stroke)) == dark


def test_a_run_opens_with_its_settings_and_environment(page):
    page.click('details.run[data-run="0"] summary')
    body = 'details.run[data-run="0"] .run-body'
    page.until(f"document.querySelector('{body}')")
    text = page.run(f"return document.querySelector('{body}').innerText")
    assert "init_std" in text
    assert "2.13.0" in text
    marked = page.run(
        f"return [...document.querySelectorAll('{body} tr.differs th')].map(t => t.textContent)"
    )
    assert marked == ["lr", "device"]


def test_the_filter_hides_other_runs(page):
    page.type("#filter", "batch mnist")
    shown = page.run(
        "return [...document.querySelectorAll('details.run')].filter(d => d.offsetHeight).length"
    )
    assert shown == 3


def test_names_do_no_harm(page):
    page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.run("return document.querySelectorAll('img').length") == 0
    heading = page.run("return document.querySelector('#set-1 h2').textContent")
    assert heading in EVIL


@pytest.mark.parametrize("width", [360, 390, 768])
def test_nothing_overflows_a_phone(page, width):
    page.devtools(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=800, deviceScaleFactor=2, mobile=True,
    )  # fmt: skip
    page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.run("return document.documentElement.scrollWidth") <= width
    stage = page.run("return document.querySelector('#chart-0 .stage').clientWidth")
    drawn = page.run("return document.querySelector('#chart-0 svg').getBoundingClientRect().width")
    assert drawn == pytest.approx(stage, abs=1)


def open_at(session, width, report):
    session.devtools(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=800, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    session.open(Path(report.page))


def assert_numbers_fit(session):
    """No number along the y-axis is cut off, nor under the title of the axis."""
    boxes = session.run(
        "const box = (t) => (({left, right}) => [left, right])(t.getBoundingClientRect());"
        "const all = [...document.querySelectorAll('#chart-0 .axes text')];"
        "const title = all.filter(t => t.getAttribute('transform')).map(box)[0];"
        "const numbers = all.filter(t => t.getAttribute('text-anchor') === 'end').map(box);"
        "return {title, numbers, left: box(document.querySelector('#chart-0 svg'))[0]}"
    )
    assert len(boxes["numbers"]) >= 2
    assert boxes["title"][0] >= boxes["left"]
    assert min(left for left, _ in boxes["numbers"]) >= boxes["title"][1]


@pytest.mark.parametrize("width", [390, 1280])
def test_an_error_of_0_leaves_an_axis_that_can_be_read(session, tmp_path, width):
    for method in ("pearson", "cosine"):
        write_errors(tmp_path / method, config_of(method), [50.0, 30.0, 8.0] + [0.0] * 17)
    report = write_report(tmp_path, tmp_path / "report", published={})
    open_at(session, width, report)
    assert max(labels(session, "end")) >= 40
    assert all(tick == int(tick) for tick in labels(session, "middle"))
    end, bottom = session.run(
        f"const c = {CURVES}[0]; const r = document.querySelector('#chart-0 clipPath rect');"
        "return [c.getPointAtLength(c.getTotalLength()).y,"
        " +r.getAttribute('y') + +r.getAttribute('height')]"
    )
    assert end <= bottom - 1.5, "the line at 0 is whole"
    assert_numbers_fit(session)
    choose(session, "show", "training loss")
    assert_numbers_fit(session)
    choose(session, "scale", "log")
    assert_numbers_fit(session)


@pytest.mark.parametrize("width", [390, 1280])
def test_one_epoch_beside_the_paper(session, tmp_path, width):
    for method, level in LEVELS.items():
        write_errors(tmp_path / method, config_of(method), [5 * level])
    open_at(session, width, write_report(tmp_path, tmp_path / "report"))
    clipped = "!!d.closest('[clip-path]')"
    dots = f"return [...document.querySelectorAll('#chart-0 .dot')].map(d => {clipped})"
    assert session.run(dots) == [False] * len(LEVELS)
    assert labels(session, "middle") == [0, 1]
    papers = "return document.querySelectorAll('#chart-0 .paper').length"
    note = "return document.querySelector('#chart-0 .note').textContent"
    assert session.run(papers) == 0
    assert "the paper’s values (pearson 1.39, cosine 1.40," in session.run(note)
    assert_numbers_fit(session)
    choose(session, "range", "whole")
    assert session.run(papers) == len(LEVELS)
    assert session.run(note) == ""


@pytest.mark.parametrize("width", [360, 390])
def test_a_phone_shows_every_column_of_a_table(page, width):
    page.devtools(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=800, deviceScaleFactor=2, mobile=True,
    )  # fmt: skip
    cells = "[...document.querySelectorAll('#set-0 table.results :is(th, td)')]"
    cut = (
        f"return {cells}.filter(c => c.getBoundingClientRect().right > "
        "c.closest('.scroll').getBoundingClientRect().right + 0.5 "
        "|| c.scrollWidth > c.clientWidth).map(c => c.textContent)"
    )
    assert page.run(cut) == []
    head = "return document.querySelector('#set-0 table.verdicts td:nth-child(4)').dataset.head"
    assert page.run(head) == "verdict"


def test_methods_are_sorted_by_the_numbers_in_their_names(session, tmp_path):
    rates = (0.01, 0.003, 0.1, 0.03, 1.0, 10.0)
    for rate in rates:
        write_errors(tmp_path / f"r{rate}", config_of("pearson", lr=rate), [1.0] * 4)
    open_at(session, 1280, write_report(tmp_path, tmp_path / "report", published={}))
    names = "return [...document.querySelectorAll('table.results td:first-child')]"
    table = f"{names}.map(c => c.textContent).filter(t => !t.includes('−'))"
    wanted = [f"pearson (lr={rate:g})" for rate in sorted(rates)]
    session.click("table.results th:first-child button")
    assert session.run(table) == wanted
    session.click("table.results th:first-child button")
    assert session.run(table) == wanted[::-1]
