"""The paper's protocol on real data, where $COSNORM_DATA has it, for a step or an epoch."""

import json
import os

import pytest
from cli_cases import cosnorm

from cosnorm.experiments.config import PAPER_METHODS

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


def test_missing_data_says_where_to_get_it(tmp_path):
    ended = cosnorm(
        *("reproduce", "mnist", "--out", tmp_path / "out"), env={"COSNORM_DATA": str(tmp_path)}
    )
    assert ended.returncode == 1
    assert "cosnorm data fetch mnist" in ended.stderr
    assert not (tmp_path / "out").exists()
