"""What users meet at the edges: options that do nothing, names that are not text, completion."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from cli_cases import cosnorm, is_one_readable_line, own_data

from cosnorm.study.cli.configs import check_used
from cosnorm.study.cli.failures import _told
from cosnorm.study.cli.showing import shown
from cosnorm.study.runs.errors import ConfigError
from cosnorm.study.runs.presets import configure

IDLE = [
    ({"tfidf": "l2"}, "documents: 20news, or a folder of texts"),
    ({"min_df": 2}, "documents"),
    ({"sparse": True}, "documents and the network mlp"),
    ({"svhn_extra": False}, "the data set svhn"),
    ({"image_size": 8}, "a folder of images"),
    ({"momentum": 0.5}, "the optimizer momentum"),
    ({"channels": 8}, "a network of convolutions"),
    ({"pool": "valid", "network": "small_conv"}, "the network vgg"),
    ({"flip": False}, "the pipeline tf_cifar"),
    ({"bn_momentum": 0.2}, "the method batch"),
    ({"bn_eps": 1e-3}, "the method batch"),
    ({"ema_statistics": "raw"}, "the method batch and an average"),
    ({"precision": "tf32", "device": "cpu"}, "the device cuda"),
]


@pytest.mark.parametrize(("settings", "told"), IDLE)
def test_a_setting_that_does_nothing_is_refused(settings, told):
    config = configure("digits", "cosine", **settings)
    with pytest.raises(ConfigError, match=f"does nothing here, as it needs {told}"):
        check_used([config], settings)


@pytest.mark.parametrize("settings", [{"scale": "fixed"}, {"scale_start": 2.0}])
def test_a_scale_is_refused_where_no_method_has_one(settings):
    plain, scaled = (configure("digits", method, **settings) for method in ("none", "batch"))
    with pytest.raises(ConfigError, match="as it needs a method whose last layer is scaled"):
        check_used([plain], settings)
    check_used([plain, scaled], settings)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("train", "--method", "batch", "--dataset", "digits", "--sync-batch-norm"),
            "--sync-batch-norm does nothing here, as it is for processes of torchrun",
        ),
        (
            ("compare", "--dataset", "digits", "--sync-batch-norm"),
            "--sync-batch-norm does nothing here, as a run of a comparison has one process",
        ),
        (
            ("compare", "--dataset", "digits", "--batch-seeds", "on"),
            "there is one seed: give --seeds 2 or more, or leave --batch-seeds out",
        ),
        (
            ("compare", "--dataset", "digits", "--data-dir", "."),
            "--data-dir does nothing here, as it is for published data sets and digits is",
        ),
        (
            ("compare", "--dataset", "own.csv", "--data-dir", "."),
            "--data-dir does nothing here, as it is for published data sets and your own data",
        ),
        (
            ("reproduce", "mnist", "--data-dir", "/nonexistent"),
            "--data-dir must be a folder; there is none at /nonexistent: name the one that",
        ),
    ],
)
def test_options_that_do_nothing_or_name_nothing_are_refused(tmp_path, arguments, told):
    ended = cosnorm(*arguments, "--epochs", 1, "--device", "cpu", "--out", tmp_path / "out")
    assert ended.returncode == 2
    assert is_one_readable_line(ended.stderr)
    assert told in ended.stderr
    assert not (tmp_path / "out").exists()


USED = [
    ("20news", "cosine", {"tfidf": "l2", "min_df": 2, "sparse": True}),
    ("svhn", "cosine", {"svhn_extra": False, "flip": True, "channels": 8, "pool": "valid"}),
    ("digits", "cosine", {"optimizer": "momentum", "momentum": 0.5, "width": 10}),
    ("digits", "batch", {"bn_momentum": 0.2, "ema_decay": 0.9, "ema_statistics": "raw"}),
]


@pytest.mark.parametrize(("dataset", "method", "settings"), USED)
def test_a_setting_that_does_something_is_taken(dataset, method, settings):
    config = configure(dataset, method, **settings)
    check_used([config], settings)
    check_used([configure("digits", "none"), config], settings)  # in one run of several


def test_options_that_do_nothing_are_wrong_usage(tmp_path):
    ended = cosnorm(
        *("train", "--dataset", "digits", "--method", "cosine", "--epochs", 1, "--tfidf", "l2"),
        *("--out", tmp_path / "out"),
    )
    assert ended.returncode == 2
    assert is_one_readable_line(ended.stderr)
    assert "--tfidf does nothing here" in ended.stderr
    assert not (tmp_path / "out").exists()


def test_paths_that_are_not_text_keep_their_report(tmp_path):
    data = os.fsdecode(os.fsencode(tmp_path) + b"/own-\xff.npz")
    own_data(tmp_path / "own.npz").rename(data)
    out = os.fsdecode(os.fsencode(tmp_path) + b"/out-\xfe")
    arguments = (
        *("compare", "--dataset", data, "--methods", "cosine", "--epochs", 1, "--out", out),
        *("--width", 8, "--device", "cpu"),
    )
    ended = cosnorm(*arguments, env={"PYTHONUTF8": "1"})
    assert ended.returncode == 0, ended.stderr
    assert r"page: " in ended.stdout and r"out-\udcfe" in ended.stdout
    assert r"own-\udcff" in Path(out, "report", "index.html").read_text()


def test_control_characters_do_not_reach_the_terminal(tmp_path):
    assert shown("a\x1b[2J\x07\nb\x9bc\u202ed") == r"a\x1b[2J\x07\x0ab\x9bc\u202ed"
    evil = tmp_path / "\x1b]0;owned\x07.npz"
    ended = cosnorm(
        *("train", "--dataset", evil, "--method", "cosine", "--epochs", 1, "--out", tmp_path / "o")
    )
    assert ended.returncode == 1
    assert r"\x1b]0;owned\x07.npz" in ended.stderr
    assert "\x1b" not in ended.stderr + ended.stdout


def test_class_names_from_folders_do_not_reach_the_terminal(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("a\x1b[31m", "b"):
        (tmp_path / "own" / name).mkdir(parents=True)
        for i in range(4):
            pixels = np.full((8, 8), 40 * i + 100 * (name == "b"), np.uint8)
            image.fromarray(pixels).save(tmp_path / "own" / name / f"{i}.png")
    arguments = ("--dataset", tmp_path / "own", "--method", "none", "--epochs", 1, "--channels", 4)
    made = cosnorm("train", *arguments, "--device", "cpu", "--out", tmp_path / "run")
    assert made.returncode == 0, made.stderr
    assert (
        "warning: own has no test part: 2 of its 8 examples, a fifth of each class" in made.stderr
    )
    ended = cosnorm("predict", tmp_path / "run", tmp_path / "own")
    assert ended.returncode == 0, ended.stderr
    assert r"a\x1b[31m" in ended.stdout
    assert "\x1b" not in ended.stdout


@pytest.mark.parametrize("flag", ["--extra", "--no-extra"])
def test_only_svhn_has_extra_images_to_fetch(flag, tmp_path):
    ended = cosnorm("data", "fetch", "mnist", flag, "--data-dir", tmp_path)
    assert ended.returncode == 2
    assert is_one_readable_line(ended.stderr)
    assert f"{flag} does nothing here, as it needs the data set svhn" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_list_of_commands_is_not_cut_short():
    ended = cosnorm("--help", env={"COLUMNS": "80"})
    listed = ended.stdout.partition("Commands:")[2]
    assert "study" in listed
    assert "..." not in listed


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("compare --dataset c", "cifar10 cifar100"),
        ("reproduce ", "mnist 20news cifar10 cifar100 svhn all"),
        ("bench l", "layers linear"),
        ("data fetch m", "mnist"),
        ("data verify s", "svhn"),
        ("study s", "steadiness"),
        ("compare --methods b", "batch"),
        ("compare --methods none,pearson,b", "none,pearson,batch"),
        ("compare --methods pearson,p", ""),
    ],
)
def test_names_are_completed(words, completed):
    count = len(words.split()) + words.endswith(" ")
    ended = cosnorm(
        env={
            "_COSNORM_COMPLETE": "complete_bash",
            "COMP_WORDS": f"cosnorm {words}",
            "COMP_CWORD": str(count),
        }
    )
    assert ended.stdout.split() == completed.split()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError("Unable to allocate 9 TiB"), "out of memory: use a smaller batch size"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you"), "out of memory: use a"),
        (
            RecursionError("maximum recursion depth exceeded"),
            "something given is nested too deeply",
        ),
    ],
)
def test_memory_and_depth_that_run_out_are_told_in_our_words(error, told):
    assert _told(error).startswith(told)


def test_settings_nested_too_deeply_are_damage(tmp_path):
    for name in ("config.json", "summary.json"):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / name).write_text("[" * 60_000)
    ended = cosnorm("export", tmp_path / "run")
    assert ended.returncode == 1
    assert is_one_readable_line(ended.stderr)
    assert "config.json is not JSON" in ended.stderr


def test_more_runs_than_a_report_can_hold_are_refused_at_once(tmp_path):
    begun = time.monotonic()
    arguments = ("--seeds", 100_000_000, "--methods", "batch,none", "--out", tmp_path / "out")
    ended = cosnorm("compare", "--dataset", "digits", *arguments)
    assert time.monotonic() - begun < 20
    assert ended.returncode == 2 and is_one_readable_line(ended.stderr)
    assert "at most 10,000 runs; got 200,000,000 (2 methods with 100,000,000" in ended.stderr


@pytest.mark.parametrize(
    ("module", "advice"),
    [
        ("sklearn.datasets", "install it with: pip install 'cosnorm[data]'"),
        ("mlflow", "install it with: pip install 'cosnorm[mlflow]'"),
        ("somebodys_module", "it is no part of what cosnorm needs: install it as the code that"),
    ],
)
def test_advice_on_a_missing_module_is_of_what_brings_it(module, advice):
    told = _told(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert told.startswith(f"No module named {module!r}; {advice}")
