"""drop_norms: a norm goes where it is sure to follow a converted layer directly, and only there."""

import pytest
import torch
from torch import nn

import cosnorm


class Direct(nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.norm = norm or nn.BatchNorm2d(4)  # registered first: the order tells nothing
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.norm(self.conv(x))
        y += x
        return self.relu(y)


class Before(Direct):
    def forward(self, x):
        return self.conv(self.norm(x))


class Apart(Direct):
    def forward(self, x):
        return self.norm(self.conv(x).relu())


class Sum(Direct):
    def forward(self, x):
        return self.norm(x + self.conv(x))


class Twice(Direct):
    def forward(self, x):
        return self.norm(self.conv(self.norm(x)))


class OnlyInTraining(Direct):
    def forward(self, x):
        return self.norm(self.conv(x)) if self.training else self.norm(x)


class OnlyWithoutOption(Direct):
    def forward(self, x, extra=None):
        return self.norm(self.conv(x)) if extra is None else self.norm(extra)


class Unreadable(Direct):
    def forward(self, x):
        return self.norm(self.conv(x)) if x.sum() > 0 else x


class Unused(Direct):
    def forward(self, x):
        return self.conv(x)


class Remembers(Direct):
    """Leaves traces of a run on itself, in a list and in a buffer."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.seen.append(x)
        self.calls += 1
        self.last = x
        return self.norm(self.conv(x))


NORMS = {
    "batch": lambda: nn.BatchNorm2d(4),
    "group": lambda: nn.GroupNorm(2, 4),
    "instance": lambda: nn.InstanceNorm2d(4, affine=True),
    "layer": lambda: nn.LayerNorm([4, 6, 6]),
    "rms": lambda: nn.RMSNorm([4, 6, 6]),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_direct_follower_goes_and_the_model_runs(name):
    model = Direct(NORMS[name]())
    norm = model.norm
    account = cosnorm.convert(model, drop_norms=True)
    assert model.norm is norm
    assert type(model.norm) is nn.Identity
    assert {e.name: (e.now, e.reason) for e in account}["norm"] == (
        "Identity",
        "directly follows conv",
    )
    assert not any(key.startswith("norm") for key in model.state_dict())
    x = torch.randn(2, 4, 6, 6)
    y = model(x)
    y.sum().backward()
    torch.testing.assert_close(y, (x + model.conv(x)).relu())


@pytest.mark.parametrize("kind", [Before, Apart, Sum, Twice, OnlyInTraining, OnlyWithoutOption])
def test_a_norm_that_follows_something_else_stays(kind):
    model = kind()
    account = cosnorm.convert(model, drop_norms=True)
    assert type(model.norm) is nn.BatchNorm2d
    reason = next(entry.reason for entry in account if entry.name == "norm")
    assert reason == "a normalisation layer that does not directly follow a converted layer"


@pytest.mark.parametrize("kind", [Unreadable, Unused])
def test_a_norm_of_which_nothing_is_certain_stays(kind):
    model = kind()
    account = cosnorm.convert(model, drop_norms=True)
    assert type(model.norm) is nn.BatchNorm2d
    reason = next(entry.reason for entry in account if entry.name == "norm")
    assert reason == "a normalisation layer; what it follows could not be established"


def test_the_largest_readable_part_is_read():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Direct()
            self.last_norm = nn.BatchNorm2d(4)

        def forward(self, x):
            return self.last_norm(self.block(x)) if x.max() > 0 else x

    model = Whole()
    cosnorm.convert(model, drop_norms=True)
    assert type(model.block.norm) is nn.Identity
    assert type(model.last_norm) is nn.BatchNorm2d


def test_in_a_sequence_the_order_is_enough():
    class Unreadable(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    model = nn.Sequential(
        nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.GroupNorm(2, 4),
        Unreadable(), nn.Conv2d(4, 4, 1), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 1), nn.Dropout(),
        nn.LayerNorm([4, 2, 2]),
    )  # fmt: skip
    cosnorm.convert(model, drop_norms=True, skip="8")
    gone = [name for name, module in model.named_children() if type(module) is nn.Identity]
    assert gone == ["2", "7"]


def test_a_norm_in_two_places_must_follow_in_both():
    norm = nn.BatchNorm2d(4)
    model = nn.Sequential(nn.Conv2d(4, 4, 1), norm, nn.ReLU(), norm)
    cosnorm.convert(model, drop_norms=True)
    assert type(norm) is nn.BatchNorm2d
    model = nn.Sequential(nn.Conv2d(4, 4, 1), norm, nn.Conv2d(4, 4, 1), norm)
    account = cosnorm.convert(model, drop_norms=True)
    assert type(norm) is nn.Identity
    assert [entry.name for entry in account if entry.now == "Identity"] == ["1", "3"]


def test_skipped_layers_keep_their_norms_and_skipped_norms_stay():
    model = Direct()
    cosnorm.convert(model, drop_norms=True, skip="conv")
    assert type(model.norm) is nn.BatchNorm2d
    account = cosnorm.convert(model, drop_norms=True, skip="norm")
    assert type(model.norm) is nn.BatchNorm2d
    assert next(e.reason for e in account if e.name == "norm") == "skipped by 'norm'"


def test_norms_stay_unless_asked():
    model = Direct()
    account = cosnorm.convert(model)
    assert type(model.norm) is nn.BatchNorm2d
    assert next(e.reason for e in account if e.name == "norm") == "a normalisation layer"


def test_reading_a_model_leaves_no_trace_on_it():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Remembers()

        def forward(self, x):
            return self.part(x) * torch.rand(())

    model = Whole().eval()
    part = model.part
    part.conv.train()
    hooked = []
    part.register_forward_hook(lambda *_: hooked.append("after"))
    part.register_forward_pre_hook(lambda *_: hooked.append("before"))
    before = torch.get_rng_state()
    cosnorm.convert(model, drop_norms=True)
    assert type(part.norm) is nn.Identity
    assert torch.equal(torch.get_rng_state(), before)
    assert (part.seen, hooked, part.calls.item()) == ([], [], 0)
    assert not hasattr(part, "last")
    assert not model.training
    assert part.conv.training
