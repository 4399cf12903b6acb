"""Several processes of torchrun train what one process trains, to rounding."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from experiment_cases import Notes, result
from torchrun_cases import CASES, EXACT_CASES, SHARDED_CASES, made_by

from cosnorm.study.runs.errors import RunWarning
from cosnorm.study.runs.sealing import unseal
from cosnorm.study.train.run import load_run, run

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONPATH": os.pathsep.join(
        [str(HERE.parent), str(HERE.parents[2] / "src"), os.environ.get("PYTHONPATH", "")]
    ),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Every case made by one process."""
    folder = tmp_path_factory.mktemp("alone")
    for name, (config, data) in CASES.items():
        assert run(config, folder / name, dataset=data).status == "done"
    return folder


def copied(folder, place):
    shutil.copytree(folder, place)
    return place


def difference(one, other):
    """The largest between two runs' parameters and statistics."""
    (tensors, _), (other_tensors, _) = result(one), result(other)
    assert tensors.keys() == other_tensors.keys()
    return max(float((tensors[key] - other_tensors[key]).abs().max()) for key in tensors)


@pytest.fixture(scope="module", params=[2, 4])
def together(request, tmp_path_factory):
    """Every case made by several processes."""
    return made_by(request.param, tmp_path_factory.mktemp("together"), ENVIRONMENT)


def assert_equal_to_rounding(one, other):
    assert difference(one, other) < 1e-6, one
    for line, its in zip(result(one)[1], result(other)[1], strict=True):
        assert line.pop("train_loss") == pytest.approx(its.pop("train_loss"), rel=1e-6)
        assert line == its


def test_processes_train_as_one(together, alone):
    for name in EXACT_CASES:
        assert_equal_to_rounding(together / name, alone / name)


def test_processes_that_hold_parts_train_as_one(together, alone):
    """Each stopped after 20 steps and gone on with; one of them began with whole networks."""
    for name in SHARDED_CASES:
        assert_equal_to_rounding(together / f"sharded-{name}", alone / name)


def test_batch_norm_over_a_part_of_the_batch_is_another_function(together, alone):
    assert difference(together / "batch", alone / "batch") > 1e-2


def parts_of(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_one_process_goes_on_with_what_several_held_in_parts(together, alone, tmp_path):
    folder, (config, data) = copied(together / "halfway", tmp_path / "run"), CASES["pearson"]
    with pytest.warns(RunWarning, match="step 20 of 50 is used"):
        loaded = load_run(folder)
    assert {p.dtype for p in loaded.network.parameters()} == {torch.float32}
    assert run(config, folder, dataset=data, checkpoint_seconds=0).status == "done"
    assert_equal_to_rounding(folder, alone / "pearson")
    # The parts went with the checkpoints that were made of them.
    assert parts_of(folder) == [f"step-00000000{step}.safetensors" for step in (48, 49)]


def test_parts_are_sealed_files_and_no_pickles(together):
    steps, shards = {}, {}
    for path in (together / "halfway" / "checkpoints").iterdir():
        tensors, state = unseal(path.read_bytes())
        (steps if path.name.startswith("step-") else shards)[path.name] = tensors, state
    assert len(steps) == 2 and len(shards) >= 4
    saves = {state["shards"]["save"] for _, state in steps.values()}
    assert saves == {state["save"] for _, state in shards.values()}


@pytest.mark.parametrize("damage", ["cut", "gone", "of another save"])
def test_a_checkpoint_with_a_damaged_part_is_passed_over(together, alone, tmp_path, damage):
    folder, (config, data) = copied(together / "halfway", tmp_path / "run"), CASES["pearson"]
    last = folder / "checkpoints" / [n for n in parts_of(folder) if "shard-0000000020" in n][1]
    if damage == "cut":
        last.write_bytes(last.read_bytes()[:-1])
    elif damage == "gone":
        last.unlink()
    else:
        before = [n for n in parts_of(folder) if "shard-0000000012" in n][1]
        last.write_bytes((folder / "checkpoints" / before).read_bytes())
    notes = Notes()
    assert run(config, folder, dataset=data, watcher=notes).status == "done"
    assert notes.begun == [(12, 50)]
    assert "step-0000000020.safetensors is damaged" in " ".join(notes.warnings)
    assert_equal_to_rounding(folder, alone / "pearson")


def test_parameters_in_double_precision_move(alone):
    """Equal parameters are no merit of a network that does not train."""
    for name in CASES:
        tensors, metrics = result(alone / name)
        assert {t.dtype for t in tensors.values()} <= {torch.float64, torch.int64}
        assert metrics[-1]["train_loss"] < 0.9 * metrics[0]["train_loss"], name
