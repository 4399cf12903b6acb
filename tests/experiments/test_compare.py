import pytest
from experiment_cases import Notes, StopAfter, assert_same_result, config_for, vector_data

from cosnorm.experiments import inputs
from cosnorm.experiments.compare import OneByOne, jobs_of
from cosnorm.experiments.errors import RunError
from cosnorm.experiments.run import run
from cosnorm.experiments.stopping import Stop


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


def launched(jobs, stop=None, **options):
    notes = {}
    launcher = OneByOne(
        lambda job: notes.setdefault(job.out.name, Notes()), stop or Stop(), **options
    )
    return [(job.out.name, outcome.status) for job, outcome in launcher(jobs)], notes


def test_one_after_another_over_data_loaded_once(tmp_path, loads):
    statuses, _ = launched(jobs_of(configs(), tmp_path))
    names = ["cosine-seed0", "cosine-seed1", "none-seed0", "none-seed1"]
    assert statuses == [(name, "done") for name in names]
    assert loads == ["clusters"]
    assert all((tmp_path / name / "summary.json").exists() for name in names)


def test_a_diverged_run_does_not_stop_the_others(tmp_path):
    made = [config_for("none", lr=1e30), config_for("cosine")]
    statuses, _ = launched(jobs_of(made, tmp_path))
    assert statuses == [("none-seed0", "diverged"), ("cosine-seed0", "done")]


def test_no_run_is_begun_where_one_of_the_folders_is_of_another(tmp_path):
    launched(jobs_of([config_for("none", lr=0.5)], tmp_path))
    with pytest.raises(RunError, match=r"none-seed0 holds a run with other settings \(lr 0.5, now"):
        launched(jobs_of([config_for("cosine"), config_for("none")], tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["none-seed0"]


def test_what_is_done_is_left_and_what_is_not_goes_on(tmp_path, loads):
    jobs = jobs_of(configs(), tmp_path / "stopped")
    statuses, _ = launched(jobs, StopAfter(30))
    assert statuses == [("cosine-seed0", "done"), ("cosine-seed1", "stopped")]
    loads.clear()
    statuses, notes = launched(jobs)
    assert [status for _, status in statuses] == ["done"] * 4
    assert notes["cosine-seed0"].begun == []
    assert notes["cosine-seed1"].begun == [(6, 24)]
    launched(jobs_of(configs(), tmp_path / "whole"))
    for job in jobs:
        assert_same_result(tmp_path / "whole" / job.out.name, job.out)
    loads.clear()
    launched(jobs)
    assert loads == []


def test_lost_parameters_keep_no_comparison_from_its_result(tmp_path):
    config, notes = config_for(), Notes()
    run(config, tmp_path / config.name, dataset=vector_data(), keep_checkpoints=False)
    (tmp_path / config.name / "model.safetensors").unlink()
    launch = OneByOne(lambda job: notes, Stop())
    ((_, outcome),) = launch(jobs_of([config], tmp_path))
    assert (outcome.status, outcome.missing) == ("done", ("model.safetensors",))
    assert "which trains anew: no checkpoint is left" in notes.warnings[0]
