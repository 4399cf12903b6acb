"""What is said of methods: intervals that keep their promise, and verdicts by the stated rule."""

import csv
import io
import json
import math

import numpy as np
import pytest
from scipy.stats import t as student_of_scipy
from synthetic import config_of, write_errors

from cosnorm.study.report import formats, group_runs, load_runs
from cosnorm.study.report import verdicts as v
from cosnorm.study.report.page import html_page
from cosnorm.study.report.payload import cell_row, pair_rows
from cosnorm.study.report.published import PAPER, Published, PublishedResult
from cosnorm.study.report.tables import cell_text, cells, pair_cells, pair_notes

# A test set of 10,000 rows, as the synthetic runs have: the margin at 1.4 % is 0.117 points.
MARGIN = v.standard_error(1.4, 10_000)


def section_of(folder, errors, published=None, **changes):
    """A section of runs with these errors, {method: [an error for each seed]}."""
    for method, of_seeds in errors.items():
        for seed, error in enumerate(of_seeds):
            if error is not None:
                config = config_of(method, seed, **changes)
                write_errors(folder / f"{method}-{seed}", config, [error] * 200)
    (section,) = group_runs(load_runs(folder)[0], [], published)
    return section


def around(mean, spread=0.01):
    """Five errors with this mean, apart by `spread`."""
    return [mean + spread * k for k in (-2, -1, 0, 1, 2)]


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 30, 99])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_students_quantiles_are_scipys(degrees, level):
    wanted = student_of_scipy.ppf((1 + level) / 2, degrees)
    assert v.student(degrees, level) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("count", [2, 3, 5, 20])
def test_intervals_hold_the_true_mean_as_often_as_they_say(count):
    generator = np.random.default_rng(7)
    draws = generator.normal(0.3, 0.1, (400, count))
    held = sum(i.low <= 0.3 <= i.high for i in map(v.mean_interval, draws) if i is not None)
    assert held >= 0.93 * 400


@pytest.mark.parametrize("count", [3, 5, 20])
def test_a_further_run_lies_where_the_interval_says(count):
    generator = np.random.default_rng(8)
    draws = generator.normal(1.4, 0.05, (2000, count + 1))
    held = 0
    for *before, after in draws:
        interval = v.run_interval(before)
        assert interval is not None
        held += interval.low <= after <= interval.high
    assert 0.935 * 2000 <= held <= 0.965 * 2000


def test_a_bootstrap_of_many_skewed_values_is_its_own():
    """Where Student's interval is the narrower at one end, the bootstrap's stands."""
    values = np.random.default_rng(1).exponential(1.0, 200)
    interval = v.mean_interval(values)
    half = v.student(199) * values.std(ddof=1) / math.sqrt(200)
    assert interval is not None
    assert interval.high > values.mean() + half
    assert interval.low == pytest.approx(values.mean() - half)


def test_intervals_are_the_same_every_time_and_none_of_one_value():
    assert v.mean_interval([1.0, 1.2, 1.1]) == v.mean_interval([1.0, 1.2, 1.1])
    assert v.mean_interval([1.0]) is v.run_interval([1.0]) is None


@pytest.mark.parametrize(
    ("low", "high", "margin", "verdict"),
    [
        (-0.3, -0.2, 0.1, "better"),
        (0.2, 0.3, 0.1, "worse"),
        (-0.1, 0.1, 0.1, "equivalent"),
        (0.01, 0.09, 0.1, "equivalent"),  # sure, but too small to matter
        (-0.3, 0.01, 0.1, "undecided"),
        (-0.11, -0.01, 0.1, "better"),
        (-0.1, 0.1, None, "undecided"),
    ],
)
def test_the_rule(low, high, margin, verdict):
    assert v.verdict_of(v.Interval(low, high), margin) == verdict


def test_one_seed_gives_no_verdict(tmp_path):
    section = section_of(tmp_path, {"pearson": [1.2], "cosine": [1.9]})
    (pair,) = v.pairs_of(section)
    assert (pair.verdict, pair.order, pair.interval) == ("no verdict", "open", None)
    assert pair.difference == pytest.approx(-0.7)
    assert pair_cells(pair, section)[3] == "1 seed: no verdict"
    cell = v.cell_of(section, section.groups[0])
    assert cell is not None
    assert cell.verdict == "no verdict"
    assert cell_text(cell, True) == "1 seed: no verdict"


def test_differences_are_taken_seed_by_seed(tmp_path):
    """Seeds that move both methods alike do not blur their difference."""
    errors = {"pearson": [1.0, 2.0, 3.0], "cosine": [1.3, 2.31, 3.29]}
    section = section_of(tmp_path, errors)
    (pair,) = v.pairs_of(section)
    assert pair.verdict == "better"
    assert pair.interval is not None
    assert -0.35 < pair.interval.low < pair.interval.high < -0.25


def test_two_equal_differences_give_no_certain_verdict(tmp_path):
    """On 359 rows an error moves in steps of 0.28 points: two equal differences prove little."""
    section_of(tmp_path, {"pearson": [1.39, 1.67], "cosine": [1.95, 2.23]}, dataset="digits")
    for path in tmp_path.glob("*/summary.json"):
        summary = json.loads(path.read_text())
        summary["data"]["test"] = 359
        path.write_text(json.dumps(summary))
    (section,) = group_runs(load_runs(tmp_path)[0], [])
    (pair,) = v.pairs_of(section)
    assert pair.verdict == "undecided"
    half = v.student(1) * 100 / 359 / math.sqrt(6) / math.sqrt(2)
    assert pair.interval.low == pytest.approx(-0.56 - half)
    assert pair.interval.high == pytest.approx(-0.56 + half)


def test_a_deviation_above_the_step_of_the_test_set_is_as_it_is():
    values = [0.1, 0.12, 0.15]
    assert v.mean_interval(values, v.least_deviation(10_000, 2)) == v.mean_interval(values)
    assert v.run_interval(values, v.least_deviation(10_000)) == v.run_interval(values)
    assert v.least_deviation(None) == 0
    further = v.run_interval([1.0, 1.0], 0.1)
    assert further.high - 1 == pytest.approx(v.student(1) * 0.1 * math.sqrt(1.5))


def test_only_seeds_that_both_have_are_compared(tmp_path):
    section = section_of(tmp_path, {"pearson": [1.0, 1.1, None], "cosine": [None, 1.5, 1.6]})
    (pair,) = v.pairs_of(section)
    assert pair.seeds == ("1",)
    assert pair.verdict == "no verdict"


def test_verdicts_and_the_papers_order(tmp_path):
    errors = {
        "pearson": around(1.40),
        "cosine": around(1.42),
        "weight": around(1.20),
        "layer": [1.0, 1.2, 1.4, 1.6, 2.5],
    }
    section = section_of(tmp_path, errors)
    found = {(pair.first, pair.second): pair for pair in v.pairs_of(section)}
    assert len(found) == 6
    same = found["pearson", "cosine"]
    assert (same.verdict, same.order) == ("equivalent", "as in the paper")
    assert same.margin == pytest.approx(v.standard_error(1.41, 10_000))
    worse = found["pearson", "weight"]  # the paper has 1.39 and 1.65
    assert (worse.verdict, worse.order) == ("worse", "against the paper")
    assert found["cosine", "layer"].verdict == "undecided"
    assert found["cosine", "layer"].order == "open"


def test_equivalent_is_against_a_paper_that_saw_a_gap(tmp_path):
    section = section_of(
        tmp_path, {"pearson": around(1.60), "weight": around(1.60)}
    )  # the paper has 1.39 and 1.65
    (pair,) = v.pairs_of(section)
    assert (pair.verdict, pair.order) == ("equivalent", "against the paper")


def test_cells_against_the_paper(tmp_path):
    errors = {
        "pearson": around(1.45),  # 1.39
        "cosine": around(1.90),  # 1.40
        "batch": around(1.10),  # 1.45
        "layer": [1.0, 1.2, 1.4, 1.6, 2.5],  # 1.43
    }
    section = section_of(tmp_path, errors)
    told = [v.cell_of(section, group) for group in section.groups]
    assert [cell.verdict for cell in told if cell] == ["agrees", "higher", "lower", "undecided"]
    assert told[0] is not None
    assert told[0].margin == pytest.approx(2 * v.standard_error(1.39, 10_000))
    assert cells(section.groups[0], section)[-1] == f"agrees within {told[0].margin:.2f}"
    assert cells(section.groups[0], section)[5] == "0.12"


def test_runs_of_another_length_have_no_verdict_against_the_paper(tmp_path):
    for seed, error in enumerate(around(1.39)):
        write_errors(tmp_path / f"p{seed}", config_of("pearson", seed), [error] * 20)
    (section,) = group_runs(load_runs(tmp_path)[0], [])
    cell = v.cell_of(section, section.groups[0])
    assert cell is not None
    assert cell.verdict == "no verdict"
    assert cells(section.groups[0], section)[-1] == "not the paper's length: no verdict"


def test_methods_of_different_lengths_are_no_pair(tmp_path):
    write_errors(tmp_path / "p", config_of("pearson"), [1.4] * 20)
    write_errors(tmp_path / "c", config_of("cosine"), [1.4] * 40)
    (section,) = group_runs(load_runs(tmp_path)[0], [])
    assert v.pairs_of(section) == []


def test_of_many_groups_one_a_method_is_compared(tmp_path):
    for rate in (1.0, 2.0, 3.0, 4.0, 10.0):
        for method in ("pearson", "cosine"):
            write_errors(tmp_path / f"{method}{rate}", config_of(method, lr=rate), [1.4] * 4)
    (section,) = group_runs(load_runs(tmp_path)[0], [])
    assert len(section.groups) == 10
    (pair,) = v.pairs_of(section)
    assert (pair.first, pair.second) == ("pearson (lr=10)", "cosine (lr=10)"), "the usual rate"
    told = "Compared is one setting of each method: pearson (lr=10), cosine (lr=10). 8 other"
    assert told in formats.markdown([section])
    assert told in html_page([section], [], "title", "today")
    assert section.main == v.compared(section), "what the figure shows"


def test_of_few_groups_nothing_is_left_out(tmp_path):
    section = section_of(tmp_path, {"pearson": around(1.4), "cosine": around(1.5)})
    assert v.left_out(section) == 0
    assert not any("left out" in note for note in pair_notes(section))


def test_without_a_count_of_test_rows_nothing_is_called_equivalent(tmp_path):
    section_of(tmp_path, {"pearson": around(1.40), "cosine": around(1.40)})
    for path in tmp_path.glob("*/summary.json"):
        summary = json.loads(path.read_text())
        del summary["data"]
        path.write_text(json.dumps(summary))
    (section,) = group_runs(load_runs(tmp_path)[0], [])
    (pair,) = v.pairs_of(section)
    assert (pair.margin, pair.verdict) == (None, "undecided")
    assert cells(section.groups[0], section)[5] == "—"


def test_markdown_csv_and_page_say_the_same(tmp_path):
    section = section_of(tmp_path, {"pearson": around(1.40), "weight": around(1.70)})
    (pair,) = v.pairs_of(section)
    text = formats.markdown([section])
    assert "| pearson − weight | −0.30 (−0.31 to −0.29) | 5 | better | −0.26 |" in text
    assert all(note.split(":")[0] in text for note in pair_notes(section))
    (line,) = csv.DictReader(io.StringIO(formats.pairs_csv([section])))
    assert (line["verdict"], line["order"]) == ("better", "as in the paper")
    assert float(line["low"]) == pair.interval.low
    (row,) = pair_rows(section)
    assert (row["verdict"], row["interval"]) == ("better", [pair.interval.low, pair.interval.high])
    (first, _) = csv.DictReader(io.StringIO(formats.table_csv([section])))
    assert (first["verdict"], first["test_set_standard_error"]) == ("agrees", str(MARGIN))
    assert cell_row(section, section.groups[0])["verdict"] == "agrees"
    page = html_page([section], [], "title", "today")
    assert (
        "<td>pearson − weight</td><td>−0.30 (−0.31 to −0.29)</td><td>5</td>"
        '<td class="good">better</td><td>−0.26</td><td>as in the paper</td>'
    ) in page
    assert "seed by seed it is better than weight." in page


def test_the_papers_own_margins_are_those_of_the_plan():
    """The plan states them in points; they follow from the paper's errors and the test sets."""
    rows = {"mnist": 10_000, "20news": 7505, "cifar10": 10_000, "cifar100": 10_000, "svhn": 26_032}
    stated = {"mnist": 0.12, "20news": 0.53, "cifar10": 0.25, "cifar100": 0.46, "svhn": 0.09}
    for name, table in PAPER.items():
        pearson, cosine = (table.results[m].test_error for m in ("pearson", "cosine"))
        margin = v.standard_error((pearson + cosine) / 2, rows[name])
        assert margin == pytest.approx(stated[name], abs=0.011)


def test_an_own_table_is_compared_by_its_own_numbers(tmp_path):
    table = Published(
        "ours", "epoch", 200, 50, {"pearson": PublishedResult(2.0), "cosine": PublishedResult(1.0)}
    )
    errors = {"pearson": around(1.40), "cosine": around(1.80)}
    section = section_of(tmp_path, errors, published={"mnist": table})
    (pair,) = v.pairs_of(section)
    assert (pair.paper, pair.verdict, pair.order) == (1.0, "better", "against the paper")
