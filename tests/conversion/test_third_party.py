"""Models of another library, built from a configuration: converted, they run and they train."""

import copy
import os
from collections import Counter

import pytest
import torch
from torch import nn

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", exc_type=ImportError)

import cosnorm  # noqa: E402

VOCABULARY = 50


def resnet():
    config = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[16, 32],
        depths=[2, 1],
        layer_type="bottleneck",
        num_labels=5,
    )
    return transformers.ResNetForImageClassification(config)


def convnext():
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 16], depths=[1, 2], num_stages=2, num_labels=5
    )
    return transformers.ConvNextForImageClassification(config)


def vit():
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        image_size=32, patch_size=8, num_labels=5,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def gpt2():
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=2, vocab_size=VOCABULARY, n_positions=16,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def bert():
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        vocab_size=VOCABULARY, num_labels=5,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


MODELS = {
    "resnet": (resnet, {"Conv2d": 12, "Linear": 1}, "classifier.1"),
    "convnext": (convnext, {"Conv2d": 5, "Linear": 7}, "classifier"),
    "vit": (vit, {"Conv2d": 1, "Linear": 13}, "classifier"),
    "gpt2": (gpt2, {"Conv1D": 8, "Linear": 1}, "lm_head"),
    "bert": (bert, {"Linear": 8}, "classifier"),
}


def example(name):
    if name in ("gpt2", "bert"):
        return torch.randint(0, VOCABULARY, (3, 8))
    return torch.randn(3, 3, 32, 32)


def loss_of(model, x):
    logits = model(x).logits
    return nn.functional.cross_entropy(
        logits.flatten(0, -2), torch.arange(logits[..., 0].numel()) % 5
    )


@pytest.fixture(params=MODELS)
def case(request):
    build, counts, head = MODELS[request.param]
    return build(), example(request.param), counts, head


def is_layer(module):
    return isinstance(module, nn.Linear | nn.Conv2d) or type(module).__name__ == "Conv1D"


def holds_state(module):
    return any(True for _ in [*module.parameters(recurse=False), *module.buffers(recurse=False)])


@pytest.mark.parametrize("similarity", ["pearson", "cosine"])
@pytest.mark.parametrize("drop_norms", [False, True])
def test_converted_models_run_forward_and_backward(case, similarity, drop_norms):
    model, x, counts, head = case
    stateful = {name for name, module in model.named_modules() if holds_state(module)}
    linear = {name for name, module in model.named_modules() if is_layer(module)}
    account = cosnorm.convert(model, similarity, drop_norms=drop_norms)
    assert {entry.name for entry in account} == stateful
    converted = [entry for entry in account.changed if entry.now != "Identity"]
    assert {entry.name for entry in converted} == linear
    assert Counter(entry.was for entry in converted) == counts
    assert all(entry.now.endswith(("Linear", "Conv2d")) for entry in converted)
    assert [e.name for e in account if e.reason.startswith("head")] == [head]
    loss_of(model, x).backward()
    frozen = {name for name, p in model.named_parameters() if p.grad is None}
    assert frozen <= {"bert.pooler.dense.weight"} | {n for n in frozen if "mask_token" in n}
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    assert model.get_submodule(head).scale.grad.abs() > 0


def test_converted_models_train(case):
    model, x, _, _ = case
    cosnorm.convert(model)
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(12):
        loss = loss_of(model, x)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert min(losses[-3:]) < 0.8 * losses[0]


def test_round_trip_copy_and_modes(case):
    model, x, _, head = case
    untouched = copy.deepcopy(model)
    keys = set(model.state_dict())
    cosnorm.convert(model)
    model.eval()
    assert set(model.state_dict()) == keys | {f"{head}.scale"}
    other = copy.deepcopy(untouched)
    cosnorm.convert(other)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        expected = model(x).logits
        assert torch.equal(other.eval()(x).logits, expected)
        assert torch.equal(copy.deepcopy(model)(x).logits, expected)
        assert not torch.allclose(untouched.eval()(x).logits, expected)


def test_resnet_loses_every_norm_and_transformers_none():
    account = cosnorm.convert(resnet(), drop_norms=True)
    assert not account.left
    assert sum(entry.now == "Identity" for entry in account) == 12
    for build in (vit, gpt2, bert, convnext):
        model = build()
        norms = sum(isinstance(module, nn.LayerNorm) for module in model.modules())
        cosnorm.convert(model, drop_norms=True)
        assert sum(isinstance(module, nn.LayerNorm) for module in model.modules()) == norms


def test_tied_weights_stay_tied():
    model = gpt2()
    cosnorm.convert(model)
    assert model.lm_head.weight is model.transformer.wte.weight
    model.tie_weights()
    assert model.lm_head.weight is model.transformer.wte.weight
    loss_of(model, example("gpt2")).backward()
    assert model.transformer.wte.weight.grad.abs().sum() > 0


def test_conv1d_becomes_the_linear_layer_that_it_is():
    layer = gpt2().transformer.h[0].mlp.c_fc
    weight, bias = layer.weight, layer.bias
    nn.init.normal_(bias)
    model = nn.Sequential(layer, nn.ReLU())
    (entry,) = cosnorm.convert(model, head=None)
    assert (entry.was, entry.now) == ("Conv1D", "TransposedPearsonLinear")
    assert layer.weight is weight
    x = torch.randn(2, 3, 16)
    expected = cosnorm.functional.cosine_linear(x, weight.t(), bias, centered=True)
    torch.testing.assert_close(layer(x), expected)
    assert "in_features=16, out_features=64" in repr(layer)


def test_gpt2_generates_with_its_cache():
    model = gpt2().eval()
    cosnorm.convert(model)
    prompt = torch.randint(1, VOCABULARY, (1, 4))
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    cached = model.generate(prompt, **options)
    assert torch.equal(cached, model.generate(prompt, **options, use_cache=False))
