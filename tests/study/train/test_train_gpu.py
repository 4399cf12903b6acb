"""The captured step: the same training as the eager one, resumable, and nothing on the host."""

import pytest
import torch
from experiment_cases import StopAfter, assert_same_result, config_for, image_data, vector_data

from cosnorm.methods import METHODS
from cosnorm.study.train.learner import Learner, captured
from cosnorm.study.train.run import load_run, run
from cosnorm.study.train.stack import Stack
from cosnorm.study.train.torchrun import joined

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch):
    """In place of the one for all tests, under which cuBLAS asks for settings of its own.

    Convolutions add in a fixed order, so that eager and captured steps can be compared.
    """
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def on_cuda(method, **settings):
    return config_for(method, device="cuda", **settings)


def steps_of(learner, advance, count):
    for step in range(count):
        if step % learner.batches.per_epoch == 0:
            learner.batches.begin(step)
        advance()


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
@pytest.mark.parametrize("method", METHODS)
def test_a_captured_step_is_the_step(method, optimizer):
    rate = {"sgd": 1.0, "momentum": 0.1}.get(optimizer, 0.01)
    settings = {"network": "small_conv", "optimizer": optimizer, "lr": rate, "ema_decay": 0.9}
    assert_captured_is_eager(on_cuda(method, **settings), image_data())


@pytest.mark.parametrize("method", METHODS)
def test_a_captured_step_in_bf16_is_the_step(method):
    config = on_cuda(method, network="small_conv", precision="bf16", lr=0.1)
    assert_captured_is_eager(config, image_data())


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("method", METHODS)
def test_a_captured_step_of_several_seeds_is_that_of_each(method, optimizer):
    """Replays of the graph of three seeds, against each seed's own steps.

    In float64: in float32 sums of another order are another curve after a few steps.
    """
    rate = {"sgd": 0.1, "momentum": 0.05}.get(optimizer, 1e-3)
    settings = {"optimizer": optimizer, "lr": rate, "ema_decay": 0.9, "width": 32}
    assert_seeds_are_each({"method": method, "precision": "fp64", **settings}, 13, 1e-8)


@pytest.mark.parametrize("method", METHODS)
def test_a_captured_step_of_several_seeds_in_single_precision(method):
    assert_seeds_are_each({"method": method, "lr": 0.1, "width": 32}, 3, 1e-4)


def assert_seeds_are_each(settings, steps, tolerance):
    chosen = [on_cuda(seed=seed, **settings) for seed in range(3)]
    alone, rows = ([Learner(config, vector_data()) for config in chosen] for _ in range(2))
    for learner in alone:
        steps_of(learner, learner.step, steps)
    whole = Stack(rows)
    whole.batches.begin(0)
    steps_of(whole, captured(whole), steps)
    for one, row in zip(alone, rows, strict=True):
        for name, tensor in one.state().items():
            torch.testing.assert_close(
                row.state()[name], tensor, rtol=10 * tolerance, atol=tolerance,
                msg=lambda m, n=name: f"{n}: {m}",
            )  # fmt: skip


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "parts"])
@pytest.mark.parametrize("method", ["pearson", "layer", "batch"])
def test_one_rank_of_nccl_is_a_run_alone(method, sharded, tmp_path, monkeypatch):
    """With synchronised batch norm, and a checkpoint that is gone on with; more GPUs are more."""
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": 0, "LOCAL_RANK": 0}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    norm = {"sync_batch_norm": True} if method == "batch" else {}
    config = on_cuda(method, precision="fp64", lr=0.1, optimizer="momentum", **norm)
    data = vector_data()
    run(
        on_cuda(method, precision="fp64", lr=0.1, optimizer="momentum"),
        tmp_path / "one",
        dataset=data,
    )
    for stop in (StopAfter(5), StopAfter(-1)):
        with joined("cuda", 60.0, sharded) as ranks:
            outcome = run(config, tmp_path / "nccl", dataset=data, ranks=ranks, stop=stop)
    assert outcome.status == "done"
    one, nccl = (load_run(tmp_path / name).network.state_dict() for name in ("one", "nccl"))
    for name, tensor in one.items():
        torch.testing.assert_close(nccl[name], tensor, rtol=1e-9, atol=1e-9)


def test_seeds_as_one_stopped_and_gone_on_with(tmp_path):
    """By the launcher, which takes seeds on a GPU as one; to the same bits."""
    from cosnorm.study.runs.storage import LocalStorage
    from cosnorm.study.train.launchers import InProcess, Job

    chosen = [on_cuda("pearson", seed=seed, lr=0.1) for seed in range(3)]

    def launched(place, stop):
        jobs = [Job(config, LocalStorage(tmp_path / place / config.name)) for config in chosen]
        launcher = InProcess(stop=stop, batch_seeds="auto")
        launcher._dataset = lambda config: vector_data()
        return [outcome.status for _, outcome in launcher(jobs)]

    assert launched("whole", StopAfter(-1)) == ["done"] * 3
    assert launched("stopped", StopAfter(5)) == ["stopped"]
    assert launched("stopped", StopAfter(-1)) == ["done"] * 3
    for config in chosen:
        assert_same_result(tmp_path / "whole" / config.name, tmp_path / "stopped" / config.name)
        run(config, tmp_path / "alone" / config.name, dataset=vector_data())
        loaded = [load_run(tmp_path / place / config.name) for place in ("whole", "alone")]
        for name, tensor in loaded[0].network.state_dict().items():
            torch.testing.assert_close(
                tensor, loaded[1].network.state_dict()[name], rtol=1e-3, atol=1e-3
            )


def assert_captured_is_eager(config, data):
    """Evaluations between the replays, and none between the eager steps."""
    eager, graph = (Learner(config, data) for _ in range(2))
    steps_of(eager, eager.step, 13)
    graph.batches.begin(0)
    replay, errors = captured(graph), []

    def evaluated():
        replay()
        errors.append(graph.error(graph.network, graph.test_part))

    steps_of(graph, evaluated, 13)
    assert errors[-1] == pytest.approx(eager.error(eager.network, eager.test_part), abs=4)
    for name, tensor in eager.state().items():
        torch.testing.assert_close(
            graph.state()[name], tensor, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_one_run_after_another_each_with_its_graph(tmp_path):
    """As in a comparison: the second capture begins when the first graph is gone."""
    for name in ("first", "second"):
        config = on_cuda("pearson", optimizer="adam", lr=0.01)
        assert run(config, tmp_path / name, dataset=vector_data()).status == "done"
    assert_same_result(tmp_path / "first", tmp_path / "second")


@pytest.mark.filterwarnings("ignore")  # torch.compile's advice
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_torch_compile_inside_the_graph(tmp_path, precision):
    config = on_cuda("none", lr=0.1, compile=True, precision=precision)
    assert run(config, tmp_path, dataset=vector_data()).status == "done"


def test_capturing_leaves_the_state_as_it_was():
    learner = Learner(on_cuda("batch", optimizer="adam", ema_decay=0.9), vector_data())
    learner.batches.begin(3)
    before = {name: t.clone() for name, t in learner.state().items()}
    captured(learner)
    torch.cuda.synchronize()
    assert all(torch.equal(t, before[name]) for name, t in learner.state().items())
    assert int(learner.batches.place) == 3


@pytest.mark.parametrize("method", ["pearson", "batch"])
def test_the_tutorials_pipeline_in_a_graph(tmp_path, method):
    data = image_data(shape=(3, 32, 32))
    config = on_cuda(method, network="small_conv", pipeline="tf_cifar", precision="bf16")
    outcome = run(config, tmp_path, dataset=data)
    assert outcome.status == "done"


@pytest.mark.parametrize("method", METHODS)
def test_a_stopped_run_gives_the_same_bits(tmp_path, method):
    config, data = on_cuda(method, epochs=3), vector_data()
    assert run(config, tmp_path / "whole", dataset=data).status == "done"
    for steps in (4, 5):
        run(config, tmp_path / "stopped", dataset=data, stop=StopAfter(steps))
    assert run(config, tmp_path / "stopped", dataset=data).status == "done"
    assert_same_result(tmp_path / "whole", tmp_path / "stopped")


def test_divergence_is_found(tmp_path):
    outcome = run(on_cuda("none", lr=1e30), tmp_path, dataset=vector_data())
    assert outcome.status == "diverged"


def test_deterministic_kernels_in_the_graph(tmp_path):
    """In a process of its own: cuBLAS reads its settings once, at its first product."""
    import subprocess
    import sys

    arguments = ("--dataset", "digits", "--method", "pearson", "--steps", "20", "--width", "32")
    for name in ("one", "other"):
        options = ("--deterministic", "--device", "cuda", "--out", str(tmp_path / name))
        command = [sys.executable, "-m", "cosnorm", "train", *arguments, *options]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert (ended.returncode, ended.stderr) == (0, "")
    assert_same_result(tmp_path / "one", tmp_path / "other")
