import csv
import io
import re

import pytest
from synthetic import config_of, write_comparison, write_run

from cosnorm.study.report import Spread, formats, group_runs, load_runs
from cosnorm.study.report import tables as t

NASTY = "a|b_*c*<x>&%$#{~^}\\\nend"


def sections_of(folder):
    return group_runs(load_runs(folder)[0], [])


@pytest.fixture
def mixed(tmp_path):
    """Finished, diverged, running and unknown, with and without the paper's numbers."""
    write_comparison(tmp_path / "mnist")
    write_run(tmp_path / "d0", config_of("none", 0), state="diverged", upto=5)
    write_run(tmp_path / "w3", config_of("weight", 3), state="diverged", upto=5)
    write_run(tmp_path / "r0", config_of("mine", 0), state="running", upto=5)
    write_run(tmp_path / "own", config_of("pearson", dataset="digits", epochs=8))
    return sections_of(tmp_path)


def rows_of(markdown, heading):
    """The rows of the first table below a heading."""
    lines = markdown.split(f"## {heading}\n\n")[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_markdown_shows_means_states_and_the_papers_numbers(mixed):
    rows = rows_of(formats.markdown(mixed), "mnist")
    assert rows[0][:5] == ["method", "test error %", "variance", "final error %", "seeds"]
    assert rows[0][5:] == ["test-set SE", "paper %", "paper variance", "difference", "verdict"]
    by_method = {row[0]: row for row in rows[2:]}
    pearson = mixed[0].groups[0].test_error
    assert by_method["pearson"][1] == f"**{pearson.mean:.2f} ± {pearson.deviation:.2f}**"
    assert by_method["pearson"][5:8] == ["0.12", "1.39", "0"]
    assert by_method["cosine"][7] == "9.0e-6"
    assert by_method["weight"][4] == "3 + 1 diverged"
    assert by_method["none"][1:5] == ["diverged", "—", "—", "0 + 1 diverged"]
    assert by_method["none"][5:] == ["—"] * 5
    assert re.fullmatch(r"\d+\.\d\d so far", by_method["mine"][3])
    assert by_method["mine"][4] == "0 + 1 running"


def test_without_published_numbers_there_are_no_empty_columns(mixed):
    (head, _, row) = rows_of(formats.markdown(mixed), "digits")
    assert len(head) == len(row) == 6
    assert "**" not in row[1]


def test_notes_name_the_window_the_diverged_and_a_length_that_is_not_the_papers(mixed, tmp_path):
    told = t.notes(mixed[0])
    assert "the last 50 epochs" in told[0]
    assert "weight: seed 3 diverged at epoch 5." in told
    assert not any("Not the paper's length" in note for note in told)
    write_run(tmp_path / "more" / "x", config_of("pearson", epochs=1))
    (section,) = sections_of(tmp_path / "more")
    assert "Not the paper's length: the paper trains for 200 epochs; here 1 epoch." in t.notes(
        section
    )


def test_unequal_lengths_are_told_and_nobody_is_the_best(tmp_path):
    write_run(tmp_path / "p", config_of("pearson", dataset="own", epochs=20))
    write_run(tmp_path / "c", config_of("cosine", dataset="own", epochs=1))
    write_run(tmp_path / "d", config_of("none", dataset="own", epochs=9), state="diverged")
    sections = sections_of(tmp_path)
    rows = rows_of(formats.markdown(sections), "own")
    assert [row[5] for row in rows] == ["trained for", "---:", "20 epochs", "1 epoch", "9 epochs"]
    assert "**" not in formats.markdown(sections)
    assert "textbf" not in formats.latex(sections)
    assert "Not all were trained for the same length" in t.notes(sections[0])[0]
    table = list(csv.DictReader(io.StringIO(formats.table_csv(sections))))
    assert [(row["length"], row["unit"]) for row in table[:2]] == [
        ("20", "epoch"),
        ("1", "epoch"),
    ]


def test_epochs_and_steps_are_compared_in_steps(tmp_path):
    write_run(tmp_path / "p", config_of("pearson", dataset="own", epochs=2))
    steps = {"dataset": "own", "epochs": None}
    write_run(tmp_path / "c", config_of("cosine", **steps, steps=1200), every=100)
    (section,) = sections_of(tmp_path)
    assert section.has_one_length and section.best
    write_run(tmp_path / "b", config_of("batch", **steps, steps=1_000_100), every=100)
    (section,) = sections_of(tmp_path)
    assert section.best == []
    rows = rows_of(formats.markdown([section]), "own")[2:]
    assert [row[5] for row in rows] == ["1,200 steps", "1,200 steps", "1,000,100 steps"]


def test_a_diverged_method_of_another_length_does_not_matter(tmp_path):
    for method in ("pearson", "cosine"):
        write_run(tmp_path / method, config_of(method, dataset="own", epochs=20))
    write_run(tmp_path / "d", config_of("none", dataset="own", epochs=9), state="diverged")
    (section,) = sections_of(tmp_path)
    assert section.best
    assert "trained for" not in t.header(section)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (6.74e-3, "6.7e-3"), (12.3, "1.2e+1"), (1e-10, "1.0e-10"), (None, "—")],
)
def test_variances(value, text):
    assert t.variance_text(value) == text


def test_errors():
    assert t.error_text(Spread(1.394, 0.021, 3)) == "1.39 ± 0.02"
    assert t.error_text(Spread(1.394, None, 1)) == "1.39"


def test_markdown_and_latex_survive_any_name(tmp_path):
    write_run(tmp_path / "a", config_of(NASTY, dataset=f"/x/{NASTY}"))
    sections = sections_of(tmp_path)
    (head, rule, row) = rows_of(formats.markdown(sections), r"a\|b\_\*c\*\<x\>&%$\#{~^}\\ end")
    assert len(head) == len(rule) == len(row) == 6
    latex = formats.latex(sections)
    assert (
        r"a|b\_*c*<x>\&\%\$\#\{\textasciitilde{}\textasciicircum{}\}\textbackslash{} end" in latex
    )
    bare = re.sub(r"\\[\\&%$#_{}]", "", latex.split("\n", 1)[1])
    assert bare.count("{") == bare.count("}")


def test_latex_rows_have_as_many_cells_as_columns(mixed):
    latex = formats.latex(mixed)
    for table in latex.split(r"\begin{table}")[1:]:
        columns = re.search(r"\\begin\{tabular\}\{(l r*)\}".replace(" ", ""), table)
        body = table.split(r"\midrule")[1].split(r"\bottomrule")[0]
        for row in body.strip().splitlines():
            assert row.endswith(r" \\")
            assert len(re.split(r"(?<!\\)&", row)) == len(columns[1])
    assert r"$9.0\times10^{-6}$" in latex
    assert r"$\pm$" in latex
    assert not re.search(r"[±−—]", latex)


def read(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_table_csv_has_full_precision(mixed):
    lines = read(formats.table_csv(mixed))
    pearson = mixed[0].groups[0]
    assert float(lines[0]["test_error_mean"]) == pearson.test_error.mean
    assert float(lines[0]["test_error_deviation"]) == pearson.test_error.deviation
    assert float(lines[0]["difference"]) == pearson.difference
    none = next(line for line in lines if line["method"] == "none")
    assert (none["seeds"], none["diverged"], none["test_error_mean"]) == ("0", "1", "")


def test_runs_and_curves_csv_leave_nothing_out(mixed):
    runs = read(formats.runs_csv(mixed))
    assert len(runs) == 19
    assert {line["status"] for line in runs} == {"finished", "diverged", "running"}
    curves = read(formats.curves_csv(mixed))
    assert len(curves) == 15 * 200 + 3 * 5 + 8
    first = mixed[0].runs[0].metrics[0]
    assert float(curves[0]["test_error"]) == first["test_error"]
    assert [line["test_error"] for line in curves if line["method"] == "none"][-1] == ""


def test_whole_numbers_are_whole_in_csv(tmp_path):
    write_run(tmp_path / "a", config_of("pearson", epochs=7))
    sections = sections_of(tmp_path)
    (run,) = csv.DictReader(io.StringIO(formats.runs_csv(sections)))
    assert run["steps"] == "4200"
    (line,) = csv.DictReader(io.StringIO(formats.table_csv(sections)))
    assert line["length"] == "7"
