"""What the page shows and gives away, in a real browser: tables, layers, time, pictures, links."""

import json
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import choose, labels, move, plot_point, scheme
from synthetic import LEVELS, config_of, write_comparison, write_run

from cosnorm.study.report import write_report

pytestmark = pytest.mark.slow

SVG = "{http://www.w3.org/2000/svg}"
LABEL = "return document.querySelector('#chart-0 svg').getAttribute('aria-label')"
NOTE = "return document.querySelector('#chart-0 .note').textContent"
SHOWN = "return [...document.querySelectorAll('#chart-0 path.curve')].map(c => +c.dataset.group)"
TIP = "return document.querySelector('#chart-0 .tip').innerText"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Five watched methods, and one that diverges."""
    runs = tmp_path_factory.mktemp("content")
    write_comparison(runs / "runs", seeds=3, epochs=40, layers=3)
    write_run(runs / "runs" / "none", config_of("none", epochs=40), state="diverged", upto=9)
    write_run(
        runs / "runs" / "batch-seed3",
        config_of("batch", 3, epochs=40), state="diverged", upto=20, layers=3,
    )  # fmt: skip
    return write_report(runs / "runs", runs / "report", title="Content")


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    """Five methods with twelve settings each."""
    runs = tmp_path_factory.mktemp("crowd")
    for place in range(12):
        for method, level in LEVELS.items():
            config = config_of(method, lr=0.5 + place, epochs=20)
            write_run(runs / f"{method}-{place}", config, level=level * (1 + 0.1 * abs(place - 7)))
    return write_report(runs, runs / "report", title="Crowd")


def opened(session, report):
    session.devtools("Emulation.clearDeviceMetricsOverride")
    session.devtools("Emulation.setEmulatedMedia", features=scheme("light"))
    session.open(Path(report.page))


@pytest.fixture
def page(session, report):
    """The page, newly opened; afterwards it must have been silent, and have fetched nothing."""
    opened(session, report)
    yield session
    assert_silent_and_alone(session, report)


@pytest.fixture
def crowded(session, crowd):
    opened(session, crowd)
    yield session
    assert_silent_and_alone(session, crowd)


def assert_silent_and_alone(session, report):
    assert session.log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in session.log("performance")]
    sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
    urls = {params["request"]["url"] for params in sent}
    # What the page has itself made (a picture of its chart) comes from no server.
    assert {url for url in urls if not url.startswith(("data:", "blob:"))} <= {
        Path(report.page).resolve().as_uri()
    }


def column(page, table, position):
    return page.run(
        "return [...document.querySelectorAll(arguments[0] + ' tbody tr')]"
        ".map(r => r.cells[arguments[1]].textContent)",
        table,
        position,
    )


def sort_by(page, selector, name):
    page.run(
        "[...document.querySelectorAll(arguments[0] + ' .sort')]"
        ".find(b => b.textContent === arguments[1]).click()",
        selector,
        name,
    )


def test_results_can_be_sorted(page):
    table = "table.results:not(.verdicts)"
    methods = ["pearson", "cosine", "batch", "weight", "layer", "none"]
    assert column(page, table, 0) == methods
    sort_by(page, table, "test error %")
    by_error = column(page, table, 0)
    assert by_error == ["pearson", "cosine", *by_error[2:4], "weight", "none"]
    errors = column(page, table, 1)
    assert errors == [*sorted(errors)[:-1], "diverged"]
    sort_by(page, table, "test error %")
    assert column(page, table, 1) == ["diverged", *reversed(errors[:-1])]
    sort_by(page, table, "final error %")
    assert column(page, table, 0)[-1] == "none", "what has no value stays at the end"
    sort_by(page, table, "final error %")
    assert column(page, table, 0)[-1] == "none"
    sort_by(page, table, "method")
    assert column(page, table, 0) == sorted(methods)
    sorts = "return [...document.querySelectorAll('th[aria-sort]')].map(t => t.textContent)"
    assert page.run(sorts) == ["method"]


def test_pairs_stand_with_their_verdicts_and_can_be_sorted(page, report):
    table = "table.verdicts"
    pairs = column(page, table, 0)
    assert pairs[0] == "pearson − cosine"
    assert len(pairs) == 10
    verdicts = column(page, table, 3)
    assert any(verdict == "better" for verdict in verdicts)
    sort_by(page, table, "difference")
    numbers = [float(cell.split(" ")[0].replace("−", "-")) for cell in column(page, table, 1)]
    assert numbers == sorted(numbers)
    assert numbers[0] < 0 < numbers[-1]
    sort_by(page, table, "verdict")
    assert column(page, table, 3) == sorted(verdicts)


def test_runs_can_be_sorted(page):
    means = (
        "return [...document.querySelectorAll('details.run')]"
        ".map(d => d.querySelector('summary').children[3].textContent)"
    )
    before = page.run(means)
    sort_by(page, ".runs-head", "mean %")
    numbers = sorted((mean for mean in before if mean != "—"), key=float)
    assert page.run(means) == [*numbers, "—", "—"]
    page.click("details.run summary")
    page.until("document.querySelector('details.run .run-body')")
    first = page.run("return document.querySelector('details.run .run-body').innerText")
    assert "pearson" in first, "a row that has moved opens its own run"


def test_a_long_list_is_folded_until_it_is_asked_for(crowded):
    rows = (
        "return [...document.querySelectorAll(arguments[0])].filter(r => r.offsetHeight > 0).length"
    )
    table, runs = "table.results:not(.verdicts) tbody tr", "details.run"
    assert (crowded.run(rows, table), crowded.run(rows, runs)) == (20, 50)
    sort_by(crowded, "table.results:not(.verdicts)", "test error %")
    assert column(crowded, "table.results:not(.verdicts)", 0)[0] == "pearson (lr=7.5)"
    assert crowded.run(rows, table) == 20
    crowded.click(".scroll .unfold")
    assert crowded.run(rows, table) == 60
    crowded.type("#filter", "layer lr=11.5")
    assert crowded.run(rows, runs) == 1, "the filter finds what was folded away"
    assert crowded.run("return document.getElementById('filtered').textContent") == "1 of 60 runs"


def test_of_many_settings_the_compared_one_of_each_method_comes_first(crowded):
    compared = [0, 12, 24, 36, 48]  # none has the method's usual rate, so the first of equals
    assert crowded.run(SHOWN) == compared
    note = "return document.querySelector('#chart-0 .legend .lead').textContent"
    assert crowded.run(note) == "Of each method, the setting that is compared below."
    items = (
        "return [...document.querySelectorAll('#chart-0 .legend {} .item')]"
        ".filter(i => i.checkVisibility()).map(i => +i.dataset.group)"
    )
    assert crowded.run(items.format("")) == compared
    crowded.click("#chart-0 .legend summary")
    assert len(crowded.run(items.format("details"))) == 55
    crowded.click('#chart-0 .legend [data-group="3"]')
    assert sorted(crowded.run(SHOWN)) == sorted([3, *compared])
    assert len(crowded.run(items.format("details"))) == 55, "what was unfolded stays so"


def test_a_crowd_of_curves_can_be_read(crowded):
    crowded.run("document.querySelector('#chart-0 .legend .all button').click()")
    assert len(crowded.run(SHOWN)) == 60
    heights = crowded.run(
        "const s = charts[0].scales(); const g = DATA.sections[0].groups[31];"
        "return [s.y(valueAt(g.curves.test_error, 15)), s.x(15)]"
    )
    box = crowded.run(
        "const o = document.querySelector('#chart-0 svg').getBoundingClientRect();"
        "return [o.left, o.top]"
    )
    crowded.pointer(move(box[0] + heights[1], box[1] + heights[0]))
    faint = (
        "return [...document.querySelectorAll('#chart-0 [data-owner]')]"
        ".filter(g => +g.getAttribute('opacity') === 1).map(g => +g.dataset.owner)"
    )
    assert crowded.run(faint) == [31], "the curve under the pointer stands out"
    tip = crowded.run(TIP)
    assert "batch (lr=7.5)" in tip
    assert tip.strip().endswith("and 46 more")
    crowded.pointer(move(2, 2))
    assert len(crowded.run(faint)) == 60


def test_time_is_an_axis(page):
    choose(page, "against", "time")
    assert page.run(LABEL) == "test error (%) against time (seconds)"
    assert max(labels(page, "middle")) == 60, "40 evaluations of 1.5 s"
    page.pointer(move(*plot_point(page, 0.5, 0.5)))
    assert page.run(TIP).startswith("30 seconds")


def test_long_times_are_told_in_hours(session, tmp_path):
    folder = write_run(tmp_path / "a", config_of("pearson"))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [{**line, "seconds": 90 * line["epoch"]} for line in lines]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    opened(session, write_report(tmp_path, tmp_path / "report"))
    choose(session, "against", "time")
    assert session.run(LABEL) == "test error (%) against time (hours)"
    assert max(labels(session, "middle")) == 5


def test_what_was_watched_can_be_chosen_by_layer(page):
    names = (
        "return [...document.querySelector('#chart-0 [data-choice=show] select').options]"
        ".map(o => o.text)"
    )
    assert page.run(names) == [
        "test error (%)",
        "training loss",
        "train error (%)",
        "weight norm |w|",
        "effective learning rate lr/|w|²",
        "scale",
    ]
    choose(page, "show", "train error (%)")
    assert page.run(LABEL) == "train error (%) against epoch"
    choose(page, "show", "weight norm |w|")
    assert page.run(LABEL) == "weight norm |w|, layer 1 against epoch"
    choose(page, "layer", "3")
    assert page.run(LABEL) == "weight norm |w|, layer 3 against epoch"
    page.pointer(move(*plot_point(page, 1, 0.5)))
    assert f"{3 * 5**0.5:.2f}" in page.run(TIP)
    choose(page, "show", "effective learning rate lr/|w|²")
    assert page.run(LABEL).startswith("effective learning rate lr/|w|², layer 3"), "the layer stays"
    heights = labels(page, "end")
    assert max(heights) / min(heights) >= 5, "a logarithm shows rates of 1 and 10 together"
    choose(page, "show", "scale")
    assert page.run(LABEL) == "scale, layer 3 against epoch"
    choose(page, "show", "test error (%)")
    assert page.run("return document.querySelector('#chart-0 [data-choice=layer]')") is None


def test_a_diverged_run_says_so(page):
    item = "return document.querySelector('#chart-0 .legend [data-group=\"{}\"]').innerText"
    assert "diverged at epoch 9" in page.run(item.format(5))
    assert "1 of 4 diverged" in page.run(item.format(2))
    assert "none: diverged at epoch 9 (×)." in page.run(NOTE)
    crosses = "return document.querySelectorAll('#chart-0 svg .end').length"
    choose(page, "range", "whole")
    assert page.run(crosses) == 1
    page.run("document.querySelectorAll('#chart-0 .tick input')[1].click()")
    assert page.run(crosses) == 3, "of the group, its run, and the single run of batch"
    status = "return [...document.querySelectorAll('details.run .bad')].map(s => s.textContent)"
    assert page.run(status) == ["diverged at epoch 20", "diverged at epoch 9"]


def saved(page, folder, kind):
    """The one file that a click on a button puts into a folder."""
    folder.mkdir()
    page.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    page.click(f'#chart-0 [data-save="{kind}"]')
    end = time.monotonic() + 20
    while not (done := [file for file in folder.iterdir() if file.suffix == f".{kind.lower()}"]):
        assert time.monotonic() < end, "nothing was saved"
        time.sleep(0.05)
    return done[0]


def test_the_chart_can_be_saved_as_svg(page, tmp_path):
    file = saved(page, tmp_path / "saved", "SVG")
    assert file.name == "mnist-test-error.svg"
    root = ElementTree.parse(file).getroot()
    curves = [p for p in root.iter(f"{SVG}path") if p.get("class") == "curve"]
    assert len(curves) == 6
    assert all(p.get("fill") == "none" and p.get("stroke").startswith("rgb") for p in curves)
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert "mnist: test error (%)" in texts
    assert any(text.startswith("pearson") for text in texts), "the legend comes with it"
    assert any("diverged at epoch 9" in text for text in texts)


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_the_chart_can_be_saved_as_png(page, tmp_path, colours):
    image = pytest.importorskip("PIL.Image")
    page.devtools("Emulation.setEmulatedMedia", features=scheme(colours))
    page.until(f"document.documentElement.dataset.theme === '{colours}'")
    file = saved(page, tmp_path / "saved", "PNG")
    with image.open(file) as picture:
        width = page.run("return charts[0].size().width")
        assert picture.width == 2 * width
        assert picture.height > picture.width / 2
        pixels = picture.convert("RGB")
        corner, counted = pixels.getpixel((2, 2)), pixels.getcolors(1 << 24)
    assert counted is not None
    assert corner == ((255, 255, 255) if colours == "light" else (27, 31, 37))
    found = {colour for count, colour in counted if count > 100}
    pearson = (0, 114, 178) if colours == "light" else (77, 177, 238)
    assert pearson in found, "the curve is drawn in its colour"


def test_links_lead_to_what_is_there(page, report):
    page.click("details.run summary")
    page.until("document.querySelector('details.run .run-body')")
    links = page.run(
        "return [...document.querySelectorAll('a[href]')].map(a => a.href)"
        ".filter(h => !h.includes('#'))"
    )
    found = [unquote(urlsplit(link).path) for link in links]
    folder = Path(report.page).parent
    for name in ("table.csv", "pairs.csv", "runs.csv", "curves.csv", "layers.csv", "mnist.png"):
        assert str((folder / name).resolve()) in found
    run = folder.parent / "runs" / "pearson-seed0"
    for name in ("config.json", "metrics.jsonl", "summary.json"):
        assert str((run / name).resolve()) in found
    assert f"{run.resolve()}/" in found
    assert len([path for path in found if path.endswith("/")]) == 18


def test_a_link_to_a_folder_opens(page, report):
    where = page.run("return document.querySelector('details.run a').href")
    page.send("POST", "/url", {"url": where})
    assert "metrics.jsonl" in page.run("return document.body.innerText")
    page.open(Path(report.page))
