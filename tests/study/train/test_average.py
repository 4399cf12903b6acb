import pytest
import torch
from torch import nn

from cosnorm.study.train.average import Average, copied


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x):
        return self.norm(self.layer(x))


def stepped(network):
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter))
    network(torch.randn(5, 3))


@pytest.mark.parametrize("statistics", ["averaged", "raw"])
def test_the_formula(statistics):
    network = Net()
    average = Average(copied(network), network, 0.5, statistics)
    weight = network.layer.weight.detach().clone()
    mean = network.norm.running_mean.clone()
    for t in range(20):
        stepped(network)
        average.update()
        decay = min(0.5, (1 + t) / (10 + t))
        weight = decay * weight + (1 - decay) * network.layer.weight.detach()
        mean = decay * mean + (1 - decay) * network.norm.running_mean
    torch.testing.assert_close(average.network.layer.weight, weight)
    expected = mean if statistics == "averaged" else network.norm.running_mean
    torch.testing.assert_close(average.network.norm.running_mean, expected)
    assert average.network.norm.num_batches_tracked == 20


def test_the_network_itself_is_left_alone():
    network = Net()
    average = Average(copied(network), network, 0.9999, "averaged")
    stepped(network)
    before = {name: t.clone() for name, t in network.state_dict().items()}
    average.update()
    assert all(torch.equal(t, before[name]) for name, t in network.state_dict().items())
    assert all(p.requires_grad for p in network.parameters())
    assert not any(p.requires_grad for p in average.network.parameters())
