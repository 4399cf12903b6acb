import json
import re

import pytest
from synthetic import config_of, write_comparison, write_run

from cosnorm.report import ReportError, load_runs
from cosnorm.report.runs import number


def test_finds_runs_at_any_depth_and_each_once(tmp_path):
    write_run(tmp_path / "a" / "b" / "deep", config_of("pearson"))
    write_run(tmp_path / "top", config_of("cosine"))
    runs, warnings = load_runs([tmp_path, tmp_path / "top", tmp_path / "a"])
    assert [run.name for run in runs] == ["a/b/deep", "top"]
    assert warnings == []


def test_a_run_folder_itself_can_be_given(tmp_path):
    folder = write_run(tmp_path / "one", config_of("pearson"))
    (run,), _ = load_runs(str(folder))
    assert (run.name, run.method, run.seed, run.status) == ("one", "pearson", "0", "finished")
    assert len(run.metrics) == 200


def test_checkpoints_below_a_run_are_not_runs(tmp_path):
    folder = write_run(tmp_path / "one", config_of("pearson"))
    write_run(folder / "checkpoints" / "x", config_of("cosine"))
    assert [run.method for run in load_runs(tmp_path)[0]] == ["pearson"]


@pytest.mark.parametrize("state", ["finished", "diverged", "running"])
def test_status(tmp_path, state):
    write_run(tmp_path / "run", config_of("pearson"), state=state)
    (run,), warnings = load_runs(tmp_path)
    assert run.status == state
    assert (run.result("test_error_mean") is None) == (state != "finished")
    assert warnings == []


DAMAGE = {
    b'{"epoch": 5, "st\n': "Unterminated|Expecting",
    b"[1, 2]\n": "not a JSON object",
    b'{"test_error": 1.0}\n': "neither epoch nor step",
    b"\xff\xfe\x00\n": "codec|utf",
    b"[" * 100_000 + b"\n": "recursion|Expecting",
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage[:10].hex())
def test_a_damaged_line_is_skipped_and_named(tmp_path, damage):
    folder = write_run(tmp_path / "run", config_of("pearson"))
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    lines.insert(4, damage)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines))
    (run,), (warning,) = load_runs(tmp_path)
    assert len(run.metrics) == 200
    assert warning.startswith(f"{folder / 'metrics.jsonl'}, line 5: damaged (")
    assert warning.endswith("; skipped")
    assert re.search(DAMAGE[damage], warning)


def test_a_line_written_twice_counts_once_and_order_is_by_step(tmp_path):
    folder = write_run(tmp_path / "run", config_of("pearson"))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([lines[7], *reversed(lines)]))
    (run,), _ = load_runs(tmp_path)
    assert [line["step"] for line in run.metrics] == [600 * i for i in range(1, 201)]


def test_missing_metrics_and_damaged_summary_cost_only_themselves(tmp_path):
    bare = write_run(tmp_path / "bare", config_of("pearson"))
    (bare / "metrics.jsonl").unlink()
    cut = write_run(tmp_path / "cut", config_of("cosine"))
    (cut / "summary.json").write_text('{"test_error_mean": 1')
    (cut / "environment.json").unlink()
    runs, warnings = load_runs(tmp_path)
    assert [(run.status, len(run.metrics)) for run in runs] == [("finished", 0), ("running", 200)]
    assert any(w == f"{bare / 'metrics.jsonl'}: missing; the run has no curve" for w in warnings)
    assert any(w.startswith(f"{cut / 'summary.json'}: cannot be read") for w in warnings)


def test_the_summary_can_stand_in_for_a_lost_environment(tmp_path):
    folder = write_run(tmp_path / "run", config_of("pearson"))
    (folder / "environment.json").unlink()
    (run,), _ = load_runs(tmp_path)
    assert run.environment["torch"] == "2.13.0"


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"method": "pearson"}', '{"dataset": 3}'])
def test_a_folder_whose_config_tells_nothing_is_left_out_and_named(tmp_path, text):
    write_comparison(tmp_path, seeds=1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(text)
    runs, (warning,) = load_runs(tmp_path)
    assert len(runs) == 5
    assert str(tmp_path / "other" / "config.json") in warning
    assert "left out" in warning


def test_nothing_to_report_on_is_a_clear_error(tmp_path):
    with pytest.raises(ReportError, match=r"no run folders in .*: a run folder holds config.json"):
        load_runs(tmp_path)
    with pytest.raises(ReportError, match="no run folders in an empty list"):
        load_runs([])
    with pytest.raises(ReportError, match="nowhere is not a folder: give run folders"):
        load_runs(tmp_path / "nowhere")


def test_the_error_tells_why_a_candidate_was_left_out(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(ReportError, match=r"config\.json: no dataset and no method; left out"):
        load_runs(tmp_path)


@pytest.mark.parametrize("value", [None, True, "1", float("nan"), float("inf"), [], 10**400])
def test_what_is_not_a_finite_number_is_none(value):
    assert number(value) is None


@pytest.mark.parametrize(
    ("changes", "unit"), [({}, "epoch"), ({"epochs": None, "steps": 5000}, "step")]
)
@pytest.mark.parametrize("state", ["finished", "running"])
def test_the_unit_is_known_with_and_without_summary(tmp_path, changes, unit, state):
    write_run(tmp_path / "run", config_of("pearson", **changes), every=100, state=state)
    (run,), _ = load_runs(tmp_path)
    assert run.unit == unit
    assert run.length == (200 if unit == "epoch" else 5000)


@pytest.mark.parametrize("lost", [(), ("metrics.jsonl",), ("summary.json",)])
def test_a_run_without_its_config_is_left_out_with_a_warning(tmp_path, lost):
    write_run(tmp_path / "whole", config_of("pearson"))
    broken = write_run(tmp_path / "group" / "broken", config_of("cosine"))
    for name in ("config.json", *lost):
        (broken / name).unlink()
    runs, warnings = load_runs([tmp_path, tmp_path / "group"])
    assert [run.name for run in runs] == ["whole"]
    (warning,) = warnings
    assert warning.startswith(f"{broken}: holds ")
    assert warning.endswith("but no config.json; left out")
