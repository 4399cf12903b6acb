import torch

from cosnorm.study.data import Split, tf_cifar, unit_range
from cosnorm.study.train.batches import Batches, seed_of


def numbered(rows):
    return Split(torch.arange(float(rows))[:, None], torch.arange(rows))


def epoch_of(batches, epoch):
    rows = []
    for step in range(batches.per_epoch):
        if step == 0:
            batches.begin(epoch * batches.per_epoch)
        x, y = batches.next()
        assert torch.equal(x[:, 0].long(), y)
        rows.append(y)
    return torch.cat(rows)


def test_an_epoch_meets_every_row_once_in_another_order_each_time():
    batches = Batches(numbered(30), unit_range, 10, seed=0)
    first, second = epoch_of(batches, 0), epoch_of(batches, 1)
    assert torch.equal(first.sort().values, torch.arange(30))
    assert torch.equal(second.sort().values, torch.arange(30))
    assert not torch.equal(first, second)


def test_what_is_left_after_the_last_full_batch_is_not_used():
    batches = Batches(numbered(37), unit_range, 10, seed=0)
    assert batches.per_epoch == 3
    assert len(epoch_of(batches, 0).unique()) == 30


def test_fewer_rows_than_a_batch():
    batches = Batches(numbered(7), unit_range, 10, seed=0)
    assert (batches.size, batches.per_epoch) == (7, 1)


def test_a_step_depends_on_seed_and_number_alone():
    x = torch.randint(256, (20, 3, 26, 26), dtype=torch.uint8)
    split = Split(x, torch.arange(20))
    one, other = (Batches(split, tf_cifar, 4, seed=5) for _ in range(2))
    one.begin(0)
    for step in range(13):
        if step % one.per_epoch == 0:
            one.begin(step)
        expected = one.next()
        other.begin(step)
        for got, wanted in zip(other.next(), expected, strict=True):
            assert torch.equal(got, wanted)
    changed = Batches(split, tf_cifar, 4, seed=6)
    changed.begin(12)
    assert not torch.equal(changed.next()[0], expected[0])


def test_seeds():
    assert seed_of("epoch", 1, 12) == seed_of("epoch", 1, 12)
    parts = [(k, a, b) for k in ("epoch", "initialisation") for a in range(9) for b in range(9)]
    assert len({seed_of(*p) for p in parts}) == len(parts)
    assert all(0 <= seed_of(*p) < 2**63 for p in parts)
