"""The program under torchrun: two processes on this machine, meeting on loopback."""

import json
import subprocess
import sys

import pytest
import torch
from cli_cases import ENVIRONMENT, cosnorm, is_one_readable_line, own_data
from safetensors.torch import load_file

ARGUMENTS = ("--width", 16, "--batch-size", 20, "--lr", 0.1, "--device", "cpu", "--epochs", 2)


def torchrun(*arguments):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    return subprocess.run(
        [sys.executable, *launcher, "-m", "cosnorm", *map(str, arguments)],
        env={**ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=200,
    )


def lines_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path):
    data = own_data(tmp_path / "own.npz")
    command = (
        *("train", "--dataset", data, "--method", "pearson", "--ema-decay", 0.9, *ARGUMENTS),
        *("--optimizer", "momentum"),
    )
    assert cosnorm(*command, "--out", tmp_path / "one").returncode == 0
    stopped = torchrun(*command, "--out", tmp_path / "two", "--max-minutes", 0)
    assert stopped.returncode != 0
    assert stopped.stderr.count("cosnorm: stopped (the time is up)") == 1
    ended = torchrun(*command, "--out", tmp_path / "two")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("done, test error") == 1
    one, two = lines_of(tmp_path / "one"), lines_of(tmp_path / "two")
    assert [line["step"] for line in two] == [line["step"] for line in one]
    for mine, theirs in zip(two, one, strict=True):
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-5)
        assert mine["test_error"] == pytest.approx(theirs["test_error"], abs=0.6)
    for name in ("model.safetensors", "ema.safetensors"):
        whole, shared = (load_file(tmp_path / out / name) for out in ("one", "two"))
        for key, tensor in whole.items():
            torch.testing.assert_close(shared[key], tensor, rtol=1e-3, atol=1e-4)


def test_a_comparison_under_torchrun_is_refused(tmp_path):
    ended = cosnorm(
        *("compare", "--dataset", "digits", "--out", tmp_path / "out"),
        env={"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "RANK": "0"},
    )
    assert ended.returncode == 2
    assert is_one_readable_line(ended.stderr)
    assert "a comparison runs in one process" in ended.stderr
