import json

import pytest
import torch
from experiment_cases import Notes, StopAfter, config_for, image_data, sparse_data, vector_data

from cosnorm.study.data import Split, unit_range
from cosnorm.study.runs.errors import ConfigError, RunError
from cosnorm.study.runs.storage import Nowhere
from cosnorm.study.train.batches import Batches
from cosnorm.study.train.learner import Learner
from cosnorm.study.train.ranks import Alone, check_launched, ranks_here
from cosnorm.study.train.run import run
from cosnorm.study.train.torchrun import joined


class Pretended(Alone):
    """One of several ranks, of which there is no other."""

    def __init__(self, rank, count):
        self.rank, self.count = rank, count
        self.summed = []

    def total(self, tensor):
        self.summed.append(tensor.clone())


def test_the_parts_of_all_ranks_are_the_batch():
    split = Split(torch.arange(31.0)[:, None], torch.arange(31))
    for size, count in ((12, 3), (11, 4), (31, 2), (4, 4)):
        whole = Batches(split, unit_range, size, seed=0)
        parts = [
            Batches(split, unit_range, size, 0, Pretended(rank, count)) for rank in range(count)
        ]
        for batches in (whole, *parts):
            batches.begin(0)
        for _ in range(whole.per_epoch):
            shares = [part.next()[1] for part in parts]
            assert torch.equal(torch.cat(shares), whole.next()[1])
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("method", "data"), [("pearson", vector_data), ("layer", image_data), ("cosine", sparse_data)]
)
def test_the_mean_over_ranks_is_the_gradient_and_the_loss_of_the_whole_batch(method, data):
    config = config_for(method, lr=0.1, batch_size=11, optimizer="momentum")
    alone = Learner(config, data())
    learners = [Learner(config, data(), Pretended(rank, 3)) for rank in range(3)]
    for learner in (alone, *learners):
        learner.batches.begin(0)
        learner.step()

    def told(learner, losses):
        return [*(p.grad for p in learner.network.parameters()), sum(losses)]

    parts = [told(each, each.ranks.summed) for each in learners]
    wanted = told(alone, [alone.loss.float()])
    for *each, whole in zip(*parts, wanted, strict=True):
        torch.testing.assert_close(sum(each) / 3, whole, rtol=1e-5, atol=1e-6)


def test_the_counts_of_all_ranks_are_the_evaluation():
    for test in (25_001, 31, 2):
        data = vector_data(rows=20, test=test)
        alone = Learner(config_for(), data)
        ranks = [Pretended(rank, 3) for rank in range(3)]
        learners = [Learner(config_for(), data, each) for each in ranks]
        parts = [[y for _, y in each._evaluation_batches(each.test_part)] for each in learners]
        assert len({len(part) for part in parts}) == 1  # a sharded network asks all at once
        assert torch.equal(torch.cat([y for part in parts for y in part]), data.test.y)
        for learner in learners:
            learner.error(learner.network, learner.test_part)
        mistakes = sum(int(each.summed[0][0]) for each in ranks)
        assert alone.error(alone.network, alone.test_part) == 100 * mistakes / test


def test_a_stop_of_any_rank_is_a_stop_of_all():
    from cosnorm.study.train.stopping import Stop

    class Other(Alone):
        def most(self, numbers):
            return [max(pair) for pair in zip(numbers, (3, 0), strict=True)]

    assert Stop().agreed(Alone()) == (None, False)
    assert Stop().agreed(Other()) == ("SIGTERM", False)


def test_the_first_alone_says_when_to_save():
    from cosnorm.study.train.stopping import Stop

    class Second(Alone):
        rank, count, is_first = 1, 2, False

    assert Stop().agreed(Alone(), is_time_to_save=True) == (None, True)
    assert Stop().agreed(Second(), is_time_to_save=True) == (None, False)


def test_the_number_of_processes_is_recorded_and_a_change_of_it_told(tmp_path):
    config, data = config_for(), vector_data()
    run(config, tmp_path, dataset=data, stop=StopAfter(3))
    record = json.loads((tmp_path / "environment.json").read_text())
    assert record["processes"] == 1
    notes = Notes()
    run(config, tmp_path, dataset=data, stop=StopAfter(3), watcher=notes, ranks=Pretended(0, 2))
    assert "in another place (processes 1, now 2): its last bits may differ" in notes.warnings[0]
    del record["processes"]  # as before it was recorded
    (tmp_path / "environment.json").write_text(json.dumps(record))
    notes = Notes()
    run(config, tmp_path, dataset=data, watcher=notes)
    assert notes.warnings == []


def test_a_rank_whose_peer_has_gone_says_so(monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_PORT", "0")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")

    def with_error(text):
        with joined("cpu", 60.0):
            raise RuntimeError(text)

    with pytest.raises(RunError, match="has ended, or has not answered for 60 s, so this one stop"):
        with_error("[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer")
    with pytest.raises(RuntimeError, match="can't allocate memory"):  # and this one's own fault
        with_error("DefaultCPUAllocator: can't allocate memory")


def test_only_the_first_has_a_folder_and_a_summary(tmp_path):
    class Second(Alone):
        rank, count, is_first = 1, 2, False

    outcome = run(config_for(), tmp_path / "run", dataset=vector_data(), ranks=Second())
    assert (outcome.status, outcome.summary) == ("done", None)
    assert not (tmp_path / "run").exists()


def test_what_several_ranks_cannot_do(tmp_path):
    def with_ranks(count, **settings):
        config = config_for(**settings)
        run(config, tmp_path / "run", dataset=vector_data(), ranks=Pretended(0, count))

    with pytest.raises(ConfigError, match="got 10 rows for 11 processes: use fewer processes, or"):
        with_ranks(11)
    with pytest.raises(ConfigError, match=r"at least 2; got 10 rows for 6 processes: .*--sync"):
        with_ranks(6, method="batch")
    assert not (tmp_path / "run").exists()


def test_every_process_needs_a_gpu_of_its_own(monkeypatch):
    told = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**told, "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)

    def with_gpus(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        with ranks_here("cuda"):
            raise AssertionError("never reached")

    with pytest.raises(RunError, match="no CUDA device is available to torch: use the device cpu"):
        with_gpus(0)
    with pytest.raises(RunError, match=r"2 processes on this machine and 1 GPU: use .*-node 1, or"):
        with_gpus(1)


def test_flags_of_torchrun_do_nothing_without_it(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    check_launched({"--rank-timeout": None})
    with pytest.raises(ConfigError, match="--rank-timeout does nothing here, as it is for proc"):
        check_launched({"--rank-timeout": 5.0})
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    check_launched({"--rank-timeout": 5.0})


def test_without_torchrun_a_process_is_alone(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with ranks_here() as ranks:
        assert isinstance(ranks, Alone)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with ranks_here() as ranks:
        assert isinstance(ranks, Alone)


def test_nowhere_keeps_nothing():
    storage = Nowhere()
    with storage.claim():
        storage.write("a", b"1")
        storage.append("a", b"2")
        storage.delete("a")
    assert storage.read("a") is None and storage.names("") == []
