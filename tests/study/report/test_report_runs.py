import json
import re
from pathlib import Path

import pytest
from synthetic import config_of, write_comparison, write_run

from cosnorm.study.report import ReportError, load_runs
from cosnorm.study.runs.run import number


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
    assert warning.startswith(f"{folder / 'metrics.jsonl'}, line 5, is damaged (")
    assert warning.endswith("; skipped")
    assert re.search(DAMAGE[damage], warning)


def test_a_line_written_twice_counts_once_and_is_told_of(tmp_path):
    folder = write_run(tmp_path / "run", config_of("pearson"))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    again = json.dumps({**json.loads(lines[7]), "test_error": 99.0})
    (folder / "metrics.jsonl").write_text("\n".join([*lines[:9], again, *lines[9:]]))
    (run,), (warning,) = load_runs(tmp_path)
    assert [line["step"] for line in run.metrics] == [600 * i for i in range(1, 201)]
    assert run.metrics[7]["test_error"] == 99.0
    assert warning.endswith(
        "metrics.jsonl, line 10, is of step 4,800 and stands after step 5,400, but steps go up, "
        "each once; it counts, the earlier one does not"
    )


def test_lines_out_of_order_are_put_in_order_and_told_of(tmp_path):
    folder = write_run(tmp_path / "run", config_of("pearson"))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines.insert(3, lines.pop(5))
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    (run,), warnings = load_runs(tmp_path)
    assert [line["step"] for line in run.metrics] == [600 * i for i in range(1, 201)]
    assert [w.split("metrics.jsonl, ")[1] for w in warnings] == [
        f"line {line}, is of step {step} and stands after step 3,600, but steps go up, each once; "
        "put in its place"
        for line, step in ((5, "2,400"), (6, "3,000"))
    ]


def test_missing_metrics_and_damaged_summary_cost_only_themselves(tmp_path):
    bare = write_run(tmp_path / "bare", config_of("pearson"))
    (bare / "metrics.jsonl").unlink()
    cut = write_run(tmp_path / "cut", config_of("cosine"))
    (cut / "summary.json").write_text('{"test_error_mean": 1')
    (cut / "environment.json").unlink()
    runs, warnings = load_runs(tmp_path)
    assert [(run.status, len(run.metrics)) for run in runs] == [("finished", 0), ("running", 200)]
    assert any(w == f"{bare / 'metrics.jsonl'} is missing; the run has no curve" for w in warnings)
    assert any(w.startswith(f"{cut / 'summary.json'} is not JSON (") for w in warnings)


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
    with pytest.raises(ReportError, match=r"config\.json tells no dataset and no method; left out"):
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


def test_a_run_without_its_settings_is_left_out_with_a_warning(tmp_path):
    write_run(tmp_path / "whole", config_of("pearson"))
    broken = write_run(tmp_path / "group" / "broken", config_of("cosine"))
    for name in ("config.json", "summary.json"):
        (broken / name).unlink()
    runs, (warning,) = load_runs([tmp_path, tmp_path / "group"])
    assert [run.name for run in runs] == ["whole"]
    assert warning == f"{broken}: holds metrics.jsonl but no config.json; left out"


def test_a_summary_can_stand_for_the_run(tmp_path):
    folder = write_run(tmp_path / "run", config_of("cosine", 3))
    for name in ("config.json", "metrics.jsonl", "environment.json"):
        (folder / name).unlink()
    (run,), (warning,) = load_runs(tmp_path)
    assert (run.method, run.seed, run.status, run.unit) == ("cosine", "3", "finished", "epoch")
    assert run.environment["torch"] == "2.13.0"
    assert warning.endswith("metrics.jsonl is missing; the run has no curve")
    summary = json.loads((folder / "summary.json").read_text())
    del summary["config"]
    (folder / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(ReportError, match=r"summary\.json tells no dataset and no method"):
        load_runs(tmp_path)


def test_the_results_that_we_publish_can_be_reported_on():
    published = Path(__file__).parents[3] / "results" / "h200" / "mnist"
    runs, _ = load_runs(published)
    assert sorted(run.method for run in runs) == ["batch", "cosine", "layer", "pearson", "weight"]
    assert all(run.status == "finished" for run in runs)


def test_settings_larger_than_any_are_left_out(tmp_path):
    write_run(tmp_path / "whole", config_of("pearson"))
    write_run(tmp_path / "large", config_of("n" * 100_000))
    runs, (warning,) = load_runs(tmp_path)
    assert [run.name for run in runs] == ["whole"]
    assert "config.json has 100," in warning


@pytest.mark.parametrize("name", ["config.json", "summary.json"])
def test_a_format_of_another_version_is_left_out_and_named(tmp_path, name):
    write_run(tmp_path / "whole", config_of("pearson"))
    later = write_run(tmp_path / "later", config_of("cosine")) / name
    later.write_text(json.dumps({**json.loads(later.read_text()), "format": 2}))
    runs, (warning,) = load_runs(tmp_path)
    assert re.match(rf"{later} is stored in format 2; .*; left out", warning)
    kept = {run.name: run.status for run in runs}
    assert kept == {"whole": "finished"} | ({} if name == "config.json" else {"later": "running"})


def test_any_storage_can_be_reported_on(tmp_path):
    """What is read is asked of the storage: here, one that keeps everything in a dictionary."""
    folder = write_run(tmp_path / "run", config_of("pearson"))
    kept = {f"a/run/{path.name}": path.read_bytes() for path in folder.iterdir()}

    class Kept:
        def __init__(self, prefix):
            self.prefix = prefix
            self.label = self.key = f"kept:{prefix}"

        def read(self, name):
            return kept.get(self.prefix + name)

        def size(self, name):
            content = self.read(name)
            return None if content is None else len(content)

        def names(self, prefix):
            start = self.prefix + prefix
            return sorted(name[len(self.prefix) :] for name in kept if name.startswith(start))

        def at(self, name):
            return Kept(f"{self.prefix}{name}/")

        def folders(self):
            for folder in ("", "a", "a/run"):
                inside = [name.rpartition("/") for name in kept]
                yield folder, [name for place, _, name in inside if place == folder]

    (run,), warnings = load_runs(Kept(""))
    assert (run.path, run.name, run.method) == ("kept:a/run/", "a/run", "pearson")
    assert len(run.metrics) == 200 and warnings == []
