import json
import math
import shutil

import pytest
from experiment_cases import config_for, vector_data

from cosnorm.study.runs.errors import RunError
from cosnorm.study.runs.local import LocalStorage
from cosnorm.study.runs.reading import read_run
from cosnorm.study.runs.record import (
    RunFolder,
    finite,
    sealed_state,
)
from cosnorm.study.runs.result import result_of, window_of
from cosnorm.study.train.run import run


@pytest.fixture
def folder(tmp_path):
    return RunFolder(LocalStorage(tmp_path))


def evaluation(step):
    return {"epoch": 1, "step": step, "train_loss": 0.5, "test_error": 2.0}


def test_metrics_are_lines_and_nan_is_null(folder, tmp_path):
    folder.append_metrics({"epoch": 1, "step": 5, "train_loss": math.nan, "test_error": 2.0})
    folder.append_metrics({"epoch": 2, "step": 10, "train_loss": 1.5, "test_error": math.inf})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["train_loss"] for line in lines] == [None, 1.5]
    assert folder.metrics()[1]["test_error"] is None


def test_truncation_drops_what_will_come_again(folder, tmp_path):
    for step in (5, 10, 15):
        folder.append_metrics(evaluation(step))
    folder.truncate_metrics(20)
    assert [line["step"] for line in folder.metrics()] == [5, 10, 15]
    folder.truncate_metrics(10)
    assert [line["step"] for line in folder.metrics()] == [5, 10]
    folder.append_metrics(evaluation(15))
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 3


def test_a_line_cut_short_by_a_crash(folder, tmp_path):
    folder.append_metrics(evaluation(5))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 10, "tra')
    assert folder.metrics() == [evaluation(5)]
    folder.truncate_metrics(10)
    assert (tmp_path / "metrics.jsonl").read_text() == json.dumps(evaluation(5)) + "\n"


@pytest.mark.parametrize(("steps", "line"), [((5, 10, 10), 3), ((5, 5, 10), 2), ((10, 5), 2)])
def test_evaluations_that_stand_twice_or_out_of_order_are_refused(folder, steps, line):
    for step in steps:
        folder.append_metrics(evaluation(step))
    told = rf"metrics.jsonl, line {line}, is of step {steps[line - 1]} and stands after step"
    with pytest.raises(RunError, match=told):
        folder.metrics()


def test_truncation_to_nothing(folder, tmp_path):
    folder.truncate_metrics(0)
    assert not (tmp_path / "metrics.jsonl").exists()
    folder.append_metrics(evaluation(5))
    folder.truncate_metrics(0)
    assert folder.metrics() == []


def test_a_folder_of_another_run_is_refused(folder):
    folder.begin(config_for(lr=1.0), {"machine": "this"})
    folder.begin(config_for(lr=1.0), {"machine": "that"})
    assert folder.read("environment.json") == {"machine": "this"}
    with pytest.raises(RunError, match=r"other settings \(lr 1.0, now 2.0\): give the same flags"):
        folder.begin(config_for(lr=2.0), {})


def test_strict_and_lenient_reading_agree_on_what_is_whole(folder, tmp_path):
    folder.begin(config_for(), {"cores": 2})
    for step in (1, 2):
        folder.append_metrics(evaluation(step))
    warnings = []
    run = read_run(folder.storage, "name", warnings)
    assert run.config == folder.config().to_dict()
    assert run.metrics == folder.metrics() == [evaluation(1), evaluation(2)]
    assert (run.summary, run.environment, warnings) == (None, {"cores": 2}, [])


@pytest.mark.parametrize("name", ["config.json", "summary.json", "environment.json"])
def test_nested_without_end_is_damage_like_other(folder, tmp_path, name):
    (tmp_path / name).write_text("[" * 60_000)
    with pytest.raises(RunError, match=rf"{name} is not JSON \(.*\): restore or delete it"):
        folder.read(name)


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_damaged_json_is_named(folder, tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(RunError, match=r"config.json .*: restore or delete it"):
        folder.config()


@pytest.mark.parametrize(
    ("length", "count"),
    [
        ({"epochs": 200}, 50),
        ({"epochs": 199}, 50),
        ({"epochs": 100}, 25),
        ({"epochs": 50}, 13),
        ({"epochs": 10}, 3),
        ({"epochs": 1}, 1),
        ({"steps": 100_000}, 10_000),
        ({"steps": 25_000}, 6250),
        ({"steps": 10_000}, 2500),
        ({"steps": 2000}, 500),
    ],
)
def test_the_window(length, count):
    unit = "epoch" if "epochs" in length else "step"
    assert window_of(config_for(**length)) == {"unit": unit, "count": count}


def test_mean_and_population_variance_over_the_last_50_epochs():
    metrics = [
        {"epoch": e, "step": 9 * e, "test_error": 90.0 if e <= 150 else float(e % 2)}
        for e in range(1, 201)
    ]
    result = result_of(config_for(epochs=200), metrics, status="done")
    assert (result["test_error_mean"], result["test_error_variance"]) == (0.5, 0.25)
    assert result["final_test_error"] == 0.0
    assert result["window"]["evaluations"] == 50


def test_a_run_of_50_epochs_is_not_judged_by_its_first():
    metrics = [
        {"epoch": e, "step": 9 * e, "test_error": 90.0 if e <= 37 else 1.0} for e in range(1, 51)
    ]
    result = result_of(config_for(epochs=50), metrics, status="done")
    assert (result["test_error_mean"], result["window"]["evaluations"]) == (1.0, 13)


def test_mean_over_the_last_10000_steps():
    metrics = [
        {"epoch": s / 390, "step": s, "test_error": 1.0 if s > 90_000 else 50.0}
        for s in range(1000, 100_001, 1000)
    ]
    result = result_of(config_for(steps=100_000), metrics, status="done")
    assert (result["test_error_mean"], result["window"]["evaluations"]) == (1.0, 10)


def test_a_diverged_run_has_no_error():
    metrics = [{"epoch": 1, "step": 1, "test_error": None}]
    result = result_of(config_for(epochs=4), metrics, status="diverged")
    assert result["diverged"]
    assert result["test_error_mean"] is result["final_test_error"] is None


def test_finite():
    assert finite({"a": [math.nan, 1.0], "b": (2, "x")}) == {"a": [None, 1.0], "b": [2, "x"]}


def test_reading_needs_no_torch():
    import subprocess
    import sys

    code = "import cosnorm.study.runs.record, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_settings_that_are_damage_or_another_version_are_named(folder, tmp_path):
    for change, told in (({"colour": 1}, "unknown settings colour"), ({"lr": "x"}, "lr must be")):
        (tmp_path / "config.json").write_text(json.dumps({**config_for().to_dict(), **change}))
        with pytest.raises(RunError, match=rf"config.json is damaged or of another .*{told}"):
            folder.config()


WHOLE = {
    "diverged": False,
    "steps": 24,
    "seconds": 1,
    "test_error_mean": 3.5,
    "final_test_error": None,
    "window": {"unit": "epoch", "count": 1},
}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"diverged": "no"}, 'diverged is "no"'),
        ({"steps": None}, "steps is null"),
        ({"test_error_mean": [1]}, r"test_error_mean is \[1\]"),
        ({"window": 3}, "window is 3"),
        ({"steps": "x" * 5000}, 'steps is "x{79}…'),
        ({"window": {"unit": "epoch"}}, r"it has no window\.count"),
    ],
)
def test_a_damaged_summary_is_named(folder, tmp_path, change, told):
    (tmp_path / "summary.json").write_text(json.dumps(WHOLE))
    assert folder.summary() == WHOLE
    (tmp_path / "summary.json").write_text(json.dumps({**WHOLE, **change}))
    with pytest.raises(RunError, match=rf"summary.json is damaged \({told}\): restore it, or del"):
        folder.summary()
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(RunError, match=r"summary.json is damaged \(it has no diverged\)"):
        folder.summary()


@pytest.mark.parametrize(
    "line",
    [
        *("{", "[]", "3", '{"step": 10}'),
        *(json.dumps(evaluation(10) | {key: "x"}) for key in evaluation(10)),
        *(json.dumps(evaluation(10) | {key: None}) for key in ("epoch", "step")),
    ],
)
def test_a_damaged_evaluation_is_named(folder, tmp_path, line):
    folder.append_metrics(evaluation(5))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(f"{line}\n")
    with pytest.raises(RunError, match=r"metrics.jsonl, line 2, is damaged \(.*\): restore"):
        folder.metrics()


@pytest.mark.parametrize("told_by", ["summary.json", "checkpoints/step-", "model.safetensors"])
def test_without_config_json_the_other_files_say_whose_the_folder_is(tmp_path, told_by):
    config, data = config_for(seed=0), vector_data()
    run(config, tmp_path, dataset=data, checkpoint_seconds=0)
    (tmp_path / "config.json").unlink()
    if told_by != "summary.json":
        (tmp_path / "summary.json").unlink()
    if told_by.startswith("checkpoints"):
        (tmp_path / "model.safetensors").unlink()
    elif told_by.startswith("model"):
        shutil.rmtree(tmp_path / "checkpoints")
    before = sorted(path for path in tmp_path.rglob("*"))
    with pytest.raises(RunError, match=rf"as {told_by}.* says \(seed 0, now 7\): give the same"):
        run(config_for(seed=7), tmp_path, dataset=data)
    assert sorted(path for path in tmp_path.rglob("*")) == before
    assert run(config, tmp_path, dataset=data).status == "done"
    assert RunFolder(LocalStorage(tmp_path)).config() == config


def test_an_edited_config_json_does_not_make_a_result_that_of_other_settings(tmp_path):
    run(config_for(seed=0), tmp_path, dataset=vector_data())
    (tmp_path / "config.json").write_text(json.dumps(config_for(seed=7).to_dict()))
    with pytest.raises(RunError, match=r"as summary\.json says \(seed 0, now 7\)"):
        run(config_for(seed=7), tmp_path, dataset=vector_data())


@pytest.mark.parametrize("content", [b"", b"junk", b"\2" + b"\0" * 7 + b"[]", b"\xff" * 20])
def test_a_damaged_sealed_file_tells_nothing(content):
    assert sealed_state(content) == {}
