"""Converted models in the hands of other libraries, each from its real package."""

import copy
import warnings
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, load_model, save_model
from torch import nn
from torch.nn.functional import cross_entropy

import cosnorm

pytestmark = pytest.mark.slow
LINEAR = {"pearson": cosnorm.nn.PearsonLinear, "cosine": cosnorm.nn.CosineLinear}


def converted(similarity="pearson"):
    """A small network whose three layers are converted."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(256, 16), nn.ReLU(), nn.Linear(16, 3),
    )  # fmt: skip
    cosnorm.convert(model, similarity)
    assert type(model[3]) is LINEAR[similarity]
    return model


def batch(rows=12):
    y = torch.arange(rows) % 3
    x = torch.rand(rows, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    x[range(rows), 0, y] += 1.0
    return x, y


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.1)


def plainly_trained(steps):
    """What every trainer must come to."""
    model, (x, y) = converted(), batch()
    optimizer = sgd(model)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def assert_same_parameters(model, other):
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, msg=name)


def test_accelerate_trains_it():
    from accelerate import Accelerator

    accelerator, model, (x, y) = Accelerator(cpu=True), converted(), batch()
    model, optimizer = accelerator.prepare(model, sgd(model))
    for _ in range(20):
        optimizer.zero_grad()
        accelerator.backward(cross_entropy(model(x), y))
        optimizer.step()
    assert_same_parameters(accelerator.unwrap_model(model), plainly_trained(20))


def test_accelerate_projects_it():
    from accelerate import Accelerator

    accelerator, model, (x, y) = Accelerator(cpu=True), converted("cosine"), batch()
    model, optimizer = accelerator.prepare(model, sgd(model))
    cosnorm.optim.project_after_step(optimizer, model)
    accelerator.backward(cross_entropy(model(x), y))
    optimizer.step()
    rows = torch.cat([model[3].weight, model[3].bias.unsqueeze(1)], 1)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(16))


@pytest.mark.filterwarnings("ignore")  # Lightning's own, of workers and devices
def test_lightning_trains_it():
    import pytorch_lightning as lightning

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = converted()

        def training_step(self, batch, _):
            return cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self):
            return sgd(self)

    task, rows = Task(), torch.utils.data.TensorDataset(*batch())
    trainer = lightning.Trainer(
        max_epochs=20, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(task, torch.utils.data.DataLoader(rows, batch_size=12))
    assert_same_parameters(task.network, plainly_trained(20))


@pytest.mark.filterwarnings("ignore")  # the trainer's own, of devices
def test_transformers_trainer_trains_a_converted_bert(tmp_path):
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=64, max_position_embeddings=16, num_labels=2,
        )
    )  # fmt: skip
    cosnorm.convert(model)
    assert type(model.bert.encoder.layer[1].output.dense) is cosnorm.nn.PearsonLinear
    ids = torch.randint(5, 50, (32, 8))
    rows = [{"input_ids": row, "labels": int(row[0] > 27)} for row in ids]
    arguments = TrainingArguments(
        str(tmp_path), num_train_epochs=20, per_device_train_batch_size=16, learning_rate=3e-3,
        report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, seed=0,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=rows).train()
    model.eval()
    with torch.no_grad():
        found = model(ids).logits.argmax(1)
    assert (found == (ids[:, 0] > 27)).float().mean() > 0.9
    save_model(model, str(tmp_path / "kept.safetensors"))
    again = BertForSequenceClassification(model.config)
    cosnorm.convert(again)  # alike, then the weights: the file does not know of layers
    load_model(again, tmp_path / "kept.safetensors")
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(ids).logits, model(ids).logits)


@pytest.mark.filterwarnings("ignore")  # Opacus's own, of hooks and of its random numbers
def test_opacus_has_the_gradient_of_every_sample():
    from opacus import GradSampleModule

    private, (x, y) = GradSampleModule(converted(), loss_reduction="sum"), batch()
    cross_entropy(private(x), y, reduction="sum").backward()
    samples = dict(private._module.named_parameters())
    for i in range(len(y)):
        alone = converted()
        cross_entropy(alone(x[i : i + 1]), y[i : i + 1]).backward()
        for name, parameter in alone.named_parameters():
            torch.testing.assert_close(
                samples[name].grad_sample[i], parameter.grad, rtol=1e-4, atol=1e-5, msg=name
            )


@pytest.mark.filterwarnings("ignore")
def test_opacus_trains_it_privately():
    from opacus import PrivacyEngine

    model = converted()
    before = [p.detach().clone() for p in model.parameters()]
    rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*batch(60)), batch_size=12)
    engine = PrivacyEngine()
    model, optimizer, rows = engine.make_private(
        module=model, optimizer=sgd(model), data_loader=rows,
        noise_multiplier=1.0, max_grad_norm=1.0,
    )  # fmt: skip
    cosnorm.optim.project_after_step(optimizer, model)
    for x, y in rows:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    assert 0 < engine.get_epsilon(1e-5) < 100
    rates = cosnorm.optim.effective_lr(model, optimizer)
    assert rates == dict.fromkeys(rates, pytest.approx(0.1)) and len(rates) == 3
    after = list(model.parameters())
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_torchinfo_counts_its_parameters():
    import torchinfo

    model = converted()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torchinfo.summary(model, (2, 1, 8, 8), verbose=0)
    assert found.total_params == sum(p.numel() for p in model.parameters())


def test_the_flop_counter_counts_products_and_a_little_for_the_statistics():
    from torch.utils.flop_counter import FlopCounterMode

    x, counts = torch.rand(2048, 256), []
    for layer in (nn.Linear(256, 256), *(kind(256, 256) for kind in LINEAR.values())):
        with FlopCounterMode(display=False) as counter:
            layer(x)
        counts.append(counter.get_total_flops())
    assert counts[0] == 2 * 2048 * 256 * 256
    assert all(counts[0] < count < 1.02 * counts[0] for count in counts[1:])


def test_a_folded_model_is_cast_and_holds_int8_where_torch_finds_nothing_to_quantise():
    model, (x, _) = converted().eval(), batch()
    small = copy.deepcopy(model)
    with torch.no_grad():
        before = model(x)
        cosnorm.fold(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of its plans for this function
            same = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
        assert [type(layer) for layer in same] == [type(layer) for layer in model]
        half = model.bfloat16()(x.bfloat16()).float()
        cosnorm.fold(small, dtype=torch.int8)
        eighth = small(x)
    assert (half - before).norm() < 0.02 * before.norm()
    assert (eighth - before).norm() < 0.02 * before.norm()
    assert small[3].unit_weight.dtype == torch.int8


@pytest.mark.filterwarnings("ignore")  # PEFT's own, of parameters as targets
@pytest.mark.parametrize("similarity", LINEAR)
def test_lora_adapts_the_weight_that_is_normalised(similarity):
    from peft import LoraConfig, get_peft_model

    whole, (x, y) = converted(similarity), batch()
    frozen = whole[3].weight.detach().clone()
    before = whole(x).detach()
    model = get_peft_model(
        whole, LoraConfig(r=4, target_modules=[], target_parameters=["3.weight"])
    )
    torch.testing.assert_close(model(x).detach(), before)
    trained = [p for p in model.parameters() if p.requires_grad]
    assert {p.shape for p in trained} == {(4, 256), (16, 4)}
    optimizer = torch.optim.Adam(trained, 1e-2)
    losses = []
    for _ in range(20):
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    adapted = model(x).detach()
    merged = model.merge_and_unload()
    assert type(merged[3]) is LINEAR[similarity]
    assert not torch.equal(merged[3].weight, frozen)
    torch.testing.assert_close(merged(x).detach(), adapted, rtol=1e-4, atol=1e-5)


def test_a_model_with_adapters_is_not_converted():
    from peft import LoraConfig, get_peft_model

    plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    model = get_peft_model(plain, LoraConfig(r=4, target_modules=["0"]))
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(ValueError, match="got a PeftModel of PEFT: convert the model without"):
        cosnorm.convert(model)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


@pytest.mark.filterwarnings("ignore")  # PEFT's own, of parameters as targets
def test_a_model_with_adapters_is_not_folded():
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=[], target_parameters=["3.weight"])
    model = get_peft_model(converted(), config).eval()
    with pytest.raises(ValueError, match="of PEFT: call merge_and_unload first"):
        cosnorm.fold(model)
    assert model(batch()[0]).shape == (12, 3)


@pytest.mark.parametrize("calibrate", [False, True])
@pytest.mark.parametrize("similarity", LINEAR)
@pytest.mark.parametrize("name", ["BertForMaskedLM", "GPT2LMHeadModel"])
def test_a_converted_transformer_comes_back_from_its_file(name, similarity, calibrate, tmp_path):
    """Of tied tensors, BERT's bias among them, the file has one name; norms may have gone."""
    import transformers

    sizes = {"vocab_size": 60, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 24}
    kind = transformers.BertConfig if name.startswith("Bert") else transformers.GPT2Config
    make = partial(getattr(transformers, name), kind(**sizes))
    torch.manual_seed(0)
    model, again = make().eval(), make().eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, 1.0, 0.3)
    words = {"input_ids": torch.randint(2, 50, (3, 9))}
    batches = {"calibrate": words} if calibrate else {}
    cosnorm.convert(model, similarity, drop_norms=True, **batches)
    save_model(model, tmp_path / "kept.safetensors")
    state = load_file(tmp_path / "kept.safetensors")
    assert len(state) < len(model.state_dict())
    cosnorm.convert(again, similarity, drop_norms=True, state=state)
    with torch.no_grad():
        assert torch.equal(again(**words).logits, model(**words).logits)


def test_lora_refuses_our_layers_as_modules():
    from peft import LoraConfig, get_peft_model

    with pytest.raises(ValueError, match=r"PearsonLinear.* is not supported"):
        get_peft_model(converted(), LoraConfig(target_modules=["3"]))


def test_all_linear_is_what_is_left_plain():
    """Which PEFT adapts; it passes our layers by."""
    from peft import LoraConfig, get_peft_model

    def made(skip):
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        cosnorm.convert(model, skip=skip)
        return get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))

    trained = {name for name, p in made(["2"]).named_parameters() if p.requires_grad}
    assert trained and all(".2.lora_" in name for name in trained)
    with pytest.raises(ValueError, match="No `target_modules` passed"):
        made([])
