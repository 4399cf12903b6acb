import json

import pytest
import torch
from experiment_cases import Notes, StopAfter, config_for, image_data, sparse_data, vector_data

from cosnorm.data import Split, unit_range
from cosnorm.experiments.batches import Batches
from cosnorm.experiments.errors import RunError
from cosnorm.experiments.learner import Learner
from cosnorm.experiments.ranks import Alone, ranks_here
from cosnorm.experiments.run import run
from cosnorm.experiments.storage import Nowhere


class Pretended(Alone):
    """One of several ranks, of which there is no other."""

    def __init__(self, rank, count):
        self.rank, self.count = rank, count
        self.averaged, self.summed = [], []

    def average(self, tensors):
        self.averaged.append([tensor.clone() for tensor in tensors])

    def total(self, tensor):
        self.summed.append(tensor.clone())


def test_the_parts_of_all_ranks_are_the_batch():
    split = Split(torch.arange(30.0)[:, None], torch.arange(30))
    whole = Batches(split, unit_range, 12, seed=0)
    parts = [Batches(split, unit_range, 12, 0, Pretended(rank, 3)) for rank in range(3)]
    for batches in (whole, *parts):
        batches.begin(0)
    for _ in range(whole.per_epoch):
        together = torch.cat([part.next()[1] for part in parts])
        assert torch.equal(together, whole.next()[1])


@pytest.mark.parametrize(
    ("method", "data"), [("pearson", vector_data), ("layer", image_data), ("cosine", sparse_data)]
)
def test_what_is_averaged_is_the_gradient_and_the_loss_of_the_whole_batch(method, data):
    config = config_for(method, lr=0.1)
    alone = Learner(config.override(optimizer="momentum"), data())
    ranks = [Pretended(rank, 2) for rank in range(2)]
    learners = [Learner(config, data(), each) for each in ranks]
    for learner in (alone, *learners):
        learner.batches.begin(0)
        learner.step()
    wanted = [*alone.update.gradients(), alone.loss.float()]
    parts = [each.averaged[0] for each in ranks]
    assert len(parts[0]) == len(parts[1]) == len(wanted)
    for one, other, whole in zip(*parts, wanted, strict=True):
        torch.testing.assert_close((one + other) / 2, whole, rtol=1e-5, atol=1e-6)


def test_the_counts_of_all_ranks_are_the_evaluation():
    data = vector_data(rows=20, test=25_000)
    alone = Learner(config_for(), data)
    ranks = [Pretended(rank, 2) for rank in range(2)]
    for each in ranks:
        learner = Learner(config_for(), data, each)
        learner.error(learner.network)
    mistakes = sum(int(each.summed[0][0]) for each in ranks)
    assert all(int(each.summed[0][0]) for each in ranks)
    assert alone.error(alone.network) == 100 * mistakes / 25_000


def test_a_stop_of_any_rank_is_a_stop_of_all():
    from cosnorm.experiments.stopping import Stop

    class Other(Alone):
        def most(self, number):
            return max(number, 3)

    assert Stop().agreed(Alone()) is None
    assert Stop().agreed(Other()) == "SIGTERM"


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
    dist = pytest.importorskip("torch.distributed")
    from cosnorm.experiments.group import Group

    def closed(*_, **__):
        raise RuntimeError("Connection closed by peer")

    for name, value in (("get_rank", lambda: 1), ("get_world_size", lambda: 2)):
        monkeypatch.setattr(dist, name, value)
    for name in ("all_reduce", "broadcast"):
        monkeypatch.setattr(dist, name, closed)
    group, tensor = Group(), torch.zeros(2)
    for meet in (
        lambda: group.most(0),
        lambda: group.total(tensor),
        lambda: group.share([tensor]),
        lambda: group.average([tensor]),
    ):
        with pytest.raises(RunError, match="another process of the run has ended"):
            meet()


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

    with pytest.raises(ValueError, match="got 10 rows for 3 ranks: use a batch size that is a mul"):
        with_ranks(3)
    with pytest.raises(ValueError, match=r"over a whole batch, which no rank has; got 2 ranks"):
        with_ranks(2, method="batch")
    with pytest.raises(RunError, match="several ranks train on CPUs only; got device cuda"):
        with_ranks(2, device="cuda")
    assert not (tmp_path / "run").exists()


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
