import json
import statistics

import pytest
from synthetic import config_of, write_comparison, write_run

from cosnorm.study.report import (
    PAPER,
    Published,
    PublishedResult,
    Spread,
    group_runs,
    load_runs,
    write_report,
)
from cosnorm.study.report.formats import latex, markdown
from cosnorm.study.report.page import html_page
from cosnorm.study.report.verdicts import pairs_of


def sections_of(folder, published=None):
    runs, warnings = load_runs(folder)
    return group_runs(runs, warnings, published), warnings


def test_mean_and_sample_deviation_over_seeds(tmp_path):
    write_comparison(tmp_path, seeds=4)
    (section,), warnings = sections_of(tmp_path)
    assert warnings == []
    assert [group.method for group in section.groups] == list(PAPER["mnist"].results)
    pearson = section.groups[0]
    means = [run.result("test_error_mean") for run in pearson.runs]
    assert len(means) == 4
    assert pearson.test_error == Spread(statistics.fmean(means), statistics.stdev(means), 4)
    variances = [run.result("test_error_variance") for run in pearson.runs]
    assert pearson.variance.mean == statistics.fmean(variances)
    assert pearson.difference == pearson.test_error.mean - 1.39


def test_a_single_seed_has_no_deviation(tmp_path):
    write_run(tmp_path / "run", config_of("pearson"))
    (section,), _ = sections_of(tmp_path)
    assert section.groups[0].test_error.deviation is None
    assert section.best == []


def test_all_of_those_with_the_lowest_error_are_the_best(tmp_path):
    for method, level in (("pearson", 2.0), ("cosine", 1.5), ("batch", 1.5), ("layer", 1.7)):
        folder = write_run(tmp_path / method, config_of(method))
        summary = json.loads((folder / "summary.json").read_text())
        summary["test_error_mean"] = level
        (folder / "summary.json").write_text(json.dumps(summary))
    (section,), _ = sections_of(tmp_path)
    assert [group.label for group in section.best] == ["cosine", "batch"]
    table = markdown([section])
    assert table.count("**1.50**") == 2 and table.count("**") == 4
    assert latex([section]).count(r"\textbf{1.50}") == 2
    write_report(tmp_path, tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text()
    assert "Lowest mean test error: cosine, 1.50 % and batch, 1.50 %" in page
    assert page.count('<td class="best">1.50</td>') == 2


def test_diverged_and_running_runs_stay_out_of_the_mean(tmp_path):
    for seed, state in enumerate(("finished", "diverged", "finished", "running")):
        write_run(tmp_path / str(seed), config_of("pearson", seed), state=state, upto=200)
    (section,), _ = sections_of(tmp_path)
    (group,) = section.groups
    assert group.test_error.count == 2
    assert [run.seed for run in group.shown] == ["0", "2"]
    assert [len(group.having(s)) for s in ("finished", "diverged", "running")] == [2, 1, 1]
    assert not group.all_diverged


def test_runs_with_other_settings_are_never_averaged_together(tmp_path):
    for seed in range(2):
        for std in (0.316, 0.1):
            write_run(tmp_path / f"{std}-{seed}", config_of("pearson", seed, init_std=std))
        write_run(tmp_path / f"lr-{seed}", config_of("pearson", seed, lr=9.0, init_std=0.1))
    write_run(tmp_path / "batch", config_of("batch"))
    (section,), _ = sections_of(tmp_path)
    assert [(group.label, len(group.runs)) for group in section.groups] == [
        ("pearson (lr=9, init_std=0.1)", 2),
        ("pearson (lr=10, init_std=0.1)", 2),
        ("pearson (lr=10, init_std=0.316)", 2),
        ("batch", 1),
    ]
    assert [group.label for group in section.main] == ["pearson (lr=10, init_std=0.1)", "batch"]


def on_data(folder, config, fingerprint, **options):
    """A run that tells on which data it was made."""
    write_run(folder, config, **options)
    summary = json.loads((folder / "summary.json").read_text())
    summary["data"] |= {"fingerprint": fingerprint}
    (folder / "summary.json").write_text(json.dumps(summary))


def test_runs_on_other_data_are_neither_averaged_nor_compared(tmp_path):
    for method in ("pearson", "batch"):
        for seed in range(4):
            data = "701bbf00" if seed < 2 else "a91c2200"
            on_data(tmp_path / f"{method}{seed}", config_of(method, seed), data)
    write_run(tmp_path / "old", config_of("batch", 9))
    (section,), (warning,) = sections_of(tmp_path)
    assert [(group.label, len(group.runs)) for group in section.groups] == [
        ("pearson (data=701bbf)", 2),
        ("pearson (data=a91c22)", 2),
        ("batch (data=701bbf)", 2),
        ("batch (data=a91c22)", 2),
        ("batch (data=unknown)", 1),
    ]
    assert "(data=701bbf: 4, data=a91c22: 4, data=unknown: 1 by fingerprint)" in warning
    assert [(pair.first, pair.second) for pair in pairs_of(section)] == [
        ("pearson (data=701bbf)", "batch (data=701bbf)"),
        ("pearson (data=a91c22)", "batch (data=a91c22)"),
    ]
    assert section.best == []
    assert "Not all were made on the same data" in markdown([section])
    assert "Not all were made on the same data" in html_page([section], [], "title", "today")


def test_settings_that_change_the_data_and_old_summaries_are_no_other_data(tmp_path):
    on_data(tmp_path / "a", config_of("pearson", 0, tfidf="raw"), "701bbf00")
    on_data(tmp_path / "b", config_of("pearson", 0, tfidf="l2"), "a91c2200")
    write_run(tmp_path / "c", config_of("pearson", 1, tfidf="l2"))
    (section,), warnings = sections_of(tmp_path)
    assert warnings == []
    assert {group.label: len(group.runs) for group in section.groups} == {
        "pearson (tfidf=raw)": 1,
        "pearson (tfidf=l2)": 2,
    }


def test_places_do_not_split_a_group(tmp_path):
    write_run(tmp_path / "a", config_of("pearson", 0, out="a", data_dir="/x"))
    write_run(tmp_path / "b", config_of("pearson", 1, out="b", data_dir="/y"))
    (section,), _ = sections_of(tmp_path)
    assert len(section.groups) == 1


def test_nested_settings_split_too_and_absent_ones_are_not_named(tmp_path):
    write_run(tmp_path / "a", config_of("pearson", data_options={"tfidf": "raw"}))
    write_run(tmp_path / "b", config_of("pearson", data_options={"tfidf": "l2"}))
    write_run(tmp_path / "c", config_of("pearson"))
    (section,), _ = sections_of(tmp_path)
    assert {group.variant for group in section.groups} == {
        "",
        "data_options.tfidf=raw",
        "data_options.tfidf=l2",
    }


def test_a_seed_run_twice_counts_once_with_a_warning(tmp_path):
    write_run(tmp_path / "a", config_of("pearson"), state="running", upto=9)
    write_run(tmp_path / "b", config_of("pearson"))
    (section,), (warning,) = sections_of(tmp_path)
    assert [run.name for run in section.groups[0].runs] == ["b"]
    assert warning == (
        f"{tmp_path / 'a'}: same settings and seed as {tmp_path / 'b'}; only the latter is counted"
    )


def test_order_is_the_papers_then_by_name(tmp_path):
    for i, (dataset, method) in enumerate(
        (("zoo", "zeta"), ("zoo", "none"), ("zoo", "alpha"), ("digits", "layer"), ("svhn", "batch"))
    ):
        write_run(tmp_path / str(i), config_of(method, dataset=dataset))
    sections, _ = sections_of(tmp_path)
    assert [section.dataset for section in sections] == ["svhn", "digits", "zoo"]
    assert [group.method for group in sections[-1].groups] == ["none", "alpha", "zeta"]


def test_paths_are_shown_by_their_last_part_unless_two_share_it(tmp_path):
    for i, dataset in enumerate(("/a/x.npz", "/b/x.npz", "/c/y.npz")):
        write_run(tmp_path / str(i), config_of("pearson", dataset=dataset))
    sections, _ = sections_of(tmp_path)
    assert [section.label for section in sections] == ["/a/x.npz", "/b/x.npz", "y.npz"]


def test_mixed_units_are_compared_by_step(tmp_path):
    write_run(tmp_path / "a", config_of("pearson"))
    write_run(tmp_path / "b", config_of("cosine", epochs=None, steps=5000), every=100)
    (section,), _ = sections_of(tmp_path)
    assert section.unit == "step"


def test_published_tables_can_be_replaced_or_left_out(tmp_path):
    write_run(tmp_path / "a", config_of("pearson", dataset="digits"))
    own = {"digits": Published("our own", "epoch", 200, 50, {"pearson": PublishedResult(1.0)})}
    (section,), _ = sections_of(tmp_path, own)
    assert section.groups[0].difference == pytest.approx(section.groups[0].test_error.mean - 1)
    (section,), _ = sections_of(tmp_path, {})
    assert section.published is None


def test_published_numbers_of_the_paper():
    assert list(PAPER) == ["mnist", "20news", "cifar10", "cifar100", "svhn"]
    assert PAPER["mnist"].results["batch"] == PublishedResult(1.45, 6.74e-3)
    assert PAPER["20news"].results["weight"] == PublishedResult(33.55, 4.775e-2)
    assert PAPER["cifar100"].results["layer"] == PublishedResult(31.66, 0.22e-4)
    for table in PAPER.values():
        lowest = min(table.results, key=lambda method: table.results[method].test_error)
        assert lowest == "pearson"


def test_a_setting_that_older_runs_do_not_know_has_its_default_there(tmp_path):
    write_run(tmp_path / "a", config_of("pearson"))
    write_run(tmp_path / "b", config_of("pearson", 1, held_out=0.0, sync_batch_norm=False))
    write_run(tmp_path / "c", config_of("pearson", 2, sync_batch_norm=True))
    (section,), _ = sections_of(tmp_path)
    assert [(group.variant, len(group.runs)) for group in section.groups] == [
        ("sync_batch_norm=false", 2),
        ("sync_batch_norm=true", 1),
    ]


def test_what_was_tested_on_rows_held_out_stands_apart(tmp_path):
    for method in ("pearson", "batch"):
        write_run(tmp_path / method, config_of(method, held_out=0.1))
    write_run(tmp_path / "tested", config_of("cosine"))
    (tested, held), warnings = sections_of(tmp_path)
    assert warnings == []
    assert (tested.dataset, held.dataset) == ("mnist", "mnist (0.1 held out)")
    assert [group.method for group in tested.groups] == ["cosine"]
    assert (tested.is_held_out, held.is_held_out) == (False, True)
    assert tested.published is not None and held.published is None
    assert all(group.published is None for group in held.groups)
    table = markdown([tested, held])
    assert table.count("which was kept from training") == 1
    write_report(tmp_path, tmp_path / "report")
    csv = (tmp_path / "report" / "table.csv").read_text()
    assert csv.count("mnist (0.1 held out),") == 2
    assert "which was kept from training" in (tmp_path / "report" / "index.html").read_text()
