"""Runs on a Ray cluster of this machine: nodes that are killed, programs that are stopped.

All of it is slow but for what needs no cluster. Everything listens on loopback. Where something
must happen in the middle of runs, they wait for it (`held`): no test depends on their speed.
"""

import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from cli_cases import (
    assert_same_result,
    cosnorm,
    is_one_readable_line,
    own_data,
    started,
    wait_for,
)
from experiment_cases import Notes
from object_server import BUCKET

from cosnorm.study import compare, configure
from cosnorm.study.claims import study_named
from cosnorm.study.claims.study import conduct
from cosnorm.study.runs.errors import ConfigError, RunError, StorageError
from cosnorm.study.runs.local import LocalStorage
from cosnorm.study.runs.storage import storage_at
from cosnorm.study.train import ray_cluster
from cosnorm.study.train.launchers import InProcess, Job
from cosnorm.study.train.ray_cluster import RayCluster
from cosnorm.study.train.ray_connection import loaded
from cosnorm.study.train.ray_worker import Letters, Mailbox, Place, index_of, make
from cosnorm.study.train.stopping import Stop

slow = pytest.mark.slow
METHODS = ("cosine", "pearson", "batch", "none")
PLACES = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
# The object store of the nodes, which does not answer, whatever the one of the program does.
NODES_STORE = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
}
LOOPBACK = {"127.0.0.1", "[::ffff:127.0.0.1]", "[::1]"}
until = functools.partial(wait_for, seconds=200)


def configs_for(data, seeds, epochs, methods=METHODS):
    settings = {"epochs": epochs, "batch_size": 20, "width": 16, "device": "cpu"}
    return [configure(str(data), m, s, **settings) for m in methods for s in range(seeds)]


@pytest.fixture
def data(tmp_path):
    return own_data(tmp_path / "own.npz")


@pytest.fixture
def gate(tmp_path, monkeypatch):
    """The folder where runs wait; they are let go whatever becomes of the test."""
    folder = tmp_path / "gate"
    folder.mkdir()
    monkeypatch.setenv("COSNORM_TEST_GATE", str(folder))
    monkeypatch.setenv("COSNORM_EXTENSIONS", "held")
    monkeypatch.setenv("PYTHONPATH", PLACES)
    yield folder
    (folder / "open").touch()


def waiting(gate):
    return {path.name for path in gate.iterdir()} - {"open"}


class Nodes:
    """A head without CPUs and two nodes of two, each with processes of its own."""

    here = {"node_ip_address": "127.0.0.1"}  # noqa: RUF012

    def __init__(self):
        loaded(alone=True)  # which has Ray listen on loopback
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "include_log_monitor": False}
        self.cluster = Cluster(initialize_head=True, head_node_args={**self.here, **head})
        self.address = self.cluster.address
        self.nodes = [self.added(), self.added()]

    def added(self):
        return self.cluster.add_node(**self.here, num_cpus=2)

    def kill(self):
        """Kill a node as a power cut does, and give the cluster another when told so."""
        self.cluster.remove_node(self.nodes.pop(0), allow_graceful=False)


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_health_check_period_ms", "500")
        patch.setenv("PYTHONPATH", PLACES)
        for name, value in NODES_STORE.items():
            patch.setenv(name, value)
        made = Nodes()
        yield made
        made.cluster.shutdown()


def listening():
    """The addresses at which processes of Ray listen."""
    told = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    rays = [line for line in told.splitlines() if re.search(r'"(ray|gcs_server)', line)]
    return {line.split()[3].rpartition(":")[0] for line in rays}


@slow
def test_resources_that_no_node_has_and_listeners_on_loopback(tmp_path, data, cluster):
    assert listening() <= LOOPBACK
    configs = configs_for(data, 1, epochs=1)
    wanted = r"needs 3 CPUs and 0 GPUs on one node.*there are: 0 CPUs and 0 GPUs; 2 CPUs"
    with pytest.raises(ConfigError, match=wanted):
        compare(configs, RayCluster(address=cluster.address, cpus=3), tmp_path / "out")
    with pytest.raises(ConfigError, match=r"needs 1 CPUs and 0.5 GPUs on one node"):
        compare(configs, RayCluster(address=cluster.address, gpus=0.5), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@slow
def test_a_study_says_the_same_on_ray(tmp_path, cluster):
    study = study_named("steadiness")
    setting = study.setting(False, epochs=1, seeds=1, device="cpu")
    conduct(study, setting, tmp_path / "here")
    ray = RayCluster(address=cluster.address, keep_checkpoints=False)
    conduct(study, setting, tmp_path / "ray", launcher=ray)
    one, other = (
        json.loads((tmp_path / name / "steadiness.json").read_text()) for name in ("here", "ray")
    )
    for key in ("runs", "rows", "findings", "setting"):
        assert one[key] == other[key]


@slow
def test_a_node_is_killed_and_every_run_is_made_once(tmp_path, data, gate, cluster, capfd):
    """Of 12 runs 3 are over, 4 are under way on both nodes, 5 wait for their turn."""
    configs = configs_for(data, 3, epochs=4)
    notes = {config.name: Notes() for config in configs}
    over = []

    def lost():
        return {name for name, n in notes.items() if any("was lost" in w for w in n.warnings)}

    def kill():
        try:
            until(lambda: len(waiting(gate)) == 4)
            over.extend(name for name, note in notes.items() if note.ended)
            cluster.kill()
            until(lambda: len(lost()) == 2)
        finally:
            (gate / "open").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    capfd.readouterr()
    launcher = RayCluster(
        lambda job: notes[job.config.name], address=cluster.address, checkpoint_seconds=0
    )
    outcomes = compare(configs, launcher, tmp_path / "ray")
    killer.join()
    cluster.nodes.append(cluster.added())
    assert capfd.readouterr().out == "", "Ray prints nothing among the program's lines"
    assert set(outcomes) == set(notes)
    assert {outcome.status for outcome in outcomes.values()} == {"done"}
    assert sorted(over) == ["cosine-seed0", "cosine-seed1", "cosine-seed2"]
    for name, note in notes.items():
        assert note.ended == ["done"], "each is made once"
        first, *again = [step for step, _ in note.begun]
        assert first == 0 and len(again) == (name in lost())
        assert all(step >= 10 for step in again), "it goes on from its checkpoint"
    here = cosnorm(
        *("compare", "--dataset", data, "--methods", ",".join(METHODS), "--seeds", 3),
        *("--epochs", 4, "--batch-size", 20, "--width", 16, "--device", "cpu"),
        *("--out", tmp_path / "here"),
        env=dict(os.environ),
    )
    assert here.returncode == 0, here.stderr
    for name in notes:
        assert_same_result(tmp_path / "ray" / name, tmp_path / "here" / name)


@slow
def test_stopped_while_a_letter_is_on_its_way(tmp_path, data, gate, cluster, monkeypatch):
    """The post is slow, so that there is one when the run is asked to stop."""

    class Slow(Mailbox):
        def put(self, number, events):
            time.sleep(0.5)
            super().put(number, events)

    class Once(Stop):
        @property
        def reason(self):
            return "SIGINT" if waiting(gate) else None

    monkeypatch.setattr(ray_cluster, "Mailbox", Slow)
    notes = Notes()
    launcher = RayCluster(lambda job: notes, Once(), address=cluster.address)
    outcomes = compare(configs_for(data, 1, 4, methods=["none"]), launcher, tmp_path / "out")
    assert [(o.status, o.reason) for o in outcomes.values()] == [("stopped", "SIGINT")]
    assert list((tmp_path / "out").glob("none-seed0/checkpoints/step-*"))
    assert notes.ended == ["stopped"]


@slow
def test_two_commands_at_once(tmp_path, data, gate, cluster):
    """The second leaves what is in use to the first, makes the rest, and says what is missing."""
    out, address = tmp_path / "out", ("--ray-address", cluster.address)
    first = started(*arguments(data, out, *address), env=dict(os.environ))
    until(lambda: len(waiting(gate)) == 2)
    second = cosnorm(*arguments(data, out, *address), env=dict(os.environ))
    assert second.returncode == 1 and is_one_readable_line(second.stderr)
    assert re.search(r"none-seed\d is in use by another process: wait for it", second.stderr)
    (gate / "open").touch()
    _, error = first.communicate()
    assert (first.returncode, error) == (0, "")
    again = cosnorm(*arguments(data, out, *address), env=dict(os.environ))
    assert again.returncode == 0 and "4 done before" in again.stdout


@slow
def test_a_folder_that_the_nodes_do_not_share(tmp_path, data, cluster, monkeypatch):
    class Own(LocalStorage):
        """On another node, the same path is another folder."""

        def at(self, name):
            return Own(self.root / name)

        def __reduce__(self):
            return LocalStorage, (tmp_path / "elsewhere" / self.root.name,)

    monkeypatch.setattr(ray_cluster, "_SHARED_S", 0.0)
    launcher = RayCluster(address=cluster.address)
    with pytest.raises(RunError, match=r"is over, but .* does not have it here: its node wrote to"):
        compare(configs_for(data, 1, 1), launcher, Own(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@slow
def test_an_object_store_that_a_node_does_not_reach(data, cluster, store):
    launcher = RayCluster(address=cluster.address)
    told = (
        rf"cosine-seed0 failed on the node {re.escape(socket.gethostname())}: cannot read "
        rf"s3://{BUCKET}/.*: no answer from http://127\.0\.0\.1:9: check AWS_ENDPOINT_URL and .*"
        r"set them where `ray start` is called"
    )
    with pytest.raises(StorageError, match=told):
        compare(configs_for(data, 1, 1, ["cosine"]), launcher, f"s3://{BUCKET}/ray")


@slow
def test_a_storage_that_cannot_be_on_a_node(tmp_path, data, cluster):
    class Elsewhere(LocalStorage):
        """On another node, the same address is refused."""

        def at(self, name):
            return Elsewhere(self.root / name)

        def __reduce__(self):
            return storage_at, ("s3://Not a Bucket/x",)

    launcher = RayCluster(address=cluster.address)
    told = r"cosine-seed0 failed on its node \(.*the bucket's own name\): every node .*`ray start`"
    with pytest.raises(RunError, match=told) as error:
        compare(configs_for(data, 1, 1, ["cosine"]), launcher, Elsewhere(tmp_path / "out"))
    assert "\n" not in str(error.value)


def test_a_node_tells_what_its_storage_lacks(data, store, monkeypatch):
    (config,) = configs_for(data, 1, 1, ["cosine"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")
    here = Place(os.getcwd(), torch.get_num_threads(), 0.0)
    error = make(Job(config, storage_at(f"s3://{BUCKET}/ray")), Letters(None, 0), {}, here)
    assert type(error) is StorageError
    told = r"^cosine-seed0 failed on the node .*: check AWS_ACC.*where `ray start` is called$"
    assert re.match(told, str(error))


def arguments(data, out, *more, epochs=4):
    return (
        *("compare", "--dataset", data, "--methods", "cosine,none", "--seeds", 2, "--width", 16),
        *("--epochs", epochs, "--batch-size", 20, "--device", "cpu", "--out", out),
        *("--checkpoint-seconds", 0, "--launcher", "ray", *more),
    )


@slow
def test_stopped_by_ctrl_c_and_gone_on_with(tmp_path, data, gate):
    """In a group of its own, as a terminal has it: the signal goes to every process there."""
    out = tmp_path / "out"
    process = started(*arguments(data, out), start_new_session=True, env=dict(os.environ))
    until(lambda: waiting(gate))
    assert listening() <= LOOPBACK
    os.killpg(process.pid, signal.SIGINT)
    told, error = process.communicate()
    assert process.returncode == 130, error
    assert is_one_readable_line(error) and "stopped (SIGINT) and saved in" in error
    steps = {path.parents[1].name: path.name for path in sorted(out.glob("none*/checkpoints/*"))}
    assert waiting(gate) <= steps.keys() and not list(out.glob("none*/summary.json"))
    (gate / "open").touch()
    process = started(*arguments(data, out, "--json"), env=dict(os.environ))
    told, error = process.communicate()
    assert process.returncode == 0, error
    events = [json.loads(line) for line in told.splitlines()]
    begun = {e["run"]: e["step"] for e in events if e.get("event") == "begin"}
    for name in waiting(gate):
        found = int(re.search(r"\d+", steps[name])[0]) if name in steps else 0
        assert begun[name] == found
    again = cosnorm(*arguments(data, out), env=dict(os.environ))
    assert again.returncode == 0
    assert "4 runs: 2 methods, 2 seeds each; 4 done before" in again.stdout
    assert "begins" not in again.stdout and "goes on" not in again.stdout


def test_an_address_where_nothing_answers(tmp_path, data):
    pytest.importorskip("ray")
    done = cosnorm(*arguments(data, tmp_path / "out", "--ray-address", "127.0.0.1:9"))
    assert done.returncode == 1 and is_one_readable_line(done.stderr)
    assert "no Ray cluster answers at 127.0.0.1:9" in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_address_where_something_else_answers(tmp_path, data):
    """It says something else, then nothing."""
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def answer():
            with server.accept()[0] as connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                connection.recv(100)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(RunError, match=f"what answers at {address} is no Ray cluster"):
            compare(configs_for(data, 1, 1), RayCluster(address=address), tmp_path / "out")
        thread.join()
        with pytest.raises(RunError, match=f"no Ray cluster answers at {address} .timed out"):
            compare(configs_for(data, 1, 1), RayCluster(address=address), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "gpus, visible, index",
    [(["1"], None, 1), ([1], "", 1), (["5"], "5,7", 0), (["7"], "5,7", 1), (["GPU-a"], "GPU-a", 0)],
)
def test_torch_counts_gpus_among_those_it_sees(gpus, visible, index):
    assert index_of(gpus, visible) == index


@pytest.mark.parametrize(
    "flags, told",
    [
        (("--cpus-per-run", 0), "a run takes a number of CPUs above 0; got 0.0"),
        (("--cpus-per-run", "inf"), "a run takes a number of CPUs above 0; got inf"),
        (("--cpus-per-run", "nan"), "a run takes a number of CPUs above 0; got nan"),
        (("--gpus-per-run", "inf"), "a run takes whole GPUs, or a part of one; got inf"),
        (("--gpus-per-run", "nan"), "a run takes whole GPUs, or a part of one; got nan"),
        (("--gpus-per-run", 1.5), "a run takes whole GPUs, or a part of one; got 1.5"),
        (("--gpus-per-run", -1), "a run takes whole GPUs, or a part of one; got -1.0"),
        (("--launcher", "in-process", "--cpus-per-run", 2), "--cpus-per-run does nothing in this"),
    ],
)
def test_flags_that_cannot_be(tmp_path, data, flags, told):
    done = cosnorm(*arguments(data, tmp_path / "out", *flags))
    assert done.returncode == 2 and told in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("address", ["cluster", "ray://host:10001", "host:port"])
def test_addresses_that_are_none(tmp_path, data, address):
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match=r"a Ray address is HOST:PORT or auto; got"):
        compare(configs_for(data, 1, 1), RayCluster(address=address), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_ray(tmp_path, data):
    """A module of the same name that cannot be imported stands in its place."""
    (tmp_path / "ray.py").write_text("raise ImportError('no ray here')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = cosnorm(*arguments(data, tmp_path / "out"), env={"PYTHONPATH": path})
    assert done.returncode == 1 and is_one_readable_line(done.stderr)
    assert "pip install 'cosnorm[ray]'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_nothing_loads_ray_before_a_run_is_made():
    code = "import sys, cosnorm.study.cli, cosnorm.study.train.ray_cluster as r; r.RayCluster()"
    code += "; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_runs_that_are_over_need_no_cluster(tmp_path, data):
    configs = configs_for(data, 1, 1)
    compare(configs, InProcess(), tmp_path)
    notes = Notes()
    outcomes = compare(configs, RayCluster(lambda job: notes, address="127.0.0.1:9"), tmp_path)
    assert [outcome.status for outcome in outcomes.values()] == ["done"] * 4 == notes.ended
    assert Path(tmp_path, "cosine-seed0").is_dir()
