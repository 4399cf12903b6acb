"""The paper's protocol on real data, where $COSNORM_DATA has it, for a step or an epoch."""

import json
import os
import struct

import numpy as np
import pytest
from cli_cases import cosnorm

from cosnorm.methods import PAPER_METHODS

needs_data = pytest.mark.skipif(
    "COSNORM_DATA" not in os.environ, reason="COSNORM_DATA names no folder with real data"
)


def error_of(folder):
    return json.loads((folder / "summary.json").read_text())["test_error_mean"]


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("method", PAPER_METHODS)
def test_one_epoch_of_mnist(tmp_path, method):
    ended = cosnorm(
        *("train", "--dataset", "mnist", "--method", method, "--epochs", 1, "--seed", 0),
        *("--out", tmp_path / "run"),
        env={"OMP_NUM_THREADS": str(os.cpu_count())},
    )
    assert ended.returncode == 0, ended.stderr
    assert error_of(tmp_path / "run") < 8


@needs_data
@pytest.mark.slow
def test_an_epoch_of_20news(tmp_path):
    ended = cosnorm(
        *("reproduce", "20news", "--methods", "pearson", "--epochs", 2, "--out", tmp_path)
    )
    assert ended.returncode == 0, ended.stderr
    assert error_of(tmp_path / "20news" / "pearson-seed0") < 60
    assert "29.37%" in ended.stdout


@needs_data
def test_cifar_networks_run_the_papers_pipeline(tmp_path):
    ended = cosnorm(
        *("train", "--dataset", "cifar10", "--method", "pearson", "--steps", 3, "--seed", 0),
        *("--network", "small_conv", "--channels", 4, "--width", 8, "--out", tmp_path / "run"),
    )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "run" / "ema.safetensors").exists()


def write_mnist(folder):
    """Four idx files of random digits, as small as the reader takes them."""
    folder.mkdir()
    random = np.random.RandomState(0)
    for part, rows in (("train", 200), ("t10k", 50)):
        images = random.randint(0, 256, (rows, 28, 28)).astype(np.uint8)
        digits = np.resize(np.arange(10, dtype=np.uint8), rows)
        for name, values in ((f"{part}-images-idx3", images), (f"{part}-labels-idx1", digits)):
            head = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
            (folder / f"{name}-ubyte").write_bytes(head + values.tobytes())


def test_a_table_without_data_does_not_cost_the_others(tmp_path):
    write_mnist(tmp_path / "mnist")
    ended = cosnorm(
        *("reproduce", "all", "--methods", "pearson", "--steps", 1, "--network", "mlp"),
        *("--pipeline", "unit_range", "--width", 8, "--out", tmp_path / "out"),
        env={"COSNORM_DATA": str(tmp_path)},
    )
    assert ended.returncode == 1
    told = ended.stderr.splitlines()
    assert told[-1] == (
        "cosnorm: left out for want of data: 20news, cifar10, cifar100, svhn; see above"
    )
    assert len(told) == 5 and "cosnorm: svhn is left out: svhn: " in told[3]
    assert "mnist/pearson-seed0: done" in ended.stdout
    assert "1.39%" in ended.stdout
    assert (tmp_path / "out" / "report" / "index.html").exists()


def test_missing_data_says_where_to_get_it(tmp_path):
    ended = cosnorm(
        *("reproduce", "mnist", "--out", tmp_path / "out"), env={"COSNORM_DATA": str(tmp_path)}
    )
    assert ended.returncode == 1
    assert "cosnorm data fetch mnist" in ended.stderr
    assert not (tmp_path / "out").exists()
