"""Whole runs on an object store: the same bits as in a folder, whatever the store does."""

import json

import pytest
import torch
from experiment_cases import Notes, StopAfter, config_for, vector_data
from object_server import BUCKET, Fault
from safetensors.torch import load

from cosnorm import study
from cosnorm.study.claims import study_named
from cosnorm.study.claims.study import Setting, conduct
from cosnorm.study.runs.errors import ConfigError, RunError, RunWarning
from cosnorm.study.runs.logs import logger_named
from cosnorm.study.runs.storage import storage_at
from cosnorm.study.train import inputs
from cosnorm.study.train.compare import compare
from cosnorm.study.train.launchers import InProcess
from cosnorm.study.train.run import load_run, run
from cosnorm.study.use.export import export_run

PLACE = f"s3://{BUCKET}/runs/one"


def result(place):
    """What must not depend on the storage: parameters, and metrics without their times."""
    storage = storage_at(place)
    lines = [json.loads(line) for line in storage.read("metrics.jsonl").splitlines()]
    keys = ("epoch", "step", "train_loss", "test_error", "test_error_raw")
    metrics = [{key: line.get(key) for key in keys} for line in lines]
    return load(storage.read("model.safetensors")), metrics


def assert_same(one, other):
    (tensors, metrics), (others, other_metrics) = result(one), result(other)
    assert metrics == other_metrics and tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, others[name]), name


@pytest.fixture
def own_data(monkeypatch):
    monkeypatch.setattr(inputs, "dataset_for", lambda config, data_dir=None: vector_data())


@pytest.mark.parametrize("fault", [None, Fault(409), Fault(503), Fault(lost="after")], ids=str)
def test_the_same_bits_as_in_a_folder(store, tmp_path, fault):
    config, seen = config_for(ema_decay=0.9), set()

    def first(request):
        key = (request.method, request.key, request.condition, *request.query)
        return None if fault is None or key in seen or seen.add(key) else fault

    run(config, tmp_path, dataset=vector_data())
    store.fault = first
    notes = Notes()
    outcome = run(config, PLACE, dataset=vector_data(), watcher=notes, checkpoint_seconds=0)
    assert outcome.status == "done" and notes.warnings == []
    assert_same(tmp_path, PLACE)
    files = storage_at(PLACE).names("") + storage_at(PLACE).names("checkpoints/")
    local = storage_at(tmp_path)
    run(config, tmp_path, dataset=vector_data(), checkpoint_seconds=0)
    assert set(files) >= set(local.names("")) and len(storage_at(PLACE).names("checkpoints/")) == 2
    again = run(config, PLACE, watcher=(late := Notes()))
    assert again.status == "done" and late.begun == []


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(store, tmp_path):
    config = config_for()
    run(config, tmp_path, dataset=vector_data())
    for steps in (5, 3, 9):
        stop = StopAfter(steps)
        assert run(config, PLACE, dataset=vector_data(), stop=stop).status == "stopped"
    with pytest.warns(RunWarning, match=r"s3://.* is not over: its checkpoint of step 17 of 24 is"):
        load_run(PLACE)
    notes = Notes()
    assert run(config, PLACE, dataset=vector_data(), watcher=notes).status == "done"
    assert notes.begun == [(17, 24)] and notes.warnings == []
    assert_same(tmp_path, PLACE)


def test_an_outage_costs_nothing_but_time_or_the_same_command_again(store, tmp_path, monkeypatch):
    config, left = config_for(), [40]

    def out_of_order(request):
        left[0] -= 1
        return Fault(503) if left[0] < 0 else None

    run(config, tmp_path, dataset=vector_data())
    with monkeypatch.context() as patch:
        patch.setattr("cosnorm.study.runs.objects.PATIENCE_S", 0.05)
        patch.setattr("cosnorm.study.runs.claim.PATIENCE_S", 0.05)
        patch.setattr("cosnorm.study.runs.claim._RELEASE_S", 0.0)
        patch.setenv("COSNORM_LEASE_SECONDS", "0.5")
        store.fault = out_of_order
        with pytest.raises(RunError, match="again and again: give the same command later"):
            run(config, PLACE, dataset=vector_data(), checkpoint_seconds=0)
    store.fault = lambda request: None
    notes = Notes()
    assert run(config, PLACE, dataset=vector_data(), watcher=notes).status == "done"
    assert notes.begun[0][0] > 0
    assert_same(tmp_path, PLACE)


def test_a_damaged_checkpoint_is_passed_over(store, tmp_path):
    config = config_for()
    run(config, tmp_path, dataset=vector_data())
    run(config, PLACE, dataset=vector_data(), stop=StopAfter(9), checkpoint_seconds=0)
    last = store.keys_with("/checkpoints/step-0000000009")[0]
    store.put(last, store.objects[last][0][:-1] + b"x")
    notes = Notes()
    run(config, PLACE, dataset=vector_data(), watcher=notes)
    assert notes.begun == [(8, 24)]
    assert "is damaged: " in notes.warnings[0] and "going back before it" in notes.warnings[0]
    assert_same(tmp_path, PLACE)


def test_a_comparison_its_report_and_what_is_made_of_it(store, tmp_path, own_data):
    place = f"s3://{BUCKET}/many"
    configs = [config_for(m, seed=s) for m in ("cosine", "none") for s in (0, 1)]
    stopped = compare(configs, InProcess(stop=StopAfter(30)), place)
    assert [outcome.status for outcome in stopped.values()] == ["done", "stopped"]
    outcomes = study.compare(configs, storage=place)
    assert [outcome.status for outcome in outcomes.values()] == ["done"] * 4
    study.compare(configs, storage=tmp_path / "here")
    for config in configs:
        assert_same(f"{place}/{config.name}", tmp_path / "here" / config.name)
    files = study.write_report(place, f"{place}/report")
    assert files.page == f"{place}/report/index.html"
    assert store.objects["many/report/index.html"][0].startswith(b"<!DOCTYPE html>")
    assert store.kinds["many/report/index.html"] == "text/html"
    assert [len(group.runs) for group in files.sections[0].groups] == [2, 2]
    both = study.write_report([place, tmp_path / "here"], tmp_path / "report")
    assert [warning.split(":")[0] for warning in both.warnings] == ["s3"] * 4  # each is there twice
    exported = export_run(f"{place}/cosine-seed0", tmp_path / "export")
    assert load((tmp_path / "export" / "model.safetensors").read_bytes())
    assert exported.labels == str(tmp_path / "export" / "labels.json")
    assert study.load_run(f"{place}/none-seed1").config == configs[3]


def test_a_report_comes_out_of_what_is_there(store, tmp_path):
    """Of three runs, one has lost its manifest's form, one a part of its metrics."""
    for seed in range(3):
        run(config_for(seed=seed), f"s3://{BUCKET}/many/{seed}", dataset=vector_data())
    store.put("many/1/.run/manifest.json", b"{")
    lost = next(key for key in store.keys_with("/metrics.jsonl") if key.startswith("many/2/"))
    store.put(lost, b"something else")
    files = study.write_report(f"s3://{BUCKET}/many", tmp_path / "report")
    assert [len(group.runs) for group in files.sections[0].groups] == [2]
    first, second = files.warnings
    assert first.startswith(f"s3://{BUCKET}/many/1/.run/manifest.json is damaged (JSONDecodeError")
    assert first.endswith("; left out")
    assert "many/2/metrics.jsonl is damaged: the checksum" in second
    assert second.endswith("; the run has no curve")


def test_settings_that_do_not_fit_leave_the_place_free(store):
    config = config_for(network="small_conv")
    with pytest.raises(Exception, match="image"):
        run(config, PLACE, dataset=vector_data())
    assert storage_at(PLACE).names("") == []
    assert run(config_for(), PLACE, dataset=vector_data()).status == "done"
    with pytest.raises(RunError, match=r"s3://runs/runs/one holds a run with other settings \(lr"):
        run(config_for(lr=2.0), PLACE, dataset=vector_data())


def test_a_study_on_an_object_store(store, tmp_path):
    setting = Setting(epochs=1, seeds=1, width=8, methods=("cosine", "none"))
    there = conduct(study_named("variance"), setting, f"s3://{BUCKET}/study")
    here = conduct(study_named("variance"), setting, tmp_path)
    assert there.findings == here.findings
    assert there.files[0] == f"s3://{BUCKET}/study/variance.json"
    told = []
    conduct(study_named("variance"), setting, f"s3://{BUCKET}/study", tell=told.append)
    assert told == []


def test_logs_are_files_of_this_machine(store):
    with pytest.raises(ConfigError, match="--log tensorboard writes files of this machine, and s3"):
        logger_named("tensorboard", PLACE)


def test_what_a_run_costs(store):
    """In requests, as docs/scaling.md tells."""

    def asked(epochs, **options):
        store.log.clear()
        place = f"{PLACE}/{epochs}/{len(options)}"
        run(config_for(epochs=epochs), place, dataset=vector_data(), **options)
        return len(store.log)

    short, long = (asked(epochs, checkpoint_seconds=1e9) for epochs in (4, 36))
    assert 3 < (long - short) / 32 <= 4.5  # for an evaluation
    assert 20 < short - 4 * 4 <= 30  # to begin and to end
    saved = asked(4, checkpoint_seconds=0, keep_checkpoints=True)  # after each of 24 steps
    assert 3 < (saved - short) / 24 <= 4
