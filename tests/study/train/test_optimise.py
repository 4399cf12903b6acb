import pytest
import torch
from experiment_cases import config_for, sparse_data
from torch import nn

from cosnorm.methods import METHODS
from cosnorm.study.train.learner import Learner
from cosnorm.study.train.optimise import Update

TORCH = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.01),
}


@pytest.mark.parametrize("name", TORCH)
def test_the_updates_are_torchs(name):
    mine = nn.Linear(4, 3)
    theirs = nn.Linear(4, 3)
    theirs.load_state_dict(mine.state_dict())
    config = config_for(optimizer=name, lr=0.1, momentum=0.8, weight_decay=0.01)
    update, optimizer = Update(mine, config), TORCH[name](theirs.parameters())
    assert torch.equal(mine.weight, theirs.weight)
    for _ in range(5):
        x = torch.randn(6, 4)
        update.clear()
        mine(x).square().sum().backward()
        update.apply()
        optimizer.zero_grad()
        theirs(x).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(mine.weight, theirs.weight)
    torch.testing.assert_close(mine.bias, theirs.bias)


@pytest.mark.parametrize(("name", "tensors"), [("sgd", 0), ("momentum", 2), ("adam", 6)])
def test_the_whole_state_is_there_from_the_beginning(name, tensors):
    update = Update(nn.Linear(4, 3), config_for(optimizer=name))
    state = update.state()
    assert len(state) == tensors
    assert all(not tensor.any() for tensor in state.values())


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_sparse_and_dense_data_train_alike(method, affine):
    networks = []
    for sparse in (True, False):
        config = config_for(method, lr=0.3, sparse=sparse, batch_size=20, affine=affine)
        learner = Learner(config, sparse_data())
        for step in range(9):
            if step % learner.batches.per_epoch == 0:
                learner.batches.begin(step)
            learner.step()
        networks.append(learner)
    assert networks[0].update.layers and not networks[1].update.layers
    torch.testing.assert_close(
        networks[0].network[1].weight, networks[1].network[1].weight, rtol=1e-3, atol=1e-4
    )
    torch.testing.assert_close(networks[0].loss, networks[1].loss, rtol=1e-4, atol=1e-5)


def test_other_optimisers_take_the_dense_gradient():
    learner = Learner(config_for(optimizer="adam", lr=0.01), sparse_data())
    assert learner.update.layers == []
    before = learner.network[1].weight.detach().clone()
    learner.batches.begin(0)
    learner.step()
    assert not torch.equal(learner.network[1].weight, before)
