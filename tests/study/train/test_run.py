import json
from contextlib import contextmanager

import pytest
import torch
from experiment_cases import (
    Notes,
    StopAfter,
    assert_same_result,
    config_for,
    image_data,
    sparse_data,
    vector_data,
)
from safetensors.torch import load_file

import cosnorm.study
from cosnorm.study.runs.errors import RunError, RunWarning
from cosnorm.study.runs.sealing import seal, unseal
from cosnorm.study.runs.storage import LocalStorage
from cosnorm.study.train.run import load_run, run
from cosnorm.study.train.stopping import Stop


def test_three_lines_load_a_run(tmp_path):
    data = image_data()
    run(config_for(network="small_conv", epochs=8, width=32, channels=16), tmp_path, dataset=data)
    loaded = cosnorm.study.load_run(tmp_path)
    names = loaded.predict(data.test.x)
    assert set(names) <= {"class 0", "class 1", "class 2"}
    wrong = sum(name != f"class {k}" for name, k in zip(names, data.test.y.tolist(), strict=True))
    assert loaded.summary is not None
    assert loaded.summary["final_test_error"] == pytest.approx(100 * wrong / len(data.test))


def test_the_average_is_what_is_loaded(tmp_path):
    config = config_for(network="small_conv", ema_decay=0.99)
    run(config, tmp_path, dataset=image_data())
    average, last = load_run(tmp_path), load_run(tmp_path, averaged=False)
    one, other = (dict(r.network.named_parameters())["0.weight"] for r in (average, last))
    assert not torch.equal(one, other)


@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_a_run_that_is_not_over_is_loaded_from_its_checkpoint(tmp_path, ema_decay):
    config, data = config_for(ema_decay=ema_decay), vector_data()
    run(config, tmp_path, dataset=data, stop=StopAfter(5))
    with pytest.warns(RunWarning, match=r"is not over: its checkpoint of step 5 of 24 is used"):
        loaded = load_run(tmp_path)
    assert loaded.summary is None
    assert loaded.probabilities(data.test.x).shape == (30, 3)


def test_a_run_on_sparse_rows_takes_dense_and_sparse_ones(tmp_path):
    data = sparse_data()
    run(config_for("pearson"), tmp_path, dataset=data)
    loaded = load_run(tmp_path)
    assert loaded.predict(data.test.x) == loaded.predict(data.test.x.to_dense())


def test_wrong_rows_are_refused(tmp_path):
    run(config_for(network="small_conv", epochs=1), tmp_path, dataset=image_data())
    loaded = load_run(tmp_path)
    with pytest.raises(ValueError, match=r"shape \(N, 1 × 8 × 8\), as in training; got \(2, 64\)"):
        loaded.predict(torch.zeros(2, 64))
    with pytest.raises(
        ValueError, match=r"images must be uint8, 0 to 255, as in .* torch\.float32"
    ):
        loaded.predict(torch.zeros(2, 1, 8, 8))


def test_what_is_no_run_or_has_no_parameters(tmp_path):
    with pytest.raises(RunError, match=r"is no run folder: it has no config\.json"):
        load_run(tmp_path)
    run(config_for(epochs=1), tmp_path, dataset=vector_data())
    (tmp_path / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(RunError, match=r"model\.safetensors is damaged"):
        load_run(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(RunError, match="has no parameters"):
        load_run(tmp_path)


@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_lost_parameters_of_a_run_that_is_over_are_told_of(tmp_path, ema_decay):
    config, data = config_for(ema_decay=ema_decay), vector_data()
    run(config, tmp_path, dataset=data, stop=StopAfter(5))
    run(config, tmp_path, dataset=data, checkpoint_seconds=1000)
    expected, name = load_run(tmp_path), "ema.safetensors" if ema_decay else "model.safetensors"
    whole = (tmp_path / "model.safetensors").read_bytes()
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    notes = Notes()
    outcome = run(config, tmp_path, dataset=data, watcher=notes)
    assert outcome.status == "done" and name in outcome.missing
    assert f"{name}: restore what is missing from a copy, or delete summary" in notes.warnings[0]
    assert "goes on from the last checkpoint" in notes.warnings[0]
    with pytest.warns(RunWarning, match=rf"is over, but .*{name}.*checkpoint of step 5 of 24 is"):
        early = load_run(tmp_path)
    assert not torch.equal(early.probabilities(data.test.x), expected.probabilities(data.test.x))
    (tmp_path / "summary.json").unlink()
    assert run(config, tmp_path, dataset=data).missing == ()
    assert (tmp_path / "model.safetensors").read_bytes() == whole
    after = load_run(tmp_path)
    assert torch.equal(after.probabilities(data.test.x), expected.probabilities(data.test.x))


def test_a_lost_average_is_told_of(tmp_path):
    run(config_for(ema_decay=0.9), tmp_path, dataset=vector_data())
    (tmp_path / "ema.safetensors").unlink()
    with pytest.warns(
        RunWarning, match=r"has no ema\.safetensors: model\.safetensors is used, the"
    ):
        load_run(tmp_path)
    load_run(tmp_path, averaged=False)


@pytest.mark.parametrize("setting", [{"method": "batch"}, {"lr": 3.0}, {"width": 9}])
def test_parameters_of_other_settings_are_refused(tmp_path, setting):
    run(config_for(), tmp_path, dataset=vector_data())
    (tmp_path / "config.json").write_text(json.dumps(config_for(**setting).to_dict()))
    told = next(iter(setting))
    with pytest.raises(RunError, match=rf"model\.safetensors is of a run with other .* \({told} "):
        load_run(tmp_path)


def test_parameters_that_do_not_fit_are_named_in_a_line(tmp_path):
    run(config_for(), tmp_path, dataset=vector_data())
    path = tmp_path / "model.safetensors"
    tensors, state = unseal(path.read_bytes())
    del state["config"]  # as earlier versions wrote it
    path.write_bytes(seal(tensors, state))
    load_run(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config_for(width=9).to_dict()))
    with pytest.raises(RunError, match=r"model\.safetensors does not fit the network of .*config"):
        load_run(tmp_path)
    path.write_bytes(seal(tensors, {}))
    with pytest.raises(RunError, match=r"model\.safetensors holds no parameters of a run; restore"):
        load_run(tmp_path)


def test_a_device_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RunError, match="no CUDA device is available to torch: use the device cpu"):
        run(config_for(device="cuda"), tmp_path / "run", dataset=vector_data())
    assert not (tmp_path / "run").exists()


def test_missing_data_leaves_no_folder(tmp_path):
    from cosnorm.study.data import DataError

    with pytest.raises(DataError, match="not a known data set"):
        run(config_for(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_goes_on_in_another_place_is_warned(tmp_path):
    config, data = config_for(), vector_data()
    run(config, tmp_path, dataset=data, stop=StopAfter(5))
    before = json.loads((tmp_path / "environment.json").read_text())
    (tmp_path / "environment.json").write_text(json.dumps({**before, "threads": 77}))
    notes = Notes()
    assert run(config, tmp_path, dataset=data, watcher=notes).status == "done"
    assert len(notes.warnings) == 1
    assert "another place (threads 77, now" in notes.warnings[0]


def test_settings_that_cannot_work_do_not_keep_the_folder(tmp_path):
    with pytest.raises(ValueError, match="vgg with pool='valid' needs images of 22×22"):
        run(config_for(network="vgg", pool="valid"), tmp_path, dataset=image_data())
    with pytest.raises(ValueError, match=r"the method batch needs at least 2 rows .* has 1"):
        run(config_for("batch"), tmp_path, dataset=vector_data(rows=1))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="vgg with pool='valid' needs images of 22×22"):
        run(config_for(network="vgg", pool="valid"), tmp_path / "new", dataset=image_data())
    assert not (tmp_path / "new").exists()
    assert run(config_for(), tmp_path, dataset=vector_data()).status == "done"


def test_a_failure_after_the_first_result_keeps_the_folder(tmp_path):
    class Failing(Notes):
        def evaluation(self, evaluation):
            raise OSError("no reader")

    config = config_for()
    with pytest.raises(OSError, match="no reader"):
        run(config, tmp_path, dataset=vector_data(), watcher=Failing())
    with pytest.raises(RunError, match="holds a run with other settings"):
        run(config_for("batch"), tmp_path, dataset=vector_data())
    assert run(config, tmp_path, dataset=vector_data()).status == "done"


def test_a_damaged_summary_costs_nothing(tmp_path):
    config, data = config_for(), vector_data()
    run(config, tmp_path / "whole", dataset=data)
    run(config, tmp_path / "damaged", dataset=data, checkpoint_seconds=0)
    (tmp_path / "damaged" / "summary.json").write_text("{}")
    with pytest.raises(RunError, match=r"summary.json is damaged"):
        run(config, tmp_path / "damaged", dataset=data)
    (tmp_path / "damaged" / "summary.json").unlink()
    assert run(config, tmp_path / "damaged", dataset=data).status == "done"
    assert_same_result(tmp_path / "whole", tmp_path / "damaged")


def test_damaged_parameters_can_be_made_again_as_the_message_says(tmp_path):
    config, data = config_for(), vector_data()
    run(config, tmp_path / "whole", dataset=data)
    folder = tmp_path / "damaged"
    run(config, folder, dataset=data)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    advice = "is damaged: .*; restore it .* or delete it and summary.json and give the training"
    with pytest.raises(RunError, match=rf"model\.safetensors {advice}"):
        load_run(folder)
    path.unlink()
    (folder / "summary.json").unlink()
    assert run(config, folder, dataset=data).status == "done"
    assert_same_result(tmp_path / "whole", folder)


def test_a_run_in_another_thread(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as threads:
        outcome = threads.submit(run, config_for(), tmp_path / "thread", dataset=vector_data())
        assert outcome.result(60).status == "done"
        stopped = threads.submit(
            run, config_for(), tmp_path / "late", dataset=vector_data(), stop=Stop(0)
        )
        assert stopped.result(60).reason == "max_minutes"
    run(config_for(), tmp_path / "main", dataset=vector_data())
    assert_same_result(tmp_path / "main", tmp_path / "thread")


def test_a_run_that_another_process_made_meanwhile_is_not_made_again(tmp_path):
    """The other one ends between our look at the folder and our claim to it."""
    config, data = config_for(), vector_data()

    class Claimed(LocalStorage):
        @contextmanager
        def claim(self):
            run(config, tmp_path, dataset=data, keep_checkpoints=False)
            before.append((tmp_path / "metrics.jsonl").read_bytes())
            with super().claim():
                yield

    before: list[bytes] = []
    outcome = run(config, Claimed(tmp_path), dataset=data)
    assert outcome.status == "done"
    assert [(tmp_path / "metrics.jsonl").read_bytes()] == before


@pytest.mark.parametrize("data", [vector_data, sparse_data])
def test_a_run_in_double_precision_predicts_in_single(tmp_path, data):
    rows = data()
    run(config_for(precision="fp64", ema_decay=0.9), tmp_path, dataset=rows)
    tensors = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float64}
    loaded = load_run(tmp_path)
    assert {p.dtype for p in loaded.network.parameters()} == {torch.float32}
    names = loaded.predict(rows.test.x)
    wrong = sum(name != rows.classes[k] for name, k in zip(names, rows.test.y, strict=True))
    assert loaded.summary is not None
    assert 100 * wrong / len(rows.test) == pytest.approx(loaded.summary["final_test_error"])
