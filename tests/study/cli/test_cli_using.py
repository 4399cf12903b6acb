"""`predict` and `export` say which parameters they use, and `train` what a folder has lost."""

import numpy as np
import pytest
from cli_cases import is_one_readable_line, own_data
from typer.testing import CliRunner

from cosnorm.study.cli import app


def cosnorm(*arguments):
    """The program in this process, which has loaded torch already."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    data = own_data(tmp_path_factory.mktemp("data") / "own.npz")
    return (
        *("train", "--dataset", data, "--method", "cosine", "--width", 16, "--batch-size", 20),
        *("--lr", 0.1, "--device", "cpu", "--epochs", 2),
    )


def test_a_lost_model(command, tmp_path):
    out, rows = tmp_path / "run", tmp_path / "rows.npy"
    np.save(rows, np.zeros((1, 12), np.float32))
    stopped = cosnorm(*command, "--max-minutes", 0, "--out", out)
    assert stopped.exit_code == 75, stopped.stderr
    early = cosnorm("predict", out, rows)
    assert early.exit_code == 0 and is_one_readable_line(early.stderr)
    assert f"warning: {out} is not over: its checkpoint of step 0 of 20 is used" in early.stderr
    assert cosnorm(*command, "--out", out, "--checkpoint-seconds", 1000).exit_code == 0
    assert cosnorm("predict", out, rows).stderr == ""
    (out / "model.safetensors").unlink()
    for use in (("predict", out, rows), ("export", out)):
        used = cosnorm(*use)
        assert used.exit_code == 0 and is_one_readable_line(used.stderr)
        assert "is over, but without model.safetensors" in used.stderr
        assert "checkpoint of step 0 of 20 is used" in used.stderr
    again = cosnorm(*command, "--out", out)
    assert (again.exit_code, again.stdout) == (1, "")
    assert "delete summary.json and give the training command again" in again.stderr
    assert f"cosnorm: {out} is not whole: model.safetensors missing" in again.stderr
    (out / "summary.json").unlink()
    assert cosnorm(*command, "--out", out).exit_code == 0
    assert (out / "model.safetensors").exists()


def test_a_lost_config_is_restored_for_its_own_run_only(command, tmp_path):
    assert cosnorm(*command, "--out", tmp_path).exit_code == 0
    config = tmp_path / "config.json"
    whole = config.read_bytes()
    config.unlink()
    refused = cosnorm(*command, "--seed", 7, "--out", tmp_path)
    assert refused.exit_code == 1 and is_one_readable_line(refused.stderr)
    assert "as summary.json says (seed 0, now 7)" in refused.stderr
    assert cosnorm(*command, "--out", tmp_path).exit_code == 0
    assert config.read_bytes() == whole
