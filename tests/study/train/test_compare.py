import json
import pickle

import pytest
from experiment_cases import Notes, StopAfter, assert_same_result, config_for, vector_data

from cosnorm import study
from cosnorm.study.runs.errors import ConfigError, RunError
from cosnorm.study.runs.local import LocalStorage
from cosnorm.study.runs.storage import storage_at
from cosnorm.study.train import inputs
from cosnorm.study.train.compare import compare
from cosnorm.study.train.launchers import InProcess, Job
from cosnorm.study.train.run import run


@pytest.fixture(autouse=True)
def loads(monkeypatch):
    """Every time that data is loaded."""
    calls = []

    def loaded(config, data_dir=None):
        calls.append(config.dataset)
        return vector_data()

    monkeypatch.setattr(inputs, "dataset_for", loaded)
    return calls


def configs(**settings):
    return [config_for(m, seed=s, **settings) for m in ("cosine", "none") for s in (0, 1)]


NAMES = ["cosine-seed0", "cosine-seed1", "none-seed0", "none-seed1"]


def launched(configs, storage, stop=None, **options):
    notes = {}
    launcher = InProcess(
        lambda job: notes.setdefault(job.config.name, Notes()), stop=stop, **options
    )
    outcomes = compare(configs, launcher, storage)
    return {name: outcome.status for name, outcome in outcomes.items()}, notes


def test_one_after_another_over_data_loaded_once(tmp_path, loads):
    statuses, notes = launched(configs(), tmp_path)
    assert list(statuses.items()) == [(name, "done") for name in NAMES]
    assert loads == ["clusters"]
    assert all((tmp_path / name / "summary.json").exists() for name in NAMES)
    assert [notes[name].ended for name in NAMES] == [["done"]] * 4


def test_the_library_compares_and_reports_without_the_command_line(tmp_path):
    outcomes = study.compare(configs(), storage=tmp_path)
    assert list(outcomes) == NAMES
    summary = json.loads((tmp_path / "cosine-seed1" / "summary.json").read_text())
    assert outcomes["cosine-seed1"].summary["test_error_mean"] == summary["test_error_mean"]
    files = study.write_report(tmp_path, tmp_path / "report")
    assert [len(group.runs) for group in files.sections[0].groups] == [2, 2]


def test_any_launcher_and_any_storage_serve(tmp_path):
    """A launcher of one's own, which goes backwards, over a storage that counts its writes."""

    class Counting(LocalStorage):
        written = 0

        def at(self, name):
            return Counting(self.root / name)

        def write(self, name, content):
            Counting.written += 1
            super().write(name, content)

    def backwards(jobs):
        for job in reversed(jobs):
            yield job, run(job.config, job.storage, dataset=vector_data())

    outcomes = study.compare(configs(), backwards, Counting(tmp_path))
    assert list(outcomes) == NAMES[::-1]
    assert Counting.written >= 4 * 4
    assert study.load_run(Counting(tmp_path / NAMES[0])).config == configs()[0]


def test_a_job_can_be_made_again_in_another_process(tmp_path):
    job = Job(configs()[0], LocalStorage(tmp_path / "a").at("b"))
    again = pickle.loads(pickle.dumps(job))
    assert again.config == job.config
    again.storage.write("x", b"1")
    assert storage_at(job.storage.label).read("x") == b"1"


def test_two_runs_of_one_name_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"a seed of its own; got cosine-seed0 more than once"):
        compare([config_for(lr=1.0), config_for(lr=2.0)], storage=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_diverged_run_does_not_stop_the_others(tmp_path):
    made = [config_for("none", lr=1e30), config_for("cosine")]
    statuses, _ = launched(made, tmp_path)
    assert statuses == {"none-seed0": "diverged", "cosine-seed0": "done"}


def test_no_run_is_begun_where_one_of_the_folders_is_of_another(tmp_path):
    launched([config_for("none", lr=0.5)], tmp_path)
    with pytest.raises(RunError, match=r"none-seed0 holds a run with other settings \(lr 0.5, now"):
        launched([config_for("cosine"), config_for("none")], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["none-seed0"]


def test_what_is_done_is_left_and_what_is_not_goes_on(tmp_path, loads):
    statuses, _ = launched(configs(), tmp_path / "stopped", StopAfter(30))
    assert statuses == {"cosine-seed0": "done", "cosine-seed1": "stopped"}
    loads.clear()
    statuses, notes = launched(configs(), tmp_path / "stopped")
    assert list(statuses.values()) == ["done"] * 4
    assert notes["cosine-seed0"].begun == []
    assert notes["cosine-seed1"].begun == [(6, 24)]
    launched(configs(), tmp_path / "whole")
    for name in NAMES:
        assert_same_result(tmp_path / "whole" / name, tmp_path / "stopped" / name)
    loads.clear()
    launched(configs(), tmp_path / "stopped")
    assert loads == ["clusters"], "once, to see that it has not changed"


def test_lost_parameters_keep_no_comparison_from_its_result(tmp_path):
    config = config_for()
    run(config, tmp_path / config.name, dataset=vector_data(), keep_checkpoints=False)
    (tmp_path / config.name / "model.safetensors").unlink()
    notes = Notes()
    outcome = compare([config], InProcess(lambda job: notes), tmp_path)[config.name]
    assert (outcome.status, outcome.missing) == ("done", ("model.safetensors",))
    assert "which trains anew: no checkpoint is left" in notes.warnings[0]
