"""The program under torchrun: two processes on this machine, meeting on loopback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cli_cases import (
    ENVIRONMENT,
    assert_same_result,
    cosnorm,
    is_one_readable_line,
    own_data,
    wait_for,
)
from safetensors.torch import load_file

from cosnorm.study.cli.refusals import said_once
from cosnorm.study.data.errors import DataError
from cosnorm.study.runs.errors import ConfigError, InUseError, RunError, StorageError
from cosnorm.study.train.ranks import Alone, Ended

HERE = Path(__file__).parent
# As torchrun tells a process of itself; for one that comes no further than its settings.
AS_RANK = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
SETTINGS = (
    *("--method", "pearson", "--ema-decay", 0.9, "--optimizer", "momentum", "--lr", 0.1),
    *("--width", 16, "--batch-size", 25, "--device", "cpu", "--epochs", 5, "--precision", "fp64"),
)


def torchrun(*arguments, restarts=0, halts="/nowhere", **options):
    """torchrun, started; `halts` is the folder of `halting`."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    places = os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", "")))
    return subprocess.Popen(
        [
            *(sys.executable, *launcher, "--max-restarts", str(restarts)),
            *("-m", "cosnorm", *map(str, arguments)),
        ],
        env={
            **ENVIRONMENT,
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": places,
            "COSNORM_EXTENSIONS": "halting",
            "COSNORM_HALTS": str(halts),
        },
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options},
    )


def ended(process):
    """The code, the output and what was said on stderr, at the end."""
    with process:
        told = process.communicate(timeout=280)
        return process.returncode, *told


def halting_at(place):
    """The id of the process that has come to `place` and waits there."""
    wait_for(lambda: place.read_text(), 200)
    return int(place.read_text())


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    data = own_data(tmp_path_factory.mktemp("data") / "own.npz")
    return "train", "--dataset", data, *SETTINGS


@pytest.fixture(scope="module")
def two(arguments, tmp_path_factory):
    """The run as two processes make it that nothing happens to."""
    out = tmp_path_factory.mktemp("two")
    code, told, warned = ended(torchrun(*arguments, "--out", out))
    assert code == 0, warned
    assert told.count("done, test error") == 1 and "Warning" not in warned
    return out


@pytest.mark.slow
def test_two_processes_train_as_one(arguments, two, tmp_path):
    alone = cosnorm(*arguments, "--out", tmp_path / "one")
    assert alone.returncode == 0, alone.stderr
    for name in ("model.safetensors", "ema.safetensors"):
        whole, shared = (load_file(out / name) for out in (tmp_path / "one", two))
        assert max(float((shared[key] - whole[key]).abs().max()) for key in whole) < 1e-6


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_that_are_lost_are_replaced(arguments, two, tmp_path):
    """First stopped by its time, then one process is killed, then the other hangs."""
    out, halts = tmp_path / "out", tmp_path / "halts"
    command = (*arguments, "--checkpoint-seconds", 0, "--rank-timeout", 12, "--out", out)
    code, _, told = ended(torchrun(*command, "--max-minutes", 0, restarts=1))
    assert code != 0
    assert told.count("cosnorm: ") == told.count("cosnorm: stopped (the time is up)") == 1

    halts.mkdir()
    killed, stopped = halts / "0-2-1", halts / "1-1-0"
    killed.touch(), stopped.touch()
    process = torchrun(*command, restarts=2, halts=halts)
    os.kill(halting_at(killed), signal.SIGKILL)
    os.kill(halting_at(stopped), signal.SIGSTOP)
    code, _, told = ended(process)
    assert code == 0, told
    assert "has ended, or has not answered for 12 s" in told
    assert_same_result(out, two)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_to_all_processes_saves(arguments, two, tmp_path, number):
    """As SLURM sends it: torchrun hands it on to processes that have it already."""
    out, halts, said = tmp_path / "out", tmp_path / "halts", tmp_path / "said"
    halts.mkdir()
    (place := halts / "0-2-0").touch()
    command = (*arguments, "--checkpoint-seconds", 10_000, "--out", out)
    with said.open("w") as file:
        process = torchrun(*command, halts=halts, stderr=file)
        os.kill(halting_at(place), number)
        wait_for(lambda: place.read_text() == "heard", 200)
        process.send_signal(number)
        wait_for(lambda: said.read_text().count(f"closing signal {number.name}") == 2, 200)
        place.unlink()
        assert ended(process)[0] != 0
    assert f"stopped ({number.name}) and saved in {out}" in said.read_text()
    assert list(out.glob("checkpoints/step-*"))
    code, told, warned = ended(torchrun(*command))
    assert code == 0, warned
    assert "goes on at step" in told
    assert_same_result(out, two)


@pytest.mark.slow
def test_a_second_command_on_the_folder_is_refused(arguments, two, tmp_path):
    out, halts = tmp_path / "out", tmp_path / "halts"
    halts.mkdir()
    (place := halts / "0-1-0").touch()
    first = torchrun(*arguments, "--out", out, halts=halts)
    halting_at(place)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    code, _, told = ended(torchrun(*arguments, "--out", out, restarts=1))
    assert code != 0
    assert told.count("cosnorm: ") == 1
    assert f"{out} is in use by another process: wait for it to end, or choose" in told
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    place.unlink()
    code, _, told = ended(first)
    assert code == 0, told
    assert_same_result(out, two)


REFUSED = {
    "by-all": (("--batch-size", 1), "a batch must have a row for every process; got 1 rows for 2"),
    "by-the-first": (("--lr", 0.2), "holds a run with other settings"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_said_once(arguments, two, tmp_path, case):
    """By whichever process, and not again by those that torchrun starts in their place."""
    more, refusal = REFUSED[case]
    out = two if case == "by-the-first" else tmp_path / "out"
    code, _, told = ended(torchrun(*arguments, *more, "--out", out, restarts=1))
    assert code != 0
    assert told.count("cosnorm: ") == 1 and refusal in told


class Refused(Alone):
    """A rank that tells what it refuses."""

    def __init__(self, is_restarted=False):
        self.is_restarted = is_restarted


FINAL = [ConfigError("no"), DataError("no"), RunError("no"), InUseError("no")]


@pytest.mark.parametrize("error", FINAL, ids=lambda error: type(error).__name__)
def test_errors_that_no_restart_mends(capsys, error):
    let_go = []
    with pytest.raises(Ended) as end, said_once(Refused(), lambda: let_go.append(1)):
        raise error
    assert end.value.code == (2 if isinstance(error, ConfigError) else 1)
    assert capsys.readouterr().err == "cosnorm: no\n" and let_go == [1]


@pytest.mark.parametrize(
    "error, is_restarted",
    [(StorageError("no"), False), (InUseError("no"), True), (RuntimeError("gloo"), False)],
    ids=["storage", "in-use", "meeting"],
)
def test_errors_that_a_restart_may_mend(capsys, error, is_restarted):
    with pytest.raises(type(error)), said_once(Refused(is_restarted), lambda: None):
        raise error
    assert capsys.readouterr().err == ""


def test_a_gpu_that_is_not_there_is_told_of(tmp_path):
    told = cosnorm(
        *("train", "--dataset", "digits", "--method", "cosine", "--epochs", 1, "--device", "cuda"),
        *("--out", tmp_path / "out"),
        env={**AS_RANK, "LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert told.returncode == 1
    assert is_one_readable_line(told.stderr)
    assert "no CUDA device is available to torch: use the device cpu" in told.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("more", [(), ("--shard",)], ids=["whole", "parts"])
def test_two_gpus_train_as_one(arguments, tmp_path, more):
    command = [*arguments, "--out"]
    command[command.index("cpu")] = "cuda"
    assert cosnorm(*command, tmp_path / "one").returncode == 0
    code, _, told = ended(torchrun(*command, tmp_path / "two", *more))
    assert code == 0, told
    assert "their steps are launched one by one" in told
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert max(float((two[key] - one[key]).abs().max()) for key in one) < 1e-6


def test_a_comparison_under_torchrun_is_refused(tmp_path):
    told = cosnorm("compare", "--dataset", "digits", "--out", tmp_path / "out", env=AS_RANK)
    assert told.returncode == 2
    assert is_one_readable_line(told.stderr)
    assert "a comparison runs in one process" in told.stderr
