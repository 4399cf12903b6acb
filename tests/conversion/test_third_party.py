"""Models of another library, built from a configuration: converted, they run and they train."""

import copy
import os
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file
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


def mobilenet(kind):
    config = getattr(transformers, f"{kind}Config")(depth_multiplier=0.25, num_labels=5)
    return getattr(transformers, f"{kind}ForImageClassification")(config)


@pytest.mark.parametrize(
    ("build", "norms"),
    [
        (resnet, 12),
        (lambda: mobilenet("MobileNetV1"), 27),
        (lambda: mobilenet("MobileNetV2"), 52),
    ],
)
def test_networks_of_convolutions_lose_every_norm(build, norms):
    model = build()
    account = cosnorm.convert(model, drop_norms=True, depthwise=True)
    assert not account.left
    assert sum(entry.now == "Identity" for entry in account) == norms
    loss_of(model, torch.randn(2, 3, 32, 32)).backward()


def llama():
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=32, vocab_size=VOCABULARY,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


PRE_NORMS = {
    "vit": (vit, "pearson", ["layernorm_before", "layernorm_after"]),
    "gpt2": (gpt2, "pearson", ["ln_1", "ln_2"]),
    "llama": (llama, "cosine", ["input_layernorm", "post_attention_layernorm"]),
    "llama, pearson": (llama, "pearson", ["input_layernorm", "post_attention_layernorm"]),
    "bert: it normalises after": (bert, "pearson", []),
}


@pytest.mark.parametrize("name", PRE_NORMS)
def test_transformers_lose_the_norms_that_make_no_difference(name):
    build, similarity, gone = PRE_NORMS[name]
    model = build().double().eval()
    account = cosnorm.convert(model, similarity, head=None, drop_norms=True)
    lost = [entry.name.rpartition(".")[2] for entry in account if entry.now == "Identity"]
    assert lost == [*gone, *gone]


def test_without_its_norms_a_transformer_gives_what_it_gave():
    model = llama().double().eval()
    twin = copy.deepcopy(model)
    cosnorm.convert(model, "cosine", drop_norms=True)
    cosnorm.convert(twin, "cosine")
    x = torch.randint(0, VOCABULARY, (3, 8))
    with torch.no_grad():
        torch.testing.assert_close(model(x).logits, twin(x).logits, rtol=0, atol=1e-6)


def encoder(kind, **more):
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        vocab_size=VOCABULARY, num_labels=5, bos_token_id=0, eos_token_id=0, sep_token_id=0, **more,
    )  # fmt: skip
    return getattr(transformers, f"{kind}ForSequenceClassification")(config)


def xlnet():
    config = transformers.XLNetConfig(
        d_model=16, n_layer=1, n_head=2, d_inner=32, vocab_size=VOCABULARY, num_labels=5
    )
    return transformers.XLNetForSequenceClassification(config)


def spectrogram():
    config = transformers.ASTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_length=64, num_labels=5,
    )  # fmt: skip
    return transformers.ASTForAudioClassification(config)


HEADS = {
    "roberta": (lambda: encoder("Roberta"), "classifier.out_proj"),
    "electra": (lambda: encoder("Electra", embedding_size=16), "classifier.out_proj"),
    "mpnet": (lambda: encoder("MPNet"), "classifier.out_proj"),
    "convbert": (lambda: encoder("ConvBert", embedding_size=16), "classifier.out_proj"),
    "xlnet": (xlnet, "logits_proj"),
    "spectrogram": (spectrogram, "classifier.dense"),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_of_several_layers_are_found(name):
    build, head = HEADS[name]
    account = cosnorm.convert(build())
    assert [entry.name for entry in account if entry.reason.startswith("head")] == [head]


def speech():
    config = transformers.WavLMConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        conv_dim=(8, 8), conv_kernel=(5, 3), conv_stride=(5, 2), num_feat_extract_layers=2,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    return transformers.WavLMForSequenceClassification(config).eval()


def test_a_speech_model_whose_attention_reads_weights():
    model, x = speech(), torch.randn(1, 400)
    account = cosnorm.convert(model, example=x)
    idle = "does not run on the example: other code reads its weight"
    unread = [entry.name.rpartition(".")[2] for entry in account if entry.reason == idle]
    assert unread == ["k_proj", "v_proj", "q_proj", "out_proj"]
    assert type(model.wavlm.encoder.layers[0].attention.q_proj) is nn.Linear


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


def weight_copies(layer):
    """The copies of its weight's size that a layer makes in a training step."""
    sizes = (list(layer.weight.shape), list(layer.weight.t().shape))
    x = torch.randn(32, layer.in_features, requires_grad=True)
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)

    def step():
        layer(x).square().sum().backward()
        optimiser.step()
        optimiser.zero_grad()

    step()
    with torch.profiler.profile(record_shapes=True) as profile:
        step()
    return sum(
        event.name == "aten::copy_" and event.input_shapes[0] in sizes
        for event in profile.events() or ()
    )


def test_conv1d_copies_no_weights():
    layer = gpt2().transformer.h[0].mlp.c_fc
    cosnorm.convert(nn.Sequential(layer), head=None)
    assert layer.weight.shape == (16, 64)
    assert weight_copies(layer) == weight_copies(cosnorm.nn.PearsonLinear(16, 64, bias=True)) == 0
    for twin in (copy.deepcopy(layer), layer.double().float()):
        assert weight_copies(twin) == 0


def test_conv1d_is_saved_and_loaded_as_it_was(tmp_path):
    model = gpt2()
    before = copy.deepcopy(model.state_dict())
    cosnorm.convert(model, head=None)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    name = "transformer.h.0.mlp.c_fc.weight"
    assert torch.equal(saved[name], before[name])
    nn.init.zeros_(model.get_parameter(name))
    model.load_state_dict(before)
    assert torch.equal(model.get_parameter(name), before[name])


def test_gpt2_generates_with_its_cache():
    model = gpt2().eval()
    cosnorm.convert(model)
    prompt = torch.randint(1, VOCABULARY, (1, 4))
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    cached = model.generate(prompt, **options)
    assert torch.equal(cached, model.generate(prompt, **options, use_cache=False))
