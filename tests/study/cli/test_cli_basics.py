import json
import os
import re
import resource
import subprocess
import sys

import pytest
from cli_cases import ENVIRONMENT, PROGRAM, cosnorm, is_one_readable_line, own_data

from cosnorm import __version__
from cosnorm.study.runs.config import Config


def test_version_and_help():
    assert cosnorm("--version").stdout == f"cosnorm {__version__}\n"
    told = cosnorm("--help")
    assert told.returncode == 0
    for command in (
        "train",
        "compare",
        "reproduce",
        "report",
        "data",
        "bench",
        "export",
        "predict",
    ):
        assert f" {command} " in told.stdout


def test_help_comes_at_once():
    """Half a second of processor time at most: what else the machine does is not ours."""
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*PROGRAM, "--help"], env=ENVIRONMENT, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < 0.5


@pytest.mark.parametrize("command", ["train", "compare", "reproduce", "data fetch"])
def test_help_is_whole_in_80_columns(command):
    told = cosnorm(*command.split(), "--help", env={"COLUMNS": "80"}).stdout
    flags = set(re.findall(r"--[a-z-]+", told))
    settings = {f"--{name.replace('_', '-')}" for name in Config.__dataclass_fields__}
    if command == "train":
        assert flags >= settings | {"--checkpoint-seconds", "--no-keep-checkpoints"}
    assert "…" not in told and "..." not in told
    assert max(map(len, told.splitlines())) <= 80


def test_help_loads_neither_torch_nor_numpy():
    code = (
        "import sys, cosnorm.study.cli; sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train"], "Missing option"),
        (["train", "--dataset", "digits", "--method", "instance", "--epochs", "1"], "'instance'"),
        (["train", "--dataset", "digits", "--method", "cosine"], "either --epochs or --steps"),
        (
            ["train", "--dataset", "digits", "--method", "cosine", "--epochs", "1", "--steps", "1"],
            "either --epochs or --steps",
        ),
        (["train", "--dataset", "digits", "--method", "cosine", "--epochs", "0"], "epochs"),
        (["train", "--dataset", "digits", "--method", "cosine", "--epochs", "x"], "epochs"),
        (
            ["train", "--dataset", "digits", "--method", "cosine", "--epochs", "1", "--lr", "nan"],
            "lr must be above 0",
        ),
        (
            [
                *("train", "--dataset", "digits", "--method", "batch", "--steps", "2"),
                *("--batch-size", "1"),
            ],
            "batch_size must be at least 2 for the method batch",
        ),
        (
            ["train", "--dataset", "digits", "--method", "none", "--steps", "2", "--held-out", "1"],
            "held_out must be at least 0 and below 1; got 1.0",
        ),
        (["compare", "--dataset", "digits", "--methods", "cosine,foo"], "'cosine,foo'"),
        (["compare", "--dataset", "digits", "--seeds", "0"], "seeds"),
        (["reproduce", "imagenet"], "must be one of mnist, .* or all; got 'imagenet'"),
        (["bench", "nothing"], "must be one of layers, .*; got 'nothing'"),
        (["dance"], "dance"),
    ],
)
def test_wrong_usage_is_2(tmp_path, arguments, told):
    wants_out = arguments[0] in ("train", "compare", "reproduce") and len(arguments) > 1
    out = ["--out", tmp_path / "out"] if wants_out else []
    ended = cosnorm(*arguments, *out)
    assert ended.returncode == 2
    assert re.search(told, ended.stderr)
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["linear", "sparse"])
def test_help_after_a_benchmark_is_the_benchmarks(name):
    told = cosnorm("bench", name, "--help")
    assert (told.returncode, told.stderr) == (0, "")
    assert "--rounds" in told.stdout or "--repeats" in told.stdout
    assert "its arguments follow" not in told.stdout


def test_help_of_bench_itself():
    told = cosnorm("bench", "--help")
    assert told.returncode == 0
    said = " ".join(told.stdout.split())
    assert "its arguments follow" in said
    assert "layers, linear, models, network, sparse, training" in said


def test_an_argument_that_a_benchmark_does_not_have_is_2():
    ended = cosnorm("bench", "linear", "--no-such-thing")
    assert ended.returncode == 2
    assert "--no-such-thing" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train", "--dataset", "", "--method", "cosine", "--epochs", 1, "--out", "x"], "dataset"),
        (["train", "--dataset", "digits", "--method", "cosine", "--epochs", 1, "--out", ""], "out"),
        (["compare", "--dataset", "digits", "--epochs", 1, "--out", " "], "out"),
        (["reproduce", "mnist", "--data-dir", ""], "data-dir"),
        (["data", "list", "--data-dir", ""], "data-dir"),
        (["report", ""], "RUN"),
        (["predict", "", "x.npy"], "RUN"),
    ],
)
def test_a_path_that_is_empty_is_2(tmp_path, arguments, told):
    """As of a variable that is not set: it must not stand for the current folder."""
    ended = cosnorm(*arguments, cwd=tmp_path)
    assert ended.returncode == 2
    assert re.search(f"{told}.* is empty|{told}.*: it is empty", ended.stderr)
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_while_the_program_loads_has_no_traceback(tmp_path):
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = cosnorm("--help", env={"PYTHONPATH": paths})
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_failure_is_1_and_one_line(tmp_path):
    missing = cosnorm(
        *("train", "--dataset", tmp_path / "no.npz", "--method", "cosine", "--epochs", 1),
        *("--out", tmp_path / "out"),
    )
    assert missing.returncode == 1
    assert is_one_readable_line(missing.stderr)
    assert "no.npz" in missing.stderr
    assert not (tmp_path / "out").exists()


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "file").write_text("")
    ended = cosnorm(
        *("train", "--dataset", own_data(tmp_path / "own.npz"), "--method", "cosine"),
        *("--epochs", 1, "--out", tmp_path / "file" / "run"),
    )
    assert ended.returncode == 1
    assert is_one_readable_line(ended.stderr)
    assert "Not a directory" in ended.stderr


def test_data_list_and_verify(tmp_path):
    listed = cosnorm("data", "list", "--data-dir", tmp_path)
    assert listed.returncode == 0
    assert "digits" in listed.stdout and "embedded" in listed.stdout
    assert [line for line in listed.stdout.splitlines() if " 0 MB to fetch" in line] == []
    assert "MB to fetch" in listed.stdout
    entries = json.loads(cosnorm("data", "list", "--json", "--data-dir", tmp_path).stdout)
    assert {entry["name"] for entry in entries} >= {"digits", "mnist", "svhn"}
    verified = cosnorm("data", "verify", "mnist", "--data-dir", tmp_path)
    assert verified.returncode == 1
    assert "missing" in verified.stdout
    embedded = cosnorm("data", "verify", "digits", "--data-dir", tmp_path)
    assert (embedded.returncode, embedded.stdout) == (
        0,
        "digits: not a set of files, nothing to check\n",
    )
    assert is_one_readable_line(verified.stderr)


def test_report_without_runs(tmp_path):
    ended = cosnorm("report", tmp_path)
    assert ended.returncode == 1
    assert is_one_readable_line(ended.stderr)
    assert "no run folders" in ended.stderr
