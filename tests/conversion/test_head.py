"""The head: found where that is sure, named where it is not, and given a learned scale."""

import numpy as np
import pytest
import torch
from torch import nn

import cosnorm


def holder(**children):
    model = nn.Module()
    for name, child in children.items():
        setattr(model, name, child)
    return model


def linear():
    return nn.Linear(4, 4)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 3)
        self.conv2 = nn.Conv2d(4, 4, 1)


class Pooler(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = linear()
        self.activation = nn.Tanh()


def vgg():
    features = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU())
    classifier = nn.Sequential(linear(), nn.ReLU(), nn.Dropout(), linear())
    return holder(features=features, classifier=classifier)


def squeeze():
    last = nn.Sequential(nn.Dropout(), nn.Conv2d(4, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return holder(features=nn.Conv2d(4, 4, 3), classifier=last)


def efficient():
    return holder(blocks=nn.Sequential(Block()), conv_head=nn.Conv2d(4, 4, 1), classifier=linear())


def detector():
    towers = {
        "conv": nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU()),
        "cls_logits": nn.Conv2d(4, 4, 3),
    }
    boxes = {"conv": nn.Sequential(nn.Conv2d(4, 4, 3)), "bbox": nn.Conv2d(4, 4, 3)}
    head = holder(classification_head=holder(**towers), regression_head=holder(**boxes))
    return holder(backbone=nn.Conv2d(4, 4, 3), head=head)


def roberta():
    """As in several transformers: a head of two layers, the last called a projection."""
    classifier = holder(dense=linear(), dropout=nn.Dropout(), out_proj=linear())
    return holder(encoder=linear(), classifier=classifier)


def spectrogram():
    return holder(encoder=linear(), classifier=holder(layernorm=nn.LayerNorm(4), dense=linear()))


class Hidden(nn.Module):
    """`fc` is no head: the trace shows what comes after it, whatever the names."""

    def __init__(self, last="out"):
        super().__init__()
        self.fc = linear()
        self.norm = nn.LayerNorm(4)
        self.last = last
        setattr(self, last, linear())

    def forward(self, x):
        return getattr(self, self.last)(self.norm(self.fc(x)))


class Autoencoder(nn.Module):
    def __init__(self, name="post_quant_conv"):
        super().__init__()
        self.encoder = nn.Conv2d(4, 4, 3)
        self.decoder = nn.ConvTranspose2d(4, 4, 3)
        self.code = name
        setattr(self, name, nn.Conv2d(4, 4, 1))

    def forward(self, x):
        return self.decoder(getattr(self, self.code)(self.encoder(x)))


class Branching(nn.Module):
    """Two outputs, one through a part without parameters."""

    def __init__(self):
        super().__init__()
        self.body = linear()
        self.head = linear()
        self.head_dist = linear()

    def forward(self, x):
        x = self.body(x).relu()
        return self.head(x).softmax(-1), (self.head(x) + self.head_dist(x)) / 2


SURE = {
    "a projection inside a classifier": (roberta, ["classifier.out_proj"]),
    "a dense layer inside a classifier": (spectrogram, ["classifier.dense"]),
    "a projection to logits": (
        lambda: holder(transformer=linear(), logits_proj=linear()),
        ["logits_proj"],
    ),
    "behind a hidden fc": (Hidden, ["out"]),
    "behind a hidden fc, untraceable": (
        lambda: holder(fc=linear(), norm=nn.LayerNorm(4), out=linear()),
        ["out"],
    ),
    "behind a hidden fc, of any name": (lambda: Hidden("predicts"), ["predicts"]),
    "behind what comes before logits": (
        lambda: holder(head=holder(pre_logits=nn.Sequential(linear(), nn.GELU()), fc=linear())),
        ["head.fc"],
    ),
    "two outputs": (Branching, ["head", "head_dist"]),
    "named, whatever the order": (
        lambda: holder(fc=linear(), body=linear()),
        ["fc"],
    ),
    "last of a classifier": (vgg, ["classifier.3"]),
    "a 1×1 conv, ReLU and pooling": (squeeze, ["classifier.1"]),
    "the exact name before an ending": (efficient, ["classifier"]),
    "two of them": (
        lambda: holder(body=linear(), cls_classifier=linear(), distillation_classifier=linear()),
        ["cls_classifier", "distillation_classifier"],
    ),
    "several inside a head": (
        detector,
        ["head.classification_head.cls_logits", "head.regression_head.bbox"],
    ),
    "last of numbered layers": (
        lambda: holder(conv1=nn.Conv2d(4, 4, 3), fc1=linear(), fc2=linear(), relu=nn.ReLU()),
        ["fc2"],
    ),
    "last of a sequence": (
        lambda: nn.Sequential(linear(), nn.ReLU(), linear(), nn.LogSoftmax(1)),
        ["2"],
    ),
    "last of a sequence in a sequence": (
        lambda: nn.Sequential(nn.Sequential(linear(), nn.ReLU()), nn.Sequential(linear())),
        ["1.0"],
    ),
    "last of a list": (lambda: holder(layers=nn.ModuleList([linear(), linear()])), ["layers.1"]),
    "inside a wrapper": (lambda: holder(module=holder(a=linear(), fc=linear())), ["module.fc"]),
    "a 1×1 conv at the end": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        ),
        ["2"],
    ),
}
NONE = {
    "a code": Autoencoder,
    "a code of any name": lambda: Autoencoder("between"),
    "a code, untraceable": lambda: holder(
        encoder=nn.Conv2d(4, 4, 3), decoder=nn.Conv2d(4, 4, 3), post_quant_conv=nn.Conv2d(4, 4, 1)
    ),
    "a norm comes last": lambda: holder(layers=nn.ModuleList([linear()]), norm=nn.LayerNorm(4)),
    "an activation comes last": lambda: nn.Sequential(linear(), nn.ReLU()),
    "a pooler": lambda: holder(embeddings=nn.Embedding(4, 4), first=linear(), pooler=Pooler()),
    "a projection": lambda: holder(text=linear(), text_projection=linear()),
    "a 3×3 conv comes last": lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)),
    "a block comes last": lambda: nn.Sequential(Block(), Block()),
    "the head is a layer that stays": lambda: holder(body=linear(), head=nn.LSTM(4, 4)),
}


def scaled(model):
    return [
        name
        for name, module in model.named_modules()
        if hasattr(module, "learn_scale") and module.learn_scale
    ]


@pytest.mark.parametrize("case", SURE)
def test_found(case):
    build, expected = SURE[case]
    model = build()
    account = cosnorm.convert(model)
    assert scaled(model) == expected
    said = [entry.name for entry in account if entry.reason == "head: learned scale from 10"]
    assert said == expected
    for name in expected:
        assert torch.equal(model.get_submodule(name).scale, torch.tensor([10.0]))


@pytest.mark.parametrize("case", NONE)
def test_not_found_is_said(case):
    model = NONE[case]()
    account = cosnorm.convert(model)
    assert scaled(model) == []
    assert account.changed
    assert any("No head was found" in note for note in account.notes)


def test_none_asked_for():
    model = vgg()
    account = cosnorm.convert(model, head=None)
    assert scaled(model) == []
    assert account.notes == ()


def test_named():
    model = vgg()
    cosnorm.convert(model, head="features.0")
    assert scaled(model) == ["features.0"]
    model = vgg()
    cosnorm.convert(model, head=("features.0", "classifier.3"))
    assert scaled(model) == ["features.0", "classifier.3"]


def test_named_with_a_start():
    model = vgg()
    account = cosnorm.convert(model, head={"classifier.3": 32})
    assert model.classifier[3].scale.item() == 32
    assert account[-1].reason == "head: learned scale from 32"
    model.classifier[3].reset_parameters()
    assert model.classifier[3].scale.item() == 32


@pytest.mark.parametrize(
    ("classes", "start"), [(1, 10.0), (2, 10.0), (10, 10.0), (1000, 10.0), (50257, 15.3)]
)
def test_many_classes_start_higher(classes, start):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, classes))
    account = cosnorm.convert(model)
    assert model[2].scale.item() == pytest.approx(start)
    assert account[-1].reason == f"head: learned scale from {start:g}"
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Conv1d(8, classes, 1, groups=1))
    cosnorm.convert(model, head="2")
    assert model[2].scale.item() == pytest.approx(start)


def test_starts_may_be_any_real_number_or_left_open():
    model = vgg()
    cosnorm.convert(model, head={"classifier.3": np.float32(32), "classifier.0": None})
    assert model.classifier[3].scale.item() == 32
    assert model.classifier[0].scale.item() == 10


def test_a_skipped_head_stays_and_no_other_is_taken():
    model = vgg()
    cosnorm.convert(model, skip="classifier.3")
    assert type(model.classifier[3]) is nn.Linear
    assert scaled(model) == []


def test_the_scale_is_learned():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    cosnorm.convert(model)
    loss = nn.functional.cross_entropy(model(torch.randn(6, 4)), torch.arange(6) % 3)
    loss.backward()
    assert model[2].scale.grad.abs() > 0
