"""Real processes on one object store: killed, suspended, started twice, or sent astray."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from cli_cases import cosnorm, is_one_readable_line, own_data, started, wait_for
from object_server import ACCESS, BUCKET, Fault
from safetensors.torch import load

from cosnorm.study.runs.manifest import Manifest
from cosnorm.study.runs.storage import storage_at

pytestmark = pytest.mark.slow

PLACE = f"s3://{BUCKET}/one"
MANIFEST = "one/.run/manifest.json"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return own_data(tmp_path_factory.mktemp("data") / "own.npz")


def training(data, epochs, out):
    return (
        *("train", "--dataset", data, "--method", "cosine", "--epochs", epochs, "--width", 16),
        *("--batch-size", 20, "--device", "cpu", "--checkpoint-seconds", 0, "--out", out),
    )


@pytest.fixture(scope="module")
def local(data, tmp_path_factory):
    """The same run in a folder, uninterrupted."""
    out = tmp_path_factory.mktemp("runs") / "one"
    assert cosnorm(*training(data, 6, out)).returncode == 0
    return out


def short_lease(store):
    return {**store.environment, "COSNORM_LEASE_SECONDS": "2"}


def manifest_in(store):
    return Manifest.from_bytes(store.objects[MANIFEST][0], "")


def assert_same(place, folder):
    storage = storage_at(place)
    lines = [json.loads(line) for line in storage.read("metrics.jsonl").splitlines()]
    others = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines + others:
        del line["seconds"], line["examples_per_second"]
    assert lines == others
    mine = load(storage.read("model.safetensors"))
    theirs = load((folder / "model.safetensors").read_bytes())
    assert mine.keys() == theirs.keys()
    assert all(mine[name].equal(theirs[name]) for name in mine)


def test_of_two_commands_at_once_one_trains(store, data):
    """Whichever is first: the other is refused, and the first goes on until it is told to stop."""
    owners = set()

    def look(request):
        if MANIFEST in store.objects:
            owners.add(manifest_in(store).owner)

    store.fault = look
    both = [started(*training(data, 100_000, PLACE), env=store.environment) for _ in range(2)]
    try:
        wait_for(lambda: any(process.poll() is not None for process in both), 200)
        refused, other = sorted(both, key=lambda process: process.poll() is None)
        _, told = refused.communicate(timeout=60)
        assert refused.returncode == 1
        last = told.splitlines()[-1]
        assert (
            is_one_readable_line(last) and f"in use by another process (process {other.pid}" in last
        )
        before = len(store.seen("PUT", "/metrics.jsonl"))
        wait_for(lambda: len(store.seen("PUT", "/metrics.jsonl")) > before, 200)
        other.send_signal(signal.SIGTERM)
        _, told = other.communicate(timeout=100)
    finally:
        for process in both:
            process.kill()
            process.communicate()
    assert other.returncode == 143 and f"saved in {PLACE}: give the same command" in told
    assert manifest_in(store).owner is None
    assert {owner.process for owner in owners if owner} == {other.pid}


def test_kill_between_data_and_manifest(store, data, local):
    put, killed = [], threading.Event()
    command = training(data, 6, PLACE)

    def kill(request):
        if request.method == "PUT" and "/checkpoints/" in request.key:
            put.append(request.key)
        elif request.method == "PUT" and len(put) == 4 and not killed.is_set():
            process.kill()
            process.wait()
            killed.set()
            return Fault(lost="before")
        return None

    store.fault = kill
    process = started(*command, env=short_lease(store))
    assert killed.wait(200)
    process.communicate()
    store.fault = lambda request: None
    assert put[-1] in store.objects and put[-1].removeprefix("one/") not in manifest_in(store).keys
    assert manifest_in(store).owner.process == process.pid
    again = cosnorm(*command, env=short_lease(store))
    assert again.returncode == 0, again.stderr
    assert "goes on at step " in again.stdout and "for a sign of life" in again.stderr
    assert put[-1] not in store.objects
    assert_same(PLACE, local)


def is_stopped(process):
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0] == "T"


@pytest.mark.parametrize("moment", ["data", "manifest"])
def test_a_suspended_process_that_comes_back_writes_nothing(store, data, local, moment):
    """It is suspended before its third checkpoint, or the manifest that names it, is stored."""
    command, put, stopped = training(data, 6, PLACE), [], threading.Event()

    def suspend(request):
        if request.method == "PUT" and "/checkpoints/" in request.key:
            put.append(request.key)
        is_moment = request.key == (put[-1] if moment == "data" and put else MANIFEST)
        if request.method == "PUT" and len(put) == 3 and is_moment and not stopped.is_set():
            os.kill(zombie.pid, signal.SIGSTOP)
            wait_for(lambda: is_stopped(zombie))
            stopped.set()
            return Fault(lost="before") if moment == "manifest" else None
        return None

    store.fault = suspend
    zombie = started(*command, env=short_lease(store))
    try:
        assert stopped.wait(200)
        store.fault = lambda request: None
        heir = cosnorm(*command, env=short_lease(store))
        assert heir.returncode == 0, heir.stderr
        assert "goes on at step " in heir.stdout
        before = dict(store.objects)
        zombie.send_signal(signal.SIGCONT)
        _, told = zombie.communicate(timeout=100)
    finally:
        zombie.kill()
        zombie.communicate()
    assert zombie.returncode == 1
    assert is_one_readable_line(told) and f"{PLACE} was taken over by another process" in told
    assert store.objects == before, "it leaves nothing behind"
    assert_same(PLACE, local)


def test_everything_by_the_command_line(store, data, tmp_path):
    place = f"s3://{BUCKET}/many"
    made = cosnorm(
        *("compare", "--dataset", data, "--methods", "cosine,none", "--epochs", 2, "--width", 8),
        *("--device", "cpu", "--out", f"{place}/"),
        env=store.environment,
    )
    assert made.returncode == 0, made.stderr
    assert f"page: {place}/report/index.html" in made.stdout
    assert "many/report/index.html" in store.objects
    report = cosnorm("report", place, "--out", tmp_path / "report", env=store.environment)
    assert report.returncode == 0 and (tmp_path / "report" / "index.html").exists()
    run = f"{place}/cosine-seed0"
    rows = cosnorm("predict", run, data, env=store.environment)
    assert rows.returncode == 0 and len(rows.stdout.splitlines()) == 200
    exported = cosnorm("export", run, env=store.environment)
    assert exported.returncode == 0, exported.stderr
    assert f"{run}/export/model.onnx" in exported.stdout
    assert "many/cosine-seed0/export/model.onnx" in store.objects


WRONG = {
    "unreachable": ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, PLACE, "no answer from http://127"),
    "credentials": ({"AWS_ACCESS_KEY_ID": f"not {ACCESS}"}, PLACE, "check AWS_ACCESS_KEY_ID"),
    "bucket": ({}, "s3://none/one", "there is no bucket none: make it, or give another"),
    "extra": (None, PLACE, "pip install 'cosnorm[s3]'"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_said_in_a_line(store, data, tmp_path, wrong):
    environment, place, told = WRONG[wrong]
    if environment is None:
        (tmp_path / "obstore").mkdir()
        (tmp_path / "obstore" / "__init__.py").write_text("raise ImportError('not installed')")
        environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    commands = [("report", place)]
    if wrong == "credentials":
        commands.append(training(data, 1, place))
    for command in commands:
        made = cosnorm(*command, env={**store.environment, **environment})
        assert made.returncode == 1, made.stderr
        assert is_one_readable_line(made.stderr) and told in made.stderr
    assert store.objects == {}


def test_wrong_usage(store, data):
    for place, told in (
        ("gs://runs/one", "nothing is known of gs:/"),
        ("s3://", "BUCKET/PREFIX"),
        ("s3://Runs With Space/x", "give the bucket's own name"),
    ):
        made = cosnorm(*training(data, 1, place), env=store.environment)
        assert made.returncode == 2
        assert is_one_readable_line(made.stderr) and told in made.stderr
    without = {**store.environment, "AWS_ENDPOINT_URL": store.url.removeprefix("http://")}
    made = cosnorm(*training(data, 1, PLACE), env=without)
    assert made.returncode == 2
    assert is_one_readable_line(made.stderr) and "must be http://HOST:PORT" in made.stderr
    logged = cosnorm(*training(data, 1, PLACE), "--log", "tensorboard", env=store.environment)
    assert logged.returncode == 2 and "writes files of this machine" in logged.stderr
