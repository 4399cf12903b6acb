import base64
import hashlib
import json
import re
from html.parser import HTMLParser

from synthetic import ENVIRONMENT, config_of, write_comparison, write_run

from cosnorm.report import group_runs, load_runs
from cosnorm.report.page import html_page
from cosnorm.report.payload import embed, page_data

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


def test_the_page_refers_to_nothing_outside_itself(tmp_path):
    write_comparison(tmp_path)
    for _, attrs in Elements(page_of(tmp_path)).tags:
        assert "src" not in attrs
        assert attrs.get("href", "#").startswith("#")


def test_curves_are_thinned_in_the_page(tmp_path):
    config = config_of("pearson", epochs=3000)
    write_run(tmp_path / "a", config)
    section = data_of(page_of(tmp_path))["sections"][0]
    x, y, deviation = section["groups"][0]["curves"]["test_error"]
    assert len(x) == len(y) == len(deviation) == 400
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
    assert (section["units"], section["groups"][0]["factor"]) == (["epoch", "step"], 600)


def test_the_axis_stays_where_epochs_are_rounded(tmp_path):
    folder = write_run(tmp_path / "a", config_of("pearson", epochs=None, steps=1000), every=100)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [{**line, "epoch": int(line["epoch"])} for line in lines]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert data_of(page_of(tmp_path))["sections"][0]["units"] == ["step"]


def test_many_curves_start_with_one_a_method(tmp_path):
    for std in (0.1, 0.2, 0.3):
        for method in ("pearson", "cosine", "batch"):
            write_run(tmp_path / f"{method}{std}", config_of(method, init_std=std))
    groups = data_of(page_of(tmp_path))["sections"][0]["groups"]
    assert [group["on"] for group in groups] == [True, False, False] * 3
    looks = {(group["light"], tuple(group["dashes"])) for group in groups}
    assert len(looks) == 9


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
    data = page_data(group_runs(load_runs(tmp_path)[0], []))
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
    assert re.search(
        r"Lowest mean test error: pearson, .* not clearly apart from it: cosine\.", page
    )


def test_the_finding_of_single_seeds_says_so(tmp_path):
    for method in ("pearson", "cosine"):
        write_run(tmp_path / method, config_of(method))
    assert "(one seed: how far chance reaches is not known)" in page_of(tmp_path)


def test_the_page_says_that_lengths_differ(tmp_path):
    write_run(tmp_path / "p", config_of("pearson", dataset="own", epochs=20))
    write_run(tmp_path / "c", config_of("cosine", dataset="own", epochs=1))
    page = page_of(tmp_path)
    told = "Not all were trained for the same length: pearson 20 epochs, cosine 1 epoch."
    assert f'<p class="lead">{told}' in page
    assert "<td>1 epoch</td>" in page
    assert 'class="best"' not in page
