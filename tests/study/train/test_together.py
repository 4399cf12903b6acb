"""Seeds as one: each run as it would be alone, in a folder of its own, stopped and begun again."""

import json
import time

import pytest
import torch
from experiment_cases import (
    Notes,
    StopAfter,
    assert_same_result,
    config_for,
    image_data,
    result,
    vector_data,
)

from cosnorm.methods import METHODS
from cosnorm.study.runs.errors import ConfigError, InUseError
from cosnorm.study.runs.storage import LocalStorage
from cosnorm.study.train import inputs
from cosnorm.study.train.launchers import InProcess, Job
from cosnorm.study.train.learner import Learner
from cosnorm.study.train.run import load_run, run
from cosnorm.study.train.seeds import MOST, check_choice, groups_of, obstacle
from cosnorm.study.train.stack import Stack
from cosnorm.study.train.stopping import GiveUp
from cosnorm.study.train.together import run_together

RATES = {"sgd": 0.1, "momentum": 0.05, "adam": 1e-3, "adamw": 1e-3}


def configs(method="pearson", seeds=3, **settings):
    return [
        config_for(method, seed=seed, **{"precision": "fp64", "lr": 0.1, **settings})
        for seed in range(seeds)
    ]


def jobs_in(place, chosen):
    return [Job(config, LocalStorage(place / config.name)) for config in chosen]


def made(place, chosen, stop=None, watcher=Notes, **options):
    """The runs as one, in `place`; their outcomes and watchers."""
    notes = [watcher() for _ in chosen]
    stop = stop or StopAfter(-1)
    jobs = jobs_in(place, chosen)
    outcomes = run_together(jobs, vector_data(), notes, stop=stop, **options)
    return [outcome.status for outcome in outcomes], notes


def assert_close_results(one, other, tolerance=1e-9):
    (tensors, metrics), (others, other_metrics) = result(one), result(other)
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, others[name], rtol=tolerance, atol=tolerance)
    for line, other_line in zip(metrics, other_metrics, strict=True):
        assert line == pytest.approx(other_line, abs=tolerance)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp64", 1e-9), ("fp32", 1e-4)])
@pytest.mark.parametrize("optimizer", RATES)
@pytest.mark.parametrize("method", METHODS)
def test_the_state_of_each_learner_is_what_it_would_be_alone(
    method, optimizer, precision, tolerance
):
    settings = {"optimizer": optimizer, "lr": RATES[optimizer], "weight_decay": 0.01}
    settings |= {"width": 32, "precision": precision, "ema_decay": 0.9}
    chosen, data = configs(method, **settings), vector_data()
    alone, rows = ([Learner(config, data) for config in chosen] for _ in range(2))
    for learner in (*alone, *rows):  # as if restored in the middle
        learner.batches.begin(0)
        learner.step()
    whole = Stack(rows)
    for step in range(1, 13):
        for learner in (*alone, whole):
            if step % 6 == 0:
                learner.batches.begin(step)
            learner.step()
    for one, row in zip(alone, rows, strict=True):
        assert one.state().keys() == row.state().keys()
        for name, tensor in one.state().items():
            found = row.state()[name]
            torch.testing.assert_close(
                found, tensor, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: n + m
            )


def test_images_augmented_by_each_seeds_own_draws():
    data = image_data(shape=(3, 32, 32))
    chosen = configs("cosine", pipeline="tf_cifar", batch_size=7)
    alone, rows = ([Learner(config, data) for config in chosen] for _ in range(2))
    whole = Stack(rows)
    for learner in (*alone, whole):
        learner.batches.begin(8)
    x, y = whole.batches.next()
    for row, learner in enumerate(alone):
        own_x, own_y = learner.batches.next()
        assert torch.equal(x[row], own_x) and torch.equal(y[row], own_y)


@pytest.mark.parametrize("method", METHODS)
def test_folders_hold_what_single_runs_write(tmp_path, method):
    # Where rates are high and layers narrow, rounding itself grows to what can be seen.
    chosen = configs(method, ema_decay=0.9, width=32, lr=0.02)
    statuses, notes = made(tmp_path / "one", chosen, watch=True)
    assert statuses == ["done"] * 3
    for config, note in zip(chosen, notes, strict=True):
        alone, folder = tmp_path / "alone", tmp_path / "one" / config.name
        run(config, alone / config.name, dataset=vector_data(), watch=True)
        assert_close_results(alone / config.name, folder)
        files = [sorted(p.name for p in f.iterdir()) for f in (alone / config.name, folder)]
        assert files[0] == files[1]
        lines = [
            json.loads((f / "metrics.jsonl").read_text().splitlines()[-1])
            for f in (alone / config.name, folder)
        ]
        assert lines[0].keys() == lines[1].keys() and lines[0]["layers"].keys() == {"1", "2", "3"}
        assert note.begun == [(0, 24)] and note.steps == list(range(1, 25))
        assert [e["step"] for e in note.evaluations] == [6, 12, 18, 24] and note.warnings == []
        environment = json.loads((folder / "environment.json").read_text())
        assert environment["together"] == 3
        assert load_run(folder).probabilities(vector_data().test.x).shape == (30, 3)


@pytest.mark.parametrize("method", ["pearson", "batch"])
def test_stopped_runs_go_on_to_the_same_bits(tmp_path, method):
    chosen = configs(method, optimizer="momentum", ema_decay=0.9)
    made(tmp_path / "whole", chosen)
    for steps in (4, 9):
        statuses, _ = made(tmp_path / "stopped", chosen, StopAfter(steps))
        assert statuses == ["stopped"] * 3
    statuses, notes = made(tmp_path / "stopped", chosen)
    assert statuses == ["done"] * 3
    for config, note in zip(chosen, notes, strict=True):
        assert note.begun == [(13, 24)] and note.warnings == []
        assert_same_result(tmp_path / "whole" / config.name, tmp_path / "stopped" / config.name)


def test_a_kill_between_the_checkpoints_of_two_seeds(tmp_path):
    """All go back to the step that all have; the last bits are those of the whole."""
    chosen = configs()
    made(tmp_path / "whole", chosen)
    made(tmp_path / "cut", chosen, StopAfter(4))
    made(tmp_path / "cut", chosen, StopAfter(3))
    last = tmp_path / "cut" / chosen[2].name / "checkpoints" / "step-0000000007.safetensors"
    last.unlink()  # the one that was not written any more
    statuses, notes = made(tmp_path / "cut", chosen)
    assert statuses == ["done"] * 3
    assert [note.begun for note in notes] == [[(4, 24)]] * 3
    assert "goes back from step 7 to 4" in notes[0].warnings[0]
    assert notes[2].warnings == []
    for config in chosen:
        assert_same_result(tmp_path / "whole" / config.name, tmp_path / "cut" / config.name)


def test_a_damaged_checkpoint_keeps_its_run_from_the_others(tmp_path):
    chosen = configs()
    made(tmp_path, chosen, StopAfter(4))
    (saved,) = (tmp_path / chosen[1].name / "checkpoints").iterdir()
    saved.write_bytes(saved.read_bytes()[:-1])
    statuses, notes = made(tmp_path, chosen)
    assert statuses == ["done"] * 3
    assert [note.begun for note in notes] == [[(4, 24)], [(0, 24)], [(4, 24)]]
    assert "is damaged" in notes[1].warnings[0]
    for config in chosen:
        run(config, tmp_path / "alone" / config.name, dataset=vector_data())
        assert_close_results(tmp_path / "alone" / config.name, tmp_path / config.name)


def test_a_run_begun_alone_says_so_and_is_right(tmp_path):
    chosen = configs()
    run(chosen[1], tmp_path / chosen[1].name, dataset=vector_data(), stop=StopAfter(5))
    statuses, notes = made(tmp_path, chosen)
    assert statuses == ["done"] * 3
    assert [note.begun for note in notes] == [[(0, 24)], [(5, 24)], [(0, 24)]]
    assert "the run goes on in another place (together 1, now 3)" in notes[1].warnings[0]
    run(chosen[1], tmp_path / "alone", dataset=vector_data())
    assert_same_result(tmp_path / "alone", tmp_path / chosen[1].name)  # it went on alone


def test_a_run_of_several_goes_on_alone_and_says_so(tmp_path):
    chosen = configs()
    made(tmp_path, chosen, StopAfter(5))
    notes, folder = Notes(), tmp_path / chosen[0].name
    assert run(chosen[0], folder, dataset=vector_data(), watcher=notes).status == "done"
    assert notes.begun == [(5, 24)] and "together 3, now 1" in notes.warnings[0]
    run(chosen[0], tmp_path / "alone", dataset=vector_data())
    assert_close_results(tmp_path / "alone", folder)


def test_a_seed_that_diverges_leaves_the_others(tmp_path, monkeypatch):
    chosen = configs("none", epochs=2)
    restore = Learner.load

    made(tmp_path, chosen, StopAfter(3))

    def poisoned(self, tensors):
        restore(self, tensors)
        if self.config.seed == 1:
            with torch.no_grad():
                self.network[1].weight.fill_(torch.nan)

    monkeypatch.setattr(Learner, "load", poisoned)
    statuses, notes = made(tmp_path, chosen)
    assert statuses == ["done", "diverged", "done"]
    assert len(notes[1].evaluations) == 1 and notes[1].steps[-1] == 6
    assert len(notes[0].evaluations) == 2 and notes[0].steps[-1] == 12
    monkeypatch.undo()
    for seed in (0, 2):
        run(chosen[seed], tmp_path / "alone" / str(seed), dataset=vector_data())
        assert_close_results(tmp_path / "alone" / str(seed), tmp_path / chosen[seed].name)


def test_runs_that_learn_nothing_are_given_up_one_by_one(tmp_path):
    statuses, _ = made(tmp_path, configs(), give_up=GiveUp(step=6, error=-1.0))
    assert statuses == ["untrained"] * 3


class Slow(Notes):
    def begin(self, *told):
        time.sleep(1)
        super().begin(*told)


def test_what_watchers_take_is_no_runs_time(tmp_path):
    made(tmp_path, configs(), watcher=Slow)
    for folder in tmp_path.iterdir():
        assert json.loads((folder / "summary.json").read_text())["seconds"] < 2


def test_two_commands_at_once(tmp_path):
    chosen = configs()
    with (
        LocalStorage(tmp_path / chosen[2].name).claim(),
        pytest.raises(InUseError, match="is in use by another process"),
    ):
        made(tmp_path, chosen)
    assert not (tmp_path / chosen[0].name).exists()  # nothing was begun
    assert made(tmp_path, chosen)[0] == ["done"] * 3


def test_a_launcher_takes_what_can_train_as_one(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "dataset_for", lambda config, data_dir=None: vector_data())
    chosen = [config_for(m, seed=s, lr=0.1) for s in (0, 1) for m in ("cosine", "none")]
    run(chosen[0], tmp_path / chosen[0].name, dataset=vector_data())  # over before
    notes = {}
    launcher = InProcess(lambda job: notes.setdefault(job.config.name, Notes()), batch_seeds="on")
    outcomes = {job.config.name: out.status for job, out in launcher(jobs_in(tmp_path, chosen))}
    assert outcomes == {config.name: "done" for config in chosen}
    assert all(note.ended == ["done"] for note in notes.values())
    told = [json.loads((tmp_path / c.name / "environment.json").read_text()) for c in chosen]
    assert [each.get("together") for each in told] == [None, 2, None, 2]


def test_after_one_that_was_stopped_no_outcomes_come(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "dataset_for", lambda config, data_dir=None: vector_data())
    launcher = InProcess(stop=StopAfter(5), batch_seeds="on")
    jobs = jobs_in(tmp_path, [*configs(), *configs("cosine")])
    outcomes = [(job.config.name, outcome.status) for job, outcome in launcher(jobs)]
    assert outcomes == [("pearson-seed0", "stopped")]
    assert all((tmp_path / c.name / "checkpoints").exists() for c in configs())
    assert not (tmp_path / "cosine-seed0").exists()


def test_which_runs_train_as_one(tmp_path):
    def groups(chosen, choice):
        return [[j.config.name for j in g] for g in groups_of(jobs_in(tmp_path, chosen), choice)]

    mixed = [config_for(m, seed=s) for s in (0, 1) for m in ("cosine", "none")]
    as_one = [["cosine-seed0", "cosine-seed1"], ["none-seed0", "none-seed1"]]
    alone = [[config.name] for config in mixed]
    assert groups(mixed, "on") == as_one
    assert groups(mixed, "off") == groups(mixed, "auto") == alone  # auto: not on a CPU
    on_gpu = [config.override(device="cuda") for config in mixed]
    assert groups(on_gpu, "auto") == as_one
    assert [len(g) for g in groups(configs(seeds=MOST + 1), "on")] == [MOST, 1]
    other_rates = [config_for("cosine", seed=0, lr=1.0), config_for("cosine", seed=1, lr=2.0)]
    assert len(groups(other_rates, "on")) == 2


@pytest.mark.parametrize(
    ("settings", "need"),
    [
        ({"network": "small_conv"}, "the network mlp"),
        ({"precision": "bf16"}, "--precision fp32, tf32 or fp64"),
        ({"compile": True}, "--no-compile"),
    ],
)
def test_what_stands_in_the_way(settings, need):
    chosen = [config.override(dataset="digits", **settings) for config in configs()]
    assert obstacle(chosen[0]) == need
    check_choice(chosen, "auto")
    with pytest.raises(ConfigError, match=f"only with {need}: leave --batch-seeds out"):
        check_choice(chosen, "on")


def test_sparse_rows_stand_in_the_way():
    config = configs()[0].override(dataset="20news")
    assert obstacle(config) == "--no-sparse"
    assert obstacle(config.override(sparse=False)) is None
