import json
import math
import re
import shutil

import pytest
import torch
from experiment_cases import (
    Notes,
    StopAfter,
    assert_same_result,
    config_for,
    image_data,
    result,
    sparse_data,
    vector_data,
)
from safetensors.torch import load as read_tensors

from cosnorm.methods import METHODS
from cosnorm.study.data import load
from cosnorm.study.runs.errors import RunError
from cosnorm.study.runs.presets import configure
from cosnorm.study.train.learner import Learner
from cosnorm.study.train.run import run

VARIANTS = {
    "plain": ({}, vector_data),
    "momentum": ({"optimizer": "momentum", "lr": 0.1}, vector_data),
    "adam": ({"optimizer": "adam", "lr": 0.01}, vector_data),
    "adamw": ({"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1}, vector_data),
    "average": ({"network": "small_conv", "ema_decay": 0.9}, image_data),
    "batch": ({"method": "batch", "network": "small_conv", "ema_decay": 0.9}, image_data),
    "raw": ({"method": "batch", "ema_decay": 0.9, "ema_statistics": "raw"}, vector_data),
    "sparse": ({"method": "pearson"}, sparse_data),
    "steps": ({"steps": 23, "eval_every": 5}, vector_data),
    "bf16": ({"precision": "bf16"}, vector_data),
    "fp64": ({"precision": "fp64", "method": "batch", "ema_decay": 0.9}, vector_data),
}


def variant(name):
    settings, data = VARIANTS[name]
    return config_for(**settings), data()


def finished(config, data, out, **options):
    outcome = run(config, out, dataset=data, **options)
    assert outcome.status == "done"
    return outcome


@pytest.fixture(scope="module")
def digits():
    return load("digits")


@pytest.mark.parametrize("network", ["mlp", "small_conv"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_digits_at_the_rate_it_is_given(tmp_path, digits, method, network):
    config = configure("digits", method, epochs=12, network=network, width=200, channels=16)
    summary = finished(config, digits, tmp_path / "run").summary
    assert summary is not None
    metrics = result(tmp_path / "run")[1]
    assert metrics[-1]["train_loss"] < 0.7 * metrics[0]["train_loss"]
    assert summary["final_test_error"] < 20


@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_stopped_anywhere_gives_the_same_bits(tmp_path, name):
    config, data = variant(name)
    finished(config, data, tmp_path / "whole")
    for steps in (1, 4, 6, 7, 3):
        stop = StopAfter(steps)
        outcome = run(config, tmp_path / "stopped", dataset=data, stop=stop)
        if outcome.status == "done":
            break
        assert (outcome.status, outcome.reason) == ("stopped", "SIGTERM")
    finished(config, data, tmp_path / "stopped")
    assert_same_result(tmp_path / "whole", tmp_path / "stopped")
    if config.ema_decay:
        names = ("whole/ema.safetensors", "stopped/ema.safetensors")
        one, other = (read_tensors((tmp_path / name).read_bytes()) for name in names)
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_two_runs_of_a_seed_are_one_and_seeds_differ(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        finished(config_for(seed=seed), vector_data(), tmp_path / name)
    assert_same_result(tmp_path / "a", tmp_path / "b")
    assert result(tmp_path / "a")[1] != result(tmp_path / "c")[1]


@pytest.mark.parametrize("name", ["batch", "average", "sparse"])
def test_evaluation_does_not_change_the_training(tmp_path, name):
    config, data = variant(name)
    finished(config, data, tmp_path / "often")
    finished(config.override(eval_every=4), data, tmp_path / "once")
    often, once = result(tmp_path / "often"), result(tmp_path / "once")
    assert (len(often[1]), len(once[1])) == (4, 1)
    assert all(torch.equal(often[0][key], once[0][key]) for key in often[0])


def test_checkpoints_do_not_change_the_training(tmp_path):
    config, data = variant("momentum")
    finished(config, data, tmp_path / "never", checkpoint_seconds=1e9)
    finished(config, data, tmp_path / "always", checkpoint_seconds=0)
    assert_same_result(tmp_path / "never", tmp_path / "always")
    assert not (tmp_path / "never" / "checkpoints").exists()
    assert len(list((tmp_path / "always" / "checkpoints").iterdir())) == 2


def test_checkpoints_can_go_when_the_run_is_over(tmp_path):
    finished(config_for(), vector_data(), tmp_path, checkpoint_seconds=0, keep_checkpoints=False)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_the_metrics(tmp_path):
    notes = Notes()
    config = config_for(epochs=3)
    finished(config, vector_data(), tmp_path, watcher=notes)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["epoch"], line["step"]) for line in lines] == [(1, 6), (2, 12), (3, 18)]
    for line in lines:
        assert 0 <= line["test_error"] <= 100
        assert line["train_loss"] > 0
        assert line["examples_per_second"] > 0
        assert line["seconds"] > 0
    assert (notes.begun, notes.steps) == ([(0, 18)], list(range(1, 19)))
    assert notes.evaluations == lines


def test_train_loss_is_the_mean_since_the_last_evaluation(tmp_path):
    finished(config_for(steps=12, eval_every=1), vector_data(), tmp_path / "each")
    finished(config_for(steps=12, eval_every=5), vector_data(), tmp_path / "some")
    each = [line["train_loss"] for line in result(tmp_path / "each")[1]]
    some = result(tmp_path / "some")[1]
    assert [line["step"] for line in some] == [5, 10, 12]
    means = [sum(each[:5]) / 5, sum(each[5:10]) / 5, sum(each[10:]) / 2]
    assert [line["train_loss"] for line in some] == pytest.approx(means, rel=1e-12)
    assert some[0]["epoch"] == round(5 / 6, 4)


def test_the_summary(tmp_path):
    config, data = variant("average")
    finished(config, data, tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    metrics = result(tmp_path)[1]
    assert summary["final_test_error"] == metrics[-1]["test_error"]
    assert summary["test_error_mean"] == metrics[-1]["test_error"]
    assert (summary["test_error_variance"], summary["diverged"]) == (0, False)
    assert summary["config"] == config.to_dict()
    assert summary["environment"]["torch"] == torch.__version__
    assert summary["data"]["fingerprint"] == data.fingerprint
    assert summary["steps"] == 24
    assert (tmp_path / "ema.safetensors").exists()
    assert all("test_error_raw" in line for line in metrics)


def test_a_diverging_run_is_stopped_and_recorded(tmp_path):
    config = config_for("none", lr=1e30, epochs=5)
    outcome = run(config, tmp_path, dataset=vector_data())
    assert outcome.status == "diverged"
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 1
    assert lines[0]["train_loss"] is lines[0]["test_error"] is None
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["diverged"] and summary["test_error_mean"] is None
    again = run(config, tmp_path, dataset=vector_data())
    assert again.status == "diverged"


def test_a_finished_run_is_not_made_again(tmp_path):
    finished(config_for(), vector_data(), tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    notes = Notes()
    assert run(config_for(), tmp_path, watcher=notes).status == "done"
    assert notes.begun == []
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


def stopped_twice(config, data, folder):
    for steps in (7, 6):
        run(config, folder, dataset=data, stop=StopAfter(steps))
    names = sorted(p.name for p in (folder / "checkpoints").iterdir())
    assert names == ["step-0000000007.safetensors", "step-0000000013.safetensors"]
    return folder / "checkpoints"


@pytest.mark.parametrize("damage", ["truncated", "altered", "emptied", "both"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path, damage):
    config, data = config_for(optimizer="momentum", lr=0.1), vector_data()
    finished(config, data, tmp_path / "whole")
    folder = stopped_twice(config, data, tmp_path / "damaged")
    for path in sorted(folder.iterdir())[0 if damage == "both" else 1 :]:
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        cut = {"truncated": len(content) // 2, "emptied": 0}.get(damage, len(content))
        path.write_bytes(content[:cut])
    notes = Notes()
    finished(config, data, tmp_path / "damaged", watcher=notes)
    assert len(notes.warnings) == (2 if damage == "both" else 1)
    assert "is damaged" in notes.warnings[0]
    assert notes.begun == [(0 if damage == "both" else 7, 24)]
    assert_same_result(tmp_path / "whole", tmp_path / "damaged")


def test_a_checkpoint_of_another_run_is_passed_over_with_a_warning(tmp_path):
    config, data = config_for(optimizer="momentum", lr=0.1), vector_data()
    finished(config, data, tmp_path / "whole")
    mine = stopped_twice(config, data, tmp_path / "mine")
    other = config.override(lr=0.2, seed=5)
    run(other, tmp_path / "other", dataset=data, stop=StopAfter(17))
    shutil.copy(next((tmp_path / "other" / "checkpoints").iterdir()), mine)
    notes = Notes()
    finished(config, data, tmp_path / "mine", watcher=notes)
    (warning,) = notes.warnings
    told = "step-0000000017.safetensors is of a run with other settings (lr 0.2, now 0.1, seed 5"
    assert told in warning
    assert notes.begun == [(13, 24)]
    assert_same_result(tmp_path / "whole", tmp_path / "mine")


def test_final_parameters_put_in_as_a_checkpoint_cost_nothing(tmp_path):
    config, data = config_for(optimizer="momentum", lr=0.1), vector_data()
    finished(config, data, tmp_path / "whole")
    mine = stopped_twice(config, data, tmp_path / "mine")
    shutil.copy(tmp_path / "whole" / "model.safetensors", mine / "step-0000000017.safetensors")
    notes = Notes()
    finished(config, data, tmp_path / "mine", watcher=notes)
    (warning,) = notes.warnings
    assert "step-0000000017.safetensors is damaged: it is whole, but no state to go on" in warning
    assert notes.begun == [(13, 24)]
    assert_same_result(tmp_path / "whole", tmp_path / "mine")


class Disturbed(Notes):
    """Does something to the run folder after a step."""

    def __init__(self, step, disturb):
        super().__init__()
        self.at, self.disturb = step, disturb

    def step(self, step):
        super().step(step)
        if step == self.at:
            self.disturb()


@pytest.mark.parametrize("way", ["moved", "deleted"])
def test_a_folder_that_goes_while_the_run_is_under_way_ends_it(tmp_path, way):
    config, data, out = config_for(), vector_data(), tmp_path / "run"
    finished(config, data, tmp_path / "whole")
    away = {
        "moved": lambda: out.rename(tmp_path / "away"),
        "deleted": lambda: shutil.rmtree(out),
    }[way]
    with pytest.raises(RunError, match=r"run was moved or deleted while it was written to"):
        run(config, out, dataset=data, watcher=Disturbed(13, away), checkpoint_seconds=0)
    assert not out.exists()
    if way == "moved":
        (tmp_path / "away").rename(out)
    finished(config, data, out)
    assert_same_result(tmp_path / "whole", out)


def test_evaluations_that_go_while_the_run_is_under_way_cost_it_its_result(tmp_path):
    config, data, out = config_for(), vector_data(), tmp_path / "run"
    watcher = Disturbed(13, (out / "metrics.jsonl").unlink)
    with pytest.raises(RunError, match=r"lost 2 of the 4 evaluations while .*first: step 6\)"):
        run(config, out, dataset=data, watcher=watcher)
    assert not (out / "summary.json").exists()


def test_evaluations_that_stand_twice_stop_a_resumed_run(tmp_path):
    config, data = config_for(), vector_data()
    run(config, tmp_path, dataset=data, stop=StopAfter(13))
    path = tmp_path / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, lines[-1]]))
    with pytest.raises(RunError, match=r"metrics.jsonl, line 3, is of step 12 and stands after"):
        run(config, tmp_path, dataset=data)
    path.write_text("".join(lines))
    finished(config, data, tmp_path)


def test_a_batch_larger_than_the_data_is_told_of(tmp_path):
    notes = Notes()
    finished(config_for(batch_size=61, epochs=1), vector_data(), tmp_path, watcher=notes)
    (warning,) = notes.warnings
    assert "training part has 60 rows, fewer than the 61 of a batch: every step takes" in warning
    assert notes.begun == [(0, 1)]


def test_a_state_of_another_shape_is_refused(tmp_path):
    learner = Learner(config_for(), vector_data())
    state = {name: tensor.clone() for name, tensor in learner.state().items()}
    name = next(name for name in state if name.endswith("weight"))
    state[name] = state[name][:1]  # which torch would copy to every row
    with pytest.raises(ValueError, match=f"the state does not fit the network: {name}"):
        learner.load(state)


@pytest.mark.parametrize("damage", ["removed", "altered", "all"])
def test_evaluations_that_are_lost_are_told_of(tmp_path, damage):
    config, data = config_for(optimizer="momentum", lr=0.1), vector_data()
    stopped_twice(config, data, tmp_path)
    path = tmp_path / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    altered = lines[0].replace('"test_error": ', '"test_error": "x", "was": ')
    kept = {"removed": lines[1:], "altered": [altered, *lines[1:]], "all": []}[damage]
    path.write_text("".join(kept))
    notes = Notes()
    finished(config, data, tmp_path, watcher=notes)
    (warning,) = notes.warnings
    number = 2 if damage == "all" else 1
    assert f"lacks {number} of the 2 evaluations before step 13 (the first: step 6)" in warning
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert steps == [6, 12, 18, 24][number:]


def test_other_data_is_refused(tmp_path):
    config = config_for()
    run(config, tmp_path, dataset=vector_data(), stop=StopAfter(3))
    with pytest.raises(RunError, match="was begun with other data than clusters is now"):
        run(config, tmp_path, dataset=vector_data(rows=70))


def test_other_data_is_named_by_its_path_where_it_has_one(tmp_path):
    path = tmp_path / "own.csv"
    rows = [f"{i},{'ab'[i % 2]}" for i in range(40)]
    path.write_text("\n".join(["x,y", *rows, ""]))
    config = configure(str(path), "none", epochs=9, width=4)
    run(config, tmp_path / "own", stop=StopAfter(3))
    path.write_text("\n".join(["x,y", *rows[:20], ""]))
    told = f"own was begun with other data than {re.escape(str(path))} is now"
    with pytest.raises(RunError, match=told):
        run(config, tmp_path / "own")


def test_a_run_that_is_over_refuses_other_data_too(tmp_path):
    config = config_for()
    run(config, tmp_path, dataset=vector_data())
    assert run(config, tmp_path, dataset=vector_data()).status == "done"
    with pytest.raises(RunError, match="was begun with other data than clusters is now"):
        run(config, tmp_path, dataset=vector_data(rows=70))


def test_other_settings_are_refused(tmp_path):
    finished(config_for(), vector_data(), tmp_path)
    with pytest.raises(RunError, match=r"other settings \(lr 1.0, now 2.0\)"):
        run(config_for(lr=2.0), tmp_path, dataset=vector_data())


def test_a_full_disk_ends_the_run_and_costs_nothing(tmp_path, monkeypatch):
    import errno
    import os

    config, data = config_for(), vector_data()
    finished(config, data, tmp_path / "whole")
    run(config, tmp_path / "full", dataset=data, stop=StopAfter(8))
    before = {p.name: p.read_bytes() for p in (tmp_path / "full").rglob("*") if p.is_file()}

    def no_room(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(RunError, match="No space left on device; free some space"):
            run(config, tmp_path / "full", dataset=data, checkpoint_seconds=0)
    after = {p.name: p.read_bytes() for p in (tmp_path / "full").rglob("*") if p.is_file()}
    assert after == before
    finished(config, data, tmp_path / "full")
    assert_same_result(tmp_path / "whole", tmp_path / "full")


def test_the_mean_of_the_batch_statistics_is_what_evaluation_uses(tmp_path):
    """Averaged and raw statistics give other errors of the average, and the same training."""
    config, data = variant("raw")
    finished(config, data, tmp_path / "raw")
    finished(config.override(ema_statistics="averaged"), data, tmp_path / "averaged")
    names = ("raw/ema", "averaged/ema", "raw/model")
    contents = [(tmp_path / f"{name}.safetensors").read_bytes() for name in names]
    raw, averaged, model = map(read_tensors, contents)
    assert torch.equal(raw["1.norm.running_mean"], model["1.norm.running_mean"])
    assert not torch.equal(averaged["1.norm.running_mean"], model["1.norm.running_mean"])
    assert torch.equal(averaged["1.weight"], raw["1.weight"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_torch_compile_gives_the_same_training(tmp_path):
    finished(config_for("none", lr=0.1), vector_data(), tmp_path / "eager")
    finished(config_for("none", lr=0.1, compile=True), vector_data(), tmp_path / "compiled")
    eager, compiled = result(tmp_path / "eager"), result(tmp_path / "compiled")
    assert eager[0].keys() == compiled[0].keys()
    for one, other in zip(eager[1], compiled[1], strict=True):
        assert math.isclose(one["train_loss"], other["train_loss"], rel_tol=1e-3)


def switches():
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    precisions = cuda.fp32_precision, cudnn.conv.fp32_precision, cudnn.allow_tf32, cuda.allow_tf32
    return cudnn.benchmark, torch.are_deterministic_algorithms_enabled(), precisions


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_switches_of_torch_are_set_and_put_back(precision):
    from cosnorm.study.train.train import arithmetic

    before, allowed = switches(), precision == "tf32"
    with arithmetic(config_for(deterministic=True, precision=precision)):
        benchmark, determined, precisions = switches()
        assert (benchmark, determined) == (False, True)
        assert [p == "tf32" for p in precisions[:2]] == [allowed] * 2
        # What torch.compile asks, and torch answers only where both ways of asking agree.
        assert precisions[2:] == (allowed, allowed)
        assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")
    assert switches() == before
