"""drop_norms before layers: a norm goes that makes no difference to what it goes into."""

import copy

import pytest
import torch
from torch import nn

import cosnorm

GONE = "makes no difference to {}, into which alone it goes"
NOR = (
    "a normalisation layer that does not directly follow a converted layer, "
    "nor goes only into converted linear layers"
)


class Attention(nn.Module):
    """As in image model libraries: one layer for all three, sizes unpacked."""

    def __init__(self, bias):
        super().__init__()
        self.qkv = nn.Linear(8, 24, bias=bias)
        self.proj = nn.Linear(8, 8)

    def forward(self, x, mask=None):
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(y.transpose(1, 2).reshape(*x.shape[:-1], -1))


class Block(nn.Module):
    def __init__(self, norm=nn.LayerNorm, bias=False):
        super().__init__()
        self.norm1 = norm(8)
        self.attn = Attention(bias)
        self.norm2 = norm(8)
        self.fc1 = nn.Linear(8, 16, bias=bias)
        self.fc2 = nn.Linear(16, 8)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))


class Net(nn.Module):
    def __init__(self, norm=nn.LayerNorm, bias=False):
        super().__init__()
        self.blocks = nn.Sequential(Block(norm, bias), Block(norm, bias))
        self.norm = norm(8)
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(8, 5, bias=bias)

    def forward(self, x):
        x = self.norm(self.blocks(x))
        return self.head(self.drop(x[:, 0]))


class OtherRMSNorm(nn.Module):
    """Defined by another library: known by its name and by what it does."""

    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


class SignsRMSNorm(OtherRMSNorm):
    def forward(self, x):
        return super().forward(x).sign()


class Layer(nn.Module):
    """A norm, then what a subclass says, a layer at the end."""

    def __init__(self, norm=None, bias=False):
        super().__init__()
        self.norm = nn.LayerNorm(8) if norm is None else norm
        self.fc = nn.Linear(8, 8, bias=bias)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.fc(self.norm(x))


class UsedTwice(Layer):
    def forward(self, x):
        y = self.norm(x)
        return self.fc(y) + y


class Returned(Layer):
    def forward(self, x):
        y = self.norm(x)
        return self.fc(y), y


class Dropped(Layer):
    def forward(self, x):
        return self.fc(self.drop(self.norm(x)))


class Turned(Layer):
    """Rows become columns: with as many tokens as features it still runs."""

    def forward(self, x):
        return self.fc(self.norm(x).transpose(1, 2))


class ChangedBetween(Layer):
    def forward(self, x):
        y = self.norm(x)
        x += 1
        return self.fc(y) + x


class ReadAsAMask(Layer):
    def forward(self, x):
        y = self.norm(x)
        return self.fc(y).masked_fill(y > 0, 0)


def both(model, x, similarity="pearson"):
    """(converted, converted without norms, account of the latter, values of both)"""
    kept, freed = copy.deepcopy(model), copy.deepcopy(model)
    cosnorm.convert(kept, similarity, head=None)
    account = cosnorm.convert(freed, similarity, head=None, drop_norms=True)
    return kept, freed, account, kept(x), freed(x)


def about(account, name):
    return next((entry.now, entry.reason) for entry in account if entry.name == name)


@pytest.mark.parametrize(
    ("norm", "similarity"),
    [
        (nn.LayerNorm, "pearson"),
        (nn.RMSNorm, "pearson"),
        (nn.RMSNorm, "cosine"),
        (OtherRMSNorm, "cosine"),
        (lambda features: nn.LayerNorm(features, elementwise_affine=False), "pearson"),
        (lambda features: nn.RMSNorm(features, elementwise_affine=False), "cosine"),
    ],
)
def test_the_values_stay(norm, similarity):
    x = torch.randn(3, 6, 8, dtype=torch.float64) * 5 + 2
    kept, freed, account, expected, got = both(Net(norm).double(), x, similarity)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    gone = [name for name, _, now, _ in account if now == "Identity"]
    assert gone == ["blocks.0.norm1", "blocks.0.norm2", "blocks.1.norm1", "blocks.1.norm2", "norm"]
    assert about(account, "blocks.1.norm1")[1] == GONE.format("attn.qkv")
    assert about(account, "norm")[1] == GONE.format("head")
    assert not any("norm" in key for key in freed.state_dict())
    grads = torch.autograd.grad(expected.square().sum(), kept.head.weight)
    torch.testing.assert_close(torch.autograd.grad(got.square().sum(), freed.head.weight), grads)


@pytest.mark.parametrize("gain", [0.5, 3.0])
def test_a_constant_gain_and_shift_make_no_difference(gain):
    model = Layer().double()
    nn.init.constant_(model.norm.weight, gain)
    nn.init.constant_(model.norm.bias, -gain)
    *_, account, expected, got = both(model, torch.randn(3, 8, dtype=torch.float64))
    assert about(account, "norm") == ("Identity", GONE.format("fc"))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_the_mean_that_a_layer_norm_takes_off_counts_for_the_cosine():
    *_, account, expected, got = both(Layer(), torch.randn(3, 8) + 1, "cosine")
    assert about(account, "norm") == (
        None,
        "goes only into fc, but it takes off the mean, which the cosine sees",
    )
    assert torch.equal(got, expected)


@pytest.mark.parametrize("change", ["weight", "bias"])
def test_uneven_gains_and_shifts_stay(change):
    model = Layer()
    with torch.no_grad():
        getattr(model.norm, change)[3] += 1e-6
    *_, account, expected, got = both(model, torch.randn(3, 8))
    assert about(account, "norm") == (
        None,
        "goes only into fc, but its gain or shift differs from feature to feature",
    )
    assert torch.equal(got, expected)


@pytest.mark.parametrize("gain", [0.0, -1.0])
def test_a_gain_that_is_not_positive_stays(gain):
    model = Layer()
    nn.init.constant_(model.norm.weight, gain)
    *_, account, expected, got = both(model, torch.randn(3, 8))
    assert about(account, "norm")[1].endswith("but what it does to a row is not known")
    assert torch.equal(got, expected)


def test_what_only_has_the_name_stays():
    *_, account, _, _ = both(Layer(SignsRMSNorm(8)), torch.randn(3, 8))
    assert about(account, "norm")[0] is None


def test_beside_a_bias_the_length_of_a_row_counts():
    model = Layer(bias=True)
    *_, account, expected, got = both(model, torch.randn(3, 8))
    assert about(account, "norm") == (
        None,
        "goes only into fc, but beside a bias, not zero, the length of a row counts",
    )
    assert torch.equal(got, expected)


def test_a_bias_that_is_zero_goes_too_and_it_is_said():
    model = Net(bias=True).double()
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    x = torch.randn(3, 6, 8, dtype=torch.float64)
    twin = copy.deepcopy(model)
    for block in twin.blocks:
        block.attn.qkv.bias = block.fc1.bias = None
    twin.head.bias = None
    cosnorm.convert(twin, head=None)
    _, freed, account, _, got = both(model, x)
    torch.testing.assert_close(got, twin(x), rtol=0, atol=1e-12)
    layer = freed.blocks[0].attn.qkv
    assert layer.bias is None
    assert "bias=False" in repr(layer)
    assert about(account, "blocks.0.attn.qkv") == (
        "PearsonLinear",
        "its bias, which was zero, went with blocks.0.norm1",
    )
    assert freed.blocks[0].fc2.bias is not None
    got.sum().backward()


@pytest.mark.parametrize("kind", [UsedTwice, Returned, Dropped, Turned, ReadAsAMask])
def test_a_norm_that_goes_elsewhere_too_stays(kind):
    model = kind()
    account = cosnorm.convert(model, head=None, drop_norms=True)
    assert about(account, "norm") == (None, NOR)


def test_a_norm_stays_where_its_input_changes_before_it_is_used():
    model = ChangedBetween().double()
    x = torch.randn(3, 8, dtype=torch.float64)
    account = cosnorm.convert(model, head=None, drop_norms=True)
    assert about(account, "norm")[1].endswith("the tensor is changed or used elsewhere")
    y = torch.layer_norm(x, (8,))
    torch.testing.assert_close(model(x.clone()), model.fc(y) + x + 1)


def test_skipped_layers_and_norms_stay():
    account = cosnorm.convert(Net(), head=None, drop_norms=True, skip=["*.qkv", "norm"])
    assert about(account, "blocks.0.norm1") == (None, NOR)
    assert about(account, "norm") == (None, "skipped by 'norm'")
    assert about(account, "blocks.0.norm2")[0] == "Identity"


def test_unreadable_blocks_keep_their_norms():
    class Unreadable(Layer):
        def forward(self, x):
            return self.fc(self.norm(x)) * float(x.sum())

    account = cosnorm.convert(Unreadable(), head=None, drop_norms=True)
    assert about(account, "norm")[1] == (
        "a normalisation layer; what it follows and goes into could not be established"
    )


def test_gains_without_values_stay():
    with torch.device("meta"):
        model = Layer()
    account = cosnorm.convert(model, head=None, drop_norms=True)
    assert about(account, "norm")[0] is None


def test_where_a_zero_bias_goes_too_the_reason_says_so():
    model = nn.Sequential(nn.Identity(), nn.LayerNorm(8), nn.Linear(8, 4))
    nn.init.zeros_(model[2].bias)
    (norm,) = (entry for entry in cosnorm.convert(model, drop_norms=True) if entry.name == "1")
    assert (
        norm.reason == "goes only into 2, to which it makes no difference without their zero bias"
    )
    assert model[2].bias is None


class ReadsBehind(nn.Module):
    """Of a norm that directly follows a layer, the gain is used again."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.conv(x)) * self.norm.weight[:, None, None]


class ReadsBefore(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(8), nn.Linear(8, 8, bias=False)

    def forward(self, x):
        return self.layer(self.norm(x)) + nn.functional.layer_norm(x, (8,), self.norm.weight)


@pytest.mark.parametrize(("make", "size"), [(ReadsBehind, (2, 3, 6, 6)), (ReadsBefore, (2, 8))])
@pytest.mark.parametrize("inside", [False, True])
def test_norms_whose_parameters_are_used_elsewhere_stay(make, size, inside):
    model = nn.Sequential(make()) if inside else make()
    account = cosnorm.convert(model, drop_norms=True, head=None)
    (norm,) = (entry for entry in account if entry.name.endswith("norm"))
    assert norm.now is None
    assert norm.reason == "a normalisation layer whose parameters are used elsewhere too"
    assert model(torch.randn(size)).isfinite().all()


STORED = []


class Keeping(nn.Module):
    """What the norm gives is stored where no trace shows it being used."""

    def __init__(self, where):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(8), nn.Linear(8, 6, bias=False)
        self.where, self.seen = where, {"list": [], "dict": {}}

    def forward(self, x):
        h = self.norm(x)
        if self.where == "attribute":
            self.kept = h
        elif self.where == "list":
            self.seen["list"].append(h)
        elif self.where == "dict":
            self.seen["dict"]["h"] = h
        else:
            STORED.append(h)
        return self.layer(h)


@pytest.mark.parametrize("where", ["attribute", "list", "dict", "global"])
def test_a_norm_stays_whose_output_is_stored(where):
    account = cosnorm.convert(Keeping(where), drop_norms=True)
    assert about(account, "norm")[0] is None
    STORED.clear()


class Cast(nn.Module):
    def __init__(self, cast):
        super().__init__()
        self.norm, self.layer, self.cast = nn.LayerNorm(8), nn.Linear(8, 6, bias=False), cast

    def forward(self, x):
        return self.layer(getattr(self.norm(x), self.cast)().float())


@pytest.mark.parametrize(("cast", "goes"), [("half", False), ("bfloat16", False), ("double", True)])
def test_a_norm_stays_where_what_it_takes_off_would_be_rounded(cast, goes):
    """Rows far from zero do not fit into float16 as they are, and in bfloat16 lose their digits."""
    model, x = Cast(cast), torch.randn(3, 8) + 1e5
    account = cosnorm.convert(model, drop_norms=True)
    assert (about(account, "norm")[0] == "Identity") == goes
    assert model(x).isfinite().all()


class Tied(nn.Module):
    """A head whose bias its owner has too, as in transformers' BERT."""

    def __init__(self):
        super().__init__()
        self.norm, self.decoder = nn.LayerNorm(8), nn.Linear(8, 5)
        self.bias = nn.Parameter(torch.zeros(5))
        self.decoder.bias = self.bias

    def forward(self, x):
        return self.decoder(self.norm(x))


def test_a_bias_with_another_owner_stays_and_so_does_the_norm():
    model, again = Tied(), Tied()
    account = cosnorm.convert(model, drop_norms=True)
    told = "goes only into decoder, but beside a bias that other modules have too"
    assert about(account, "norm") == (None, told)
    cosnorm.convert(again, drop_norms=True, state=model.state_dict())
    x = torch.randn(3, 8)
    assert torch.equal(again(x), model(x))
