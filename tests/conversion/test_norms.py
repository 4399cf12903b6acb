"""drop_norms: a norm goes where it is sure to follow a converted layer directly."""

import copy
from collections import OrderedDict

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
        return self.norm(self.conv(x)) if float(x.sum()) > 0 else x


class Branches(Direct):
    def forward(self, x):
        if x.shape[-1] % 2 == 0 and x.max() > 0:
            x = nn.functional.pad(x, (0, max(3 - x.shape[-1] % 2, 0)))
        return self.norm(self.conv(x))


class OneBranchDiffers(Direct):
    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) if x.sum() > 0 else self.norm(y + x)


def padded(x, conv):
    """As MobileNets ported from another library pad: sizes become ints, which no symbol can."""
    height, width = int(x.shape[-2]), int(x.shape[-1])
    return nn.functional.pad(x, (0, width % conv.stride[1], 0, height % conv.stride[0]))


class Helped(Direct):
    def forward(self, x):
        return self.norm(padded(self.conv(padded(x, self.conv)), self.conv)) if self.training else x


class HelpedBefore(Direct):
    def forward(self, x):
        return self.norm(self.conv(padded(x, self.conv)))


class AddedInPlace(Direct):
    def forward(self, x):
        y = self.conv(x)
        y.add_(x)
        return self.norm(y)


class AddedByOperator(Direct):
    def forward(self, x):
        y = z = self.conv(x)
        z += x
        return self.norm(y)


class Assigned(Direct):
    def forward(self, x):
        y = self.conv(x)
        y[:, 0] = x[:, 0]
        return self.norm(y)


class ActivatedInPlace(Direct):
    def forward(self, x):
        y = self.conv(x)
        self.relu(y)
        return self.norm(y)


class FunctionInPlace(Direct):
    def forward(self, x):
        y = self.conv(x)
        nn.functional.leaky_relu(y[:, :2], 0.1, True)
        return self.norm(y)


class UsedBefore(Direct):
    """Without the norm, the activation would change what is added."""

    def forward(self, x):
        y = self.conv(x)
        return self.relu(self.norm(y)) + y


class SizeAsked(Direct):
    def forward(self, x):
        y = self.conv(x)
        return self.norm(y).view(y.shape[0], -1)


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


@pytest.mark.parametrize(
    "kind", [Before, Apart, Sum, Twice, OnlyInTraining, OnlyWithoutOption, OneBranchDiffers]
)
def test_a_norm_that_follows_something_else_stays(kind):
    model = kind()
    account = cosnorm.convert(model, drop_norms=True)
    assert type(model.norm) is nn.BatchNorm2d
    reason = next(entry.reason for entry in account if entry.name == "norm")
    assert reason == "a normalisation layer that does not directly follow a converted layer"


@pytest.mark.parametrize("kind", [Branches, HelpedBefore, SizeAsked])
def test_every_way_a_model_can_run_is_read(kind):
    model = kind()
    cosnorm.convert(model, drop_norms=True)
    assert type(model.norm) is nn.Identity
    model(torch.randn(2, 4, 6, 6)).sum().backward()


@pytest.mark.parametrize(
    "kind", [AddedInPlace, AddedByOperator, Assigned, ActivatedInPlace, FunctionInPlace, UsedBefore]
)
def test_a_norm_stays_where_the_tensor_before_it_changes(kind):
    model = kind()
    account = cosnorm.convert(model, drop_norms=True)
    assert type(model.norm) is nn.BatchNorm2d
    reason = next(entry.reason for entry in account if entry.name == "norm")
    assert reason == (
        "a normalisation layer; between it and a converted layer the tensor is changed or used "
        "elsewhere"
    )


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return self.conv(x)


@pytest.mark.parametrize("hooked", ["norm before", "norm after", "conv after", "block after"])
def test_a_norm_stays_where_hooks_may_change_the_tensor(hooked):
    model = nn.Sequential(OrderedDict(block=Block(), norm=nn.BatchNorm2d(4)))
    cosnorm.convert(copy.deepcopy(model), drop_norms=True)
    module = {"norm": model.norm, "conv": model.block.conv, "block": model.block}[hooked.split()[0]]
    if hooked.endswith("before"):
        module.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    else:
        module.register_forward_hook(lambda module, inputs, output: output * 2)
    account = cosnorm.convert(model, drop_norms=True)
    assert type(model.norm) is nn.BatchNorm2d
    assert "the tensor is changed" in account[-1].reason


def test_a_hook_on_what_holds_both_is_no_obstacle():
    model = nn.Sequential(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)), nn.ReLU())
    model[0].register_forward_hook(lambda module, inputs, output: output * 2)
    cosnorm.convert(model, drop_norms=True)
    assert type(model[0][1]) is nn.Identity


@pytest.mark.parametrize("norm", [nn.InstanceNorm2d(4), nn.LayerNorm(4, elementwise_affine=False)])
def test_a_norm_without_parameters_has_its_entry(norm):
    model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), norm, nn.Conv2d(4, 4, 1))
    account = cosnorm.convert(copy.deepcopy(model), drop_norms=True)
    was = type(norm).__name__
    assert tuple(account[1]) == ("1", was, "Identity", "directly follows 0")
    assert tuple(cosnorm.convert(model)[1]) == ("1", was, None, "a normalisation layer")


class ListUser(nn.Module):
    """Can't be read, and uses its sequence as a list."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) + float(x.sum())
        return x


class SequenceUser(ListUser):
    def forward(self, x):
        return self.layers(x) * float(x.sum())


@pytest.mark.parametrize("kind", [ListUser, SequenceUser])
def test_a_sequence_in_an_unreadable_model_may_be_a_mere_list(kind):
    model = kind()
    account = cosnorm.convert(model, drop_norms=True)
    assert type(model.layers[1]) is nn.BatchNorm2d
    assert account[-1].reason == ("a normalisation layer; what it follows could not be established")


def test_what_comes_from_outside_a_readable_part_is_unknown():
    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(4)
            self.conv = nn.Conv2d(4, 4, 1)

        def forward(self, x):
            return self.conv(self.norm(x))

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)
            self.part = First()

        def forward(self, x):
            return self.part(self.conv(x)) * float(x.sum())

    model = Whole()
    account = cosnorm.convert(model, drop_norms=True)
    reason = next(entry.reason for entry in account if entry.name == "part.norm")
    assert reason == "a normalisation layer; what it follows could not be established"


class NormAndActivation(nn.BatchNorm2d):
    """A class that does two things, as image model libraries have them."""

    def __init__(self, features):
        super().__init__(features)
        self.drop = nn.Identity()
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


class ChannelsFirst(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class DoesMore(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x).relu()


def test_the_activation_of_a_norm_stays():
    model = nn.Sequential(nn.Conv2d(4, 6, 1), NormAndActivation(6))
    norm = model[1]
    account = cosnorm.convert(model, drop_norms=True)
    assert model[1] is norm
    assert tuple(account[1]) == (
        "1",
        "NormAndActivation",
        "Sequential",
        "directly follows 0; drop, act stay",
    )
    assert set(model.state_dict()) == {"0.weight", "0.bias"}
    x = torch.randn(2, 4, 3, 3)
    assert torch.equal(model(x), model[0](x).relu())


def test_a_norm_of_another_layout_goes_and_one_that_does_more_stays():
    model = nn.Sequential(nn.Conv2d(4, 6, 1), ChannelsFirst(6), nn.Conv2d(6, 6, 1), DoesMore(6))
    account = cosnorm.convert(model, drop_norms=True)
    assert type(model[1]) is nn.Identity
    assert type(model[3]) is DoesMore
    assert account[-1].reason == "directly follows 2, but what else it does is not known"


@pytest.mark.parametrize("kind", [Unreadable, Unused, Helped])
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
            return self.last_norm(self.block(x)) if float(x.max()) > 0 else x

    model = Whole()
    cosnorm.convert(model, drop_norms=True)
    assert type(model.block.norm) is nn.Identity
    assert type(model.last_norm) is nn.BatchNorm2d


def test_a_sequence_is_read_around_what_cannot_be_read():
    class Unreadable(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)

        def forward(self, x):
            return self.conv(x) if float(x.sum()) > 0 else -x

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


def test_a_norm_behind_a_layer_that_is_converted_already():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    cosnorm.convert(model)
    account = cosnorm.convert(model, drop_norms=True)
    told = {entry.name: (entry.now, entry.reason) for entry in account}
    assert told["1"] == ("Identity", "directly follows 0")
    assert isinstance(model[1], nn.Identity)
