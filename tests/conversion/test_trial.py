"""convert with an example: what does not run stays, and the model is as it was before the trial."""

import pytest
import torch
from torch import nn

import cosnorm


class Reads(nn.Module):
    """As some state space and speech models: a layer's weight is used, the layer is not called."""

    def __init__(self):
        super().__init__()
        self.read = nn.Linear(6, 6, bias=False)
        self.spare = nn.Linear(6, 6)
        self.direct = nn.Linear(6, 6)
        self.steps = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
        self.register_buffer("calls", torch.zeros(()))
        self.last = nn.Linear(6, 3)

    def forward(self, x, twice=False):
        self.calls += 1
        x = nn.functional.linear(x, self.read.weight)
        x = self.direct.forward(x)
        x = self.steps(x) * float(1 + twice)
        return self.last(x)


EXAMPLES = {
    "tensor": torch.randn(2, 6),
    "tuple": (torch.randn(2, 6), True),
    "list": [torch.randn(2, 6)],
    "mapping": {"x": torch.randn(2, 6), "twice": True},
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_what_does_not_run_stays(kind):
    model = Reads()
    account = cosnorm.convert(model, example=EXAMPLES[kind])
    assert {entry.name: entry.reason for entry in account.left if "Linear" in entry.was} == {
        "read": "does not run on the example: other code reads its weight",
        "spare": "does not run on the example",
    }
    assert {e.name for e in account.changed} == {"direct", "steps.0", "last"}
    assert type(model.read) is nn.Linear


def test_the_trial_leaves_no_trace():
    model = Reads().train()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    cosnorm.convert(model, head=None, example=torch.randn(2, 6).requires_grad_())
    assert {module.training for module in model.modules()} == {True}
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert [type(module).__name__ for module in model.modules()] == [
        "Reads", "Linear", "Linear", "PearsonLinear", "Sequential", "PearsonLinear", "BatchNorm1d",
        "PearsonLinear",
    ]  # fmt: skip
    torch.randn(2, 6)
    assert not torch.equal(before, torch.get_rng_state())  # the example's own draws


class Plain(Reads):
    def forward(self, x):
        return self.last(self.direct(x))


def test_a_layer_that_never_runs_is_no_head():
    model = Plain()
    model.head = nn.Linear(6, 9)
    account = cosnorm.convert(model, example=torch.randn(2, 6))
    assert account[-1].reason == "does not run on the example"
    assert not model.last.learn_scale
    assert any("No head was found" in note for note in account.notes)


def test_a_sequence_that_ran_counts_as_called():
    model = Reads()
    account = cosnorm.convert(model, drop_norms=True, example=torch.randn(2, 6))
    assert next(entry.now for entry in account if entry.name == "steps.1") == "Identity"
    model = Reads()
    cosnorm.convert(model, drop_norms=True)
    assert type(model.steps[1]) is nn.BatchNorm1d


def test_torchs_transformer_is_tried_the_way_it_will_run():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    account = cosnorm.convert(model, example=torch.randn(2, 5, 8))
    names = {entry.name for entry in account.changed}
    assert names == {"layers.0.linear1", "layers.0.linear2"}


def test_the_meta_device():
    with torch.device("meta"):
        model = Plain()
        account = cosnorm.convert(model, example=torch.randn(2, 6))
    assert {entry.name for entry in account.changed} == {"direct", "last"}


def test_models_that_know_their_layers_by_full_names_are_tried():
    class Names(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            kind = type(self.layer)
            known = {"torch.nn.modules.linear.Linear": 2.0}
            return self.layer(x) * known[f"{kind.__module__}.{kind.__qualname__}"]

    account = cosnorm.convert(Names(), example=torch.randn(2, 4))
    assert [entry.now for entry in account] == ["PearsonLinear"]
