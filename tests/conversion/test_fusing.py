"""fuse_activations: a layer takes over the activation behind it where nothing else sees it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cosnorm
from cosnorm.conversion.fusing import name_of


class Block(nn.Module):
    def __init__(self, activation=None):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.act = activation or nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class Twice(Block):
    """The activation also gets what is no layer's."""

    def forward(self, x):
        return self.act(super().forward(x) + x)


class Residual(Block):
    def forward(self, x):
        y = self.norm(self.conv(x))
        return self.act(y) + y


class Before(Block):
    def forward(self, x):
        return self.norm(self.conv(self.act(x)))


class OnlyInTraining(Block):
    def forward(self, x):
        y = self.norm(self.conv(x))
        return self.act(y) if self.training else y


class OnlyWithoutOption(Block):
    def forward(self, x, extra=None):
        y = self.norm(self.conv(x))
        return self.act(y) if extra is None else y + extra


class TwoCalls(Block):
    """The layer also gives what no activation gets."""

    def forward(self, x):
        return self.conv(super().forward(x))


class Unreadable(Block):
    def forward(self, x):
        return super().forward(x) if float(x.sum()) > 0 else self.act(x)


class OfAPart(Block):
    """The activation has a second name, in a module that is not looked into."""

    def __init__(self, activation):
        super().__init__(activation)
        self.other = nn.Sequential(self.act, nn.Tanh())

    def forward(self, x):
        return self.other(super().forward(x))


class Changed(Block):
    def forward(self, x):
        y = self.norm(self.conv(x))
        return self.act(y.mul_(2))


class Function(Block):
    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


class Sized(Block):
    """Asking for a size is no use."""

    def forward(self, x):
        y = self.norm(self.conv(x))
        return self.act(y).reshape(y.shape[0], 4, *x.shape[2:])


class Shared(Block):
    """One activation behind two layers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return super().forward(self.act(self.first(x)))


class NormAndAct(nn.BatchNorm2d):
    """As image model libraries have it."""

    def __init__(self, size):
        super().__init__(size)
        self.drop = nn.Identity()
        self.act = nn.SiLU()

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


class Inside(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = NormAndAct(4)

    def forward(self, x):
        return self.norm(self.conv(x))


class Gelu(nn.Module):
    """As text model libraries have it: known by what it does."""

    def __init__(self, approximate="none"):
        super().__init__()
        self.approximate = approximate

    def forward(self, x):
        return F.gelu(x, approximate=self.approximate)


def fused(account):
    return {entry.name: entry.reason for entry in account if "fused" in entry.reason}


def compare(model, x, similarity="cosine", **options):
    """The account; values and gradients are those of the model with its activations beside."""
    plain = copy.deepcopy(model)
    cosnorm.convert(plain, similarity, drop_norms=True, **options)
    account = cosnorm.convert(model, similarity, drop_norms=True, fuse_activations=True, **options)
    for mode in (True, False):
        results = []
        for each in (plain, model):
            given = x.clone().requires_grad_()
            each.train(mode).zero_grad()
            y = each(given)
            y.square().sum().backward()
            grads = {name: p.grad for name, p in each.named_parameters()}
            results.append((y.detach(), given.grad, grads))
        torch.testing.assert_close(*results)
    return account


X = torch.randn(3, 4, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("similarity", ["cosine", "pearson"])
@pytest.mark.parametrize("kind", [Block, Sized, Inside, Shared])
def test_goes_into_the_layer(kind, similarity):
    torch.manual_seed(0)
    model = kind().double()
    act = model.norm.act if kind is Inside else model.act
    account = compare(model, X, similarity, head=None)
    assert type(act) is nn.Identity
    assert model.conv.activation == ("silu" if kind is Inside else "relu")
    told = {"norm.act": "fused into conv"} if kind is Inside else {"act": "fused into conv"}
    told = {"act": "fused into first, conv"} if kind is Shared else told
    assert set(fused(account)) == set(told)
    assert {words.removeprefix("fused into ") for words in fused(account).values()} <= {
        "conv", "first, conv", "conv, first",
    }  # fmt: skip
    entry = next(entry for entry in account if entry.name in told)
    assert entry.was == ("SiLU" if kind is Inside else "ReLU") and entry.now == "Identity"


@pytest.mark.parametrize(
    "kind",
    [Twice, Residual, Before, OnlyInTraining, OnlyWithoutOption, TwoCalls, OfAPart, Changed,
     Function],
)  # fmt: skip
def test_stays_where_something_else_sees_it(kind):
    torch.manual_seed(0)
    model = kind(nn.ReLU()).double()
    assert not fused(compare(model, X, head=None))
    assert model.conv.activation is None and type(model.act) is nn.ReLU


def test_stays_where_the_code_cannot_be_read():
    model = Unreadable()
    assert not fused(cosnorm.convert(model, head=None, drop_norms=True, fuse_activations=True))


def test_stays_behind_a_norm_that_stays():
    model = Block()
    assert not fused(cosnorm.convert(model, head=None, fuse_activations=True))
    assert model.conv.activation is None and type(model.act) is nn.ReLU


@pytest.mark.parametrize("place", ["conv", "norm", "act"])
@pytest.mark.parametrize("before", [False, True])
def test_stays_where_a_hook_sees_it(place, before):
    model = Block()
    module = getattr(model, place)
    register = module.register_forward_pre_hook if before else module.register_forward_hook
    register(lambda *_: None)
    assert not fused(cosnorm.convert(model, head=None, drop_norms=True, fuse_activations=True))


def test_a_hook_on_an_activation_inside_a_norm():
    model = Inside()
    model.norm.act.register_forward_hook(lambda *_: None)
    assert not fused(cosnorm.convert(model, head=None, drop_norms=True, fuse_activations=True))


@pytest.mark.parametrize("name", ["full_backward_hook", "full_backward_pre_hook"])
def test_stays_where_a_hook_sees_its_gradient(name):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    getattr(model[0], f"register_{name}")(lambda *_: None)
    assert not fused(cosnorm.convert(model, head=None, fuse_activations=True))


def test_a_hook_on_what_else_a_norm_holds():
    model = Inside()
    model.norm.drop.register_forward_hook(lambda *_: None)
    assert not fused(cosnorm.convert(model, head=None, drop_norms=True, fuse_activations=True))


@pytest.mark.parametrize("skip", ["act", nn.ReLU])
def test_stays_where_it_is_skipped(skip):
    model = Block()
    options = {"head": None, "drop_norms": True, "fuse_activations": True}
    assert not fused(cosnorm.convert(model, skip=skip, **options))
    assert type(model.act) is nn.ReLU


def test_without_norms():
    model = nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3)
    ).double()
    account = compare(model, torch.randn(5, 6).double())
    assert fused(account) == {"1": "fused into 0", "3": "fused into 2"}
    assert str(model[1]) == "Identity()" and "activation='gelu'" in str(model[2])


@pytest.mark.parametrize(
    "kind, name",
    [(nn.ReLU, "relu"), (nn.GELU, "gelu"), (nn.SiLU, "silu"), (nn.Hardswish, "hardswish"),
     (Gelu, "gelu")],
)  # fmt: skip
def test_known_by_what_it_does(kind, name):
    assert name_of(kind()) == name


class Guided(nn.Module):
    """Another gradient."""

    class Clamp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx, grad):
            return grad.clamp(min=0) * 2

    def forward(self, x):
        return self.Clamp.apply(x)


class Detached(nn.Module):
    def forward(self, x):
        return F.relu(x).detach()


class OfImages(nn.Module):
    def forward(self, x):
        return F.relu(x) if x.dim() < 4 else F.relu(x) - 0.5


class Keeping(nn.Module):
    last = None

    def forward(self, x):
        self.last = x
        return F.relu(x)


@pytest.mark.parametrize(
    "module",
    [Guided(), Detached(), OfImages(), Keeping(), nn.Identity(), nn.Tanh(), nn.ReLU6(), nn.PReLU(),
     nn.GELU("tanh"), Gelu("tanh"),
     nn.Hardtanh(0.0, 100.0), nn.LeakyReLU(1e-5), nn.RReLU(), nn.Dropout(0.0), nn.Softplus(20.0),
     nn.Threshold(1e-3, 0.0), nn.Sequential(nn.ReLU()), nn.Flatten(), nn.Softmax(0),
     nn.Linear(2, 2), nn.CELU(1e-4)],
    ids=lambda module: type(module).__name__,
)  # fmt: skip
def test_no_other_is_taken_for_one(module):
    assert name_of(module) is None


def test_no_random_number_is_used_up():
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Linear(3, 3), nn.RReLU())
    before = torch.get_rng_state()
    cosnorm.convert(model, head=None, fuse_activations=True)
    assert torch.equal(torch.get_rng_state(), before)


def test_whatever_the_default_device_is():
    with torch.device("meta"):
        assert name_of(nn.GELU()) == "gelu" and name_of(nn.Tanh()) is None


def test_a_replaced_forward_is_not_taken():
    module = nn.ReLU()
    module.forward = torch.relu
    assert name_of(module) is None


@pytest.mark.parametrize("similarity", ["cosine", "pearson"])
def test_calibrated_scales_are_those_of_before_the_activation(similarity):
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(nn.GELU()), nn.Flatten(), nn.Linear(120, 3)).double()
    assert len(fused(compare(model, X, similarity, calibrate=X))) == 2


@pytest.mark.parametrize("fuse", [False, True])
def test_a_state_says_nothing_of_it(fuse):
    """What was saved with the activation fused comes back beside the layer, and the other way."""
    torch.manual_seed(0)
    trained = nn.Sequential(Block(), nn.Flatten(), nn.Linear(120, 3)).double()
    again = copy.deepcopy(trained)
    options = {"similarity": "cosine", "drop_norms": True}
    cosnorm.convert(trained, **options, calibrate=X, fuse_activations=fuse)
    cosnorm.convert(again, **options, state=trained.state_dict(), fuse_activations=not fuse)
    torch.testing.assert_close(again(X), trained(X))
    assert again[0].conv.activation == (None if fuse else "relu")


def test_folded():
    torch.manual_seed(0)
    model = nn.Sequential(Block(nn.Hardswish()), Inside()).double().eval()
    cosnorm.convert(model, head=None, drop_norms=True, fuse_activations=True)
    expected = model(X)
    cosnorm.fold(model)
    torch.testing.assert_close(model(X), expected)


def test_converted_once_more():
    """What was fused stays; what is converted later is judged anew."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
    options = {"head": None, "fuse_activations": True}
    cosnorm.convert(model, skip="2", **options)
    assert fused(cosnorm.convert(model, **options)) == {"3": "fused into 2"}
    assert [getattr(model[k], "activation", None) for k in (0, 2)] == ["relu", "relu"]


def test_what_reads_an_activation_still_can():
    class Reads(Block):
        def forward(self, x):
            y = super().forward(x)
            return y + self.act.inplace

    model = Reads().double()
    compare(model, X, head=None)
    assert type(model.act) is nn.Identity and model.act.inplace is True


def test_that_none_went_is_told():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU())
    account = cosnorm.convert(model, head=None, fuse_activations=True)
    assert any("No activation was taken over" in note for note in account.notes)
    assert not any("activation" in note for note in cosnorm.convert(nn.Linear(3, 3)).notes)


def test_anything_but_true_or_false_is_refused():
    model = nn.Linear(3, 3)
    with pytest.raises(TypeError, match="fuse_activations must be True or False; got 'relu'"):
        cosnorm.convert(model, fuse_activations="relu")  # pyright: ignore[reportArgumentType]
    assert type(model) is nn.Linear


class Storing(Block):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x):
        y = self.conv(x)
        self.before = y
        return self.act(y)


def test_an_activation_stays_where_what_comes_before_it_is_stored():
    model = Storing()
    x = torch.randn(2, 4, 6, 6)
    account = cosnorm.convert(model, fuse_activations=True)
    assert not any(entry.now == "Identity" for entry in account)
    model(x)
    assert (model.before < 0).any()
