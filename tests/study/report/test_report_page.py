import base64
import csv
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from synthetic import ENVIRONMENT, config_of, write_comparison, write_run

from cosnorm.study.report import group_runs, load_runs, write_report
from cosnorm.study.report.links import Links
from cosnorm.study.report.page import html_page
from cosnorm.study.report.payload import embed, page_data

EVIL = "</script><script>document.title='pwned'</script><img src=x onerror=alert(1)>&amp;\"'"


def page_of(folder, title="A title"):
    runs, warnings = load_runs(folder)
    sections = group_runs(runs, warnings)
    return html_page(sections, warnings, title, "today")


class Elements(HTMLParser):
    """Every element with its attributes, and the text inside scripts, styles and cells."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.inside, self.text = [], [], {}
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside.append(tag)
        self.text.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if self.inside:
            self.text[self.inside[-1]][-1] += data


def data_of(page):
    return json.loads(Elements(page).text["script"][0])


def test_nothing_a_run_is_called_can_become_markup(tmp_path):
    evil_file = EVIL.replace("/", "")
    write_run(
        tmp_path / evil_file,
        config_of(EVIL, seed=EVIL, dataset=EVIL, note=EVIL, **{EVIL: EVIL}),
        environment={**ENVIRONMENT, EVIL: EVIL},
    )
    with (tmp_path / evil_file / "metrics.jsonl").open("a") as file:
        file.write("{")
    page = page_of(tmp_path, title=EVIL)
    elements = Elements(page)
    assert [attrs for tag, attrs in elements.tags if tag == "script"] == [
        {"type": "application/json", "id": "data"},
        {},
    ]
    assert not [tag for tag, _ in elements.tags if tag == "img"]
    assert not [key for _, attrs in elements.tags for key in attrs if key.startswith("on")]
    assert data_of(page)["runs"][0]["config"][EVIL] == EVIL
    assert elements.text["h1"] == [EVIL]


def test_embedded_json_is_plain_ascii_without_angle_brackets():
    text = embed({"a": EVIL + "\u2028\u2029é"})
    assert text.isascii()
    assert not re.search("[<>&]", text)
    assert json.loads(text) == {"a": EVIL + "\u2028\u2029é"}


def test_the_policy_admits_our_script_and_style_and_nothing_else(tmp_path):
    write_run(tmp_path / "a", config_of("pearson"))
    elements = Elements(page_of(tmp_path))
    policy = next(a["content"] for t, a in elements.tags if a.get("http-equiv"))
    for kind, text in (
        ("script", elements.text["script"][1]),
        ("style", elements.text["style"][0]),
    ):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_the_page_refers_to_nothing_but_files_around_it(tmp_path):
    write_comparison(tmp_path / "runs")
    write_run(tmp_path / "runs" / "javascript:alert(1) #", config_of("none", note="x"))
    for _, attrs in Elements(page_of(tmp_path / "runs")).tags:
        assert "src" not in attrs
        assert attrs.get("href", "#").startswith("#")
    report = write_report(tmp_path / "runs", tmp_path / "report")
    tags = Elements(Path(report.page).read_text()).tags
    assert not any("src" in attrs for _, attrs in tags)
    links = [attrs["href"] for tag, attrs in tags if tag == "a" and attrs["href"][0] != "#"]
    assert not any(urlsplit(link).scheme or urlsplit(link).netloc for link in links)
    found = [(Path(report.page).parent / unquote(link)).resolve() for link in links]
    assert all(path.exists() for path in found)
    for file in (report.csv, report.pairs_csv, report.runs_csv, report.curves_csv, *report.figures):
        assert Path(file).resolve() in found
    assert sum(path.is_dir() for path in found) == 16


def test_the_files_of_a_watched_run_say_what_its_layers_were(tmp_path):
    write_run(tmp_path / "runs" / "a", config_of("pearson", epochs=4), layers=2)
    report = write_report(tmp_path / "runs", tmp_path / "report")
    rows = list(csv.DictReader((tmp_path / "report" / "layers.csv").read_text().splitlines()))
    assert [(row["epoch"], row["layer"]) for row in rows[:3]] == [
        ("1", "1"),
        ("1", "2"),
        ("2", "1"),
    ]
    assert rows[0]["scale"] == "" and float(rows[1]["scale"]) == pytest.approx(1.045)
    curves = list(csv.DictReader(Path(report.curves_csv).read_text().splitlines()))
    assert float(curves[0]["train_error"]) == pytest.approx(float(curves[0]["test_error"]) / 9)
    assert curves[0]["seconds"] == "1.5"


def test_curves_are_thinned_in_the_page(tmp_path):
    config = config_of("pearson", epochs=3000)
    write_run(tmp_path / "a", config)
    section = data_of(page_of(tmp_path))["sections"][0]
    x, y, deviation, seconds = section["groups"][0]["curves"]["test_error"]
    assert len(x) == len(y) == len(seconds) == 400
    assert deviation == [], "one seed has none"
    assert (x[0], x[-1]) == (1, 3000)


def test_hundreds_of_runs_stay_a_page_of_a_few_megabytes(tmp_path):
    for seed in range(300):
        write_run(tmp_path / str(seed), config_of("pearson", seed))
    page = page_of(tmp_path)
    assert page.count('<details class="run"') == 300
    assert len(page) < 3_000_000


def test_equal_environments_are_stored_once_and_differences_are_listed(tmp_path):
    write_comparison(tmp_path, seeds=2)
    write_run(
        tmp_path / "gpu",
        config_of("none", lr=0.1),
        environment={**ENVIRONMENT, "device": "cuda", "started": "2026-01-01"},
    )
    page = page_of(tmp_path)
    data = data_of(page)
    assert len(data["environments"]) == 2
    assert data["differing"]["environment"] == ["device"]
    assert data["differing"]["config"] == [["lr"]]
    assert "cpu (10 runs); cuda (1 run)" in page
    assert '<tr class="differs"><th scope="row">lr</th><td>10</td>' in page


def test_the_axis_can_be_switched_where_an_epoch_has_one_length(tmp_path):
    write_run(tmp_path / "a", config_of("pearson"))
    section = data_of(page_of(tmp_path))["sections"][0]
    assert (section["units"], section["groups"][0]["factor"]) == (["epoch", "step", "time"], 600)


def test_the_axis_stays_where_epochs_are_rounded(tmp_path):
    folder = write_run(tmp_path / "a", config_of("pearson", epochs=None, steps=1000), every=100)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [{**line, "epoch": int(line["epoch"])} for line in lines]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert data_of(page_of(tmp_path))["sections"][0]["units"] == ["step", "time"]


def write_settings(folder, count):
    """Methods with several settings each, of which the third has the lowest error."""
    for place in range(count):
        for method in ("pearson", "cosine", "batch"):
            level = 1.0 if place == 2 else 1.5 + 0.1 * place
            config = config_of(method, init_std=0.1 + 0.1 * place)
            write_run(folder / f"{method}{place}", config, level=level)


def test_many_curves_start_with_the_setting_of_each_method_that_is_compared(tmp_path):
    write_settings(tmp_path, 5)
    page = page_of(tmp_path)
    groups = data_of(page)["sections"][0]["groups"]
    assert [group["on"] for group in groups] == [True, False, False, False, False] * 3
    assert [group["first"] for group in groups] == [group["on"] for group in groups]
    looks = {(group["light"], tuple(group["dashes"])) for group in groups}
    assert len(looks) == 15
    assert "Lowest mean test error of the settings compared below: " in page
    assert re.search(
        r"Of all 15 settings: \w+ \(init_std=0.3\d*\), [01]\.\d\d %; chosen by test", page
    )


def test_up_to_twelve_curves_are_all_there_from_the_start(tmp_path):
    write_settings(tmp_path, 4)
    groups = data_of(page_of(tmp_path))["sections"][0]["groups"]
    assert all(group["on"] and group["first"] for group in groups)


def test_a_watched_run_has_a_curve_for_every_layer(tmp_path):
    write_run(tmp_path / "a", config_of("pearson"), layers=3)
    write_run(tmp_path / "b", config_of("batch"))
    section = data_of(page_of(tmp_path))["sections"][0]
    keys = {metric["key"]: (metric["label"], metric["layer"]) for metric in section["metrics"]}
    assert keys["train_error"] == ("train error (%)", None)
    assert keys["layers.2.weight_norm"] == ("weight norm |w|", "2")
    assert keys["layers.1.effective_lr"] == ("effective learning rate lr/|w|²", "1")
    assert "layers.3.scale" in keys and "layers.1.scale" not in keys
    watched, plain = (group["curves"] for group in section["groups"])
    xs, ys, _, seconds = watched["layers.2.weight_norm"]
    assert (xs[0], xs[-1], len(xs)) == (1, 200, 100)
    assert ys[0] == pytest.approx(2 * 1.1**0.5, rel=1e-4)
    assert (seconds[0], seconds[-1]) == (1.5, 300)
    assert plain["layers.2.weight_norm"] == [[], [], [], []]


def test_odd_layers_cost_no_report(tmp_path):
    folder = write_run(tmp_path / "a", config_of("pearson"), layers=1)
    odd = [
        {"1": 3},
        {"x.y": {"scale": 1}},
        [1],
        None,
        {"9" * 5000: {"scale": 1}},
        {"2": {"scale": []}},
    ]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [{**line, "layers": layers} for line, layers in zip(lines, odd, strict=False)]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    keys = [metric["key"] for metric in data_of(page_of(tmp_path))["sections"][0]["metrics"]]
    assert keys == ["test_error", "train_loss", "train_error"]


@pytest.mark.slow
def test_three_hundred_watched_runs_stay_a_page_of_some_megabytes(tmp_path):
    for seed in range(300):
        write_run(tmp_path / str(seed), config_of("pearson", seed), layers=12, every=4)
    assert len(page_of(tmp_path)) < 8_000_000


def test_what_became_of_a_groups_runs_is_told(tmp_path):
    write_run(tmp_path / "a", config_of("none"), state="diverged", upto=9)
    write_run(tmp_path / "b0", config_of("batch"))
    write_run(tmp_path / "b1", config_of("batch", 1), state="diverged", upto=3)
    write_run(tmp_path / "c", config_of("cosine"), state="running", upto=3)
    page = page_of(tmp_path)
    groups = {group["label"]: group for group in data_of(page)["sections"][0]["groups"]}
    states = {label: group["state"] for label, group in groups.items()}
    assert states == {
        "none": "diverged at epoch 9",
        "batch": "1 of 2 diverged",
        "cosine": "in progress",
    }
    assert [run["ended"] for run in groups["batch"]["runs"]] == [False, True]
    assert '<span class="bad">diverged at epoch 9</span>' in page


def test_time_is_an_axis_where_every_evaluation_has_its_time(tmp_path):
    folder = write_run(tmp_path / "a", config_of("pearson"))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    del lines[7]["seconds"]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert data_of(page_of(tmp_path))["sections"][0]["units"] == ["epoch", "step"]


def test_long_tables_begin_folded(tmp_path):
    for seed in range(51):
        write_run(tmp_path / str(seed), config_of("pearson", seed, epochs=4))
    page = page_of(tmp_path)
    assert '<div class="folded" data-fold="show all 51 runs">' in page
    assert "<tbody><tr>" in page, "one row of results is no long table"


def test_runs_without_any_evaluation_make_a_page(tmp_path):
    folder = write_run(tmp_path / "a", config_of("pearson"), state="running")
    (folder / "metrics.jsonl").write_text("")
    page = page_of(tmp_path)
    assert "No run has finished with a result yet." in page
    assert data_of(page)["sections"][0]["metrics"] == []


def test_the_averaged_and_the_raw_error_can_both_be_shown(tmp_path):
    folder = write_run(tmp_path / "a", config_of("pearson"))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [{**line, "test_error_raw": line["test_error"] + 1} for line in lines]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    data = page_data(group_runs(load_runs(tmp_path)[0], []), Links())
    keys = [metric["key"] for metric in data["sections"][0]["metrics"]]
    assert keys == ["test_error", "train_loss", "test_error_raw"]


def test_the_finding_says_what_the_seeds_do_not_tell_apart(tmp_path):
    for method, levels in {
        "pearson": (1.0, 1.4),
        "cosine": (1.3, 1.5),
        "batch": (9.0, 9.1),
    }.items():
        for seed, level in enumerate(levels):
            write_run(tmp_path / f"{method}{seed}", config_of(method, seed), level=level)
    page = page_of(tmp_path)
    told = "seed by seed it is better than batch; not clearly apart from cosine."
    assert re.search(f"Lowest mean test error: pearson, .* %; {told}", page)


def test_the_finding_of_single_seeds_says_so(tmp_path):
    for method in ("pearson", "cosine"):
        write_run(tmp_path / method, config_of(method))
    assert "(1 seed: no verdict)." in page_of(tmp_path)


def test_the_page_says_that_lengths_differ(tmp_path):
    write_run(tmp_path / "p", config_of("pearson", dataset="own", epochs=20))
    write_run(tmp_path / "c", config_of("cosine", dataset="own", epochs=1))
    page = page_of(tmp_path)
    told = "Not all were trained for the same length: pearson 20 epochs, cosine 1 epoch."
    assert f'<p class="lead">{told}' in page
    assert "<td>1 epoch</td>" in page
    assert 'class="best"' not in page
