"""Models by name: made, converted, timed, and their kernels counted."""

import argparse
import json
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cosnorm.study.bench import models, steps, zoo
from tools import tables


@pytest.fixture
def tiny_gpt2(tmp_path):
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    config = transformers.GPT2Config(
        n_embd=8, n_layer=1, n_head=2, vocab_size=20, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    config.save_pretrained(tmp_path / "gpt2")
    return str(tmp_path / "gpt2" / "config.json")


@pytest.fixture
def timm(monkeypatch):
    """A timm of one model: the real one needs a torchvision, which not every torch has."""

    def create_model(name, pretrained):
        assert (name, pretrained) == ("net", False)
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 6),
        )  # fmt: skip
        model.forward = lambda x: nn.Sequential.forward(model, x)
        model.num_classes = 6
        return model

    fake = SimpleNamespace(is_model=lambda name: name == "net", create_model=create_model)
    monkeypatch.setitem(sys.modules, "timm", fake)


@pytest.fixture
def unchecked(monkeypatch):
    monkeypatch.setattr(models, "verify", lambda device, dtypes: print("checked", len(dtypes)))


def test_a_model_of_transformers_as_it_is_and_converted(tiny_gpt2, unchecked, tmp_path, capsys):
    out = tmp_path / "models.json"
    sizes = ["--batch", "2", "--size", "8", "--rounds", "1", "--out", str(out)]
    assert models.main(["--models", tiny_gpt2, "--autocast", "bfloat16", *sizes]) == 0
    report = json.loads(out.read_text())
    (result,) = report["results"]
    assert report["provenance"]["torch"] == torch.__version__
    assert (result["mode"], result["batch"], result["size"]) == ("eager", 2, 8)
    assert list(result["variants"]) == ["plain", "cosine", "pearson"]
    for variant, row in result["variants"].items():
        assert row["ratio"] > 0 and row["kernels"] == {"first": 0, "another_batch": 0}
        kinds = row["account"].items()
        changed = sum(number for kind, number in kinds if variant.title() in kind)
        assert changed == (0 if variant == "plain" else 5)
    said = capsys.readouterr().out
    assert "checked 2\n" in said and "batch 2 at 8, bfloat16, eager" in said


def test_images_of_any_size_for_models_of_positions(tmp_path):
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    config = transformers.ViTConfig(
        hidden_size=8, num_attention_heads=2, intermediate_size=8, num_hidden_layers=1, num_labels=3
    )
    config.save_pretrained(tmp_path)
    steps.Step(steps.Setting(str(tmp_path / "config.json"), "plain", "cpu", 2, 32))()


def test_a_model_of_timm_trains_in_every_variant(timm):
    for variant, norms in {"plain": 1, "cosine": 0, "pearson": 0}.items():
        step = steps.Step(steps.Setting("net", variant, "cpu", 4, 9, channels_last=True))
        before = [p.clone() for p in step.parameters]
        assert sum(isinstance(m, nn.BatchNorm2d) for m in step.forward.modules()) == norms
        assert step.inputs["x"].is_contiguous(memory_format=torch.channels_last)
        step()
        step.use(3)
        step()
        step.check()
        assert step.inputs["x"].shape == (3, 3, 9, 9)
        assert any(not torch.equal(p, b) for p, b in zip(step.parameters, before, strict=True))


def test_a_model_that_has_diverged_is_not_reported(timm, unchecked):
    step = steps.Step(steps.Setting("net", "plain", "cpu", 2, 9))
    with torch.no_grad():
        step.parameters[0].fill_(float("nan"))
    with pytest.raises(ArithmeticError, match="net, plain, eager has diverged"):
        step.check()


def test_the_compiled_step_is_compiled_in_its_mode(timm, monkeypatch):
    asked = []
    monkeypatch.setattr(steps, "compiled", lambda net, mode: asked.append(mode) or net)
    for mode in steps.MODES:
        steps.Step(steps.Setting("net", "cosine", "cpu", 2, 9, mode=mode))()
    assert asked == ["default", "reduce-overhead"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch's own, in dynamo
def test_compiled_for_real(timm, unchecked, tmp_path):
    out = tmp_path / "models.json"
    sizes = ["--batch", "2", "--size", "9", "--rounds", "1", "--variants", "cosine"]
    modes = ["--modes", "compile,reduce-overhead"]
    assert models.main(["--models", "net", *sizes, *modes, "--out", str(out)]) == 0
    results = json.loads(out.read_text())["results"]
    assert [result["mode"] for result in results] == ["compile", "reduce-overhead"]
    assert all(list(result["variants"]) == ["plain", "cosine"] for result in results)


def test_a_name_that_no_library_knows(timm, capsys):
    with pytest.raises(SystemExit):
        models.main(["--models", "net,nonesuch"])
    assert "must be a model of timm, a model type of transformers" in capsys.readouterr().err


def test_a_model_without_images_or_text():
    pytest.importorskip("transformers", exc_type=ImportError)
    with pytest.raises(argparse.ArgumentTypeError, match="for one of image_classification"):
        zoo.maker("encodec")


def test_what_streams_do_at_once_counts_once():
    assert steps.covered([(0, 4), (2, 5), (7, 8), (7, 7.5)]) == 6
    assert steps.covered([]) == 0


def test_kernels_are_counted_in_steps_and_after_another_batch(timm, monkeypatch):
    """On a CPU there are none; what Triton says is counted where it says it."""
    setting = steps.Setting("net", "cosine", "cpu", 32, 9)
    assert steps.count(setting) == {"first": 0, "another_batch": 0}
    knobs = pytest.importorskip("triton").knobs
    run = steps.Step.__call__

    def compiling(step):
        run(step)
        for _ in range(len(step.targets)):
            knobs.compilation.listener(src=SimpleNamespace(name="kernel"))

    monkeypatch.setattr(steps.Step, "__call__", compiling)
    assert steps.count(setting) == {"first": 64, "another_batch": 25}
    assert knobs.compilation.listener is None


def test_the_table_of_models(monkeypatch):
    row = {"ratio": 1.02, "ratio_q20": 1.0, "ratio_q80": 1.03, "microseconds": 30600.0}
    row |= {"peak_bytes": 11e9, "busy_ms": 25.0, "kernels": {"first": 20, "another_batch": 0}}
    plain = row | {"microseconds": 30000.0, "peak_bytes": 12e9, "busy_ms": 28.0, "kernels": None}
    bare = {key: row[key] for key in ("ratio", "microseconds", "busy_ms")}
    facts = {"gpu": "GPU", "torch": "2.11", "date": "today", "commit": "abc"}
    files = {
        "old": [{"model": "a/net", "mode": "eager", "variants": {"plain": bare, "cosine": bare}}],
        "new": [
            {"model": "b", "mode": "compile", "variants": {"plain": plain, "pearson": row}},
            {"model": "net", "mode": "eager", "variants": {"plain": plain, "cosine": row}},
        ],
    }
    told = {name: {"provenance": facts, "results": results} for name, results in files.items()}
    monkeypatch.setattr(tables, "_load", told.get)
    lines = tables.models("old", "new").splitlines()
    assert lines[2:5] == [
        "| net, eager | 30.6 | 1.02 |  | 25.0, 25.0 |  |  | abc |",
        "| net, eager | 30.0 | 1.02 (1.00–1.03) |  | 28.0, 25.0 | 12.0, 11.0 | 20 + 0 | abc |",
        "| b, compile | 30.0 |  | 1.02 (1.00–1.03) | 28.0, 25.0 | 12.0, 11.0 | 20 + 0 | abc |",
    ]
    assert lines[-1].endswith("GPU, torch 2.11, today.")
    both = {"plain": plain, "cosine": row, "pearson": row}
    for results in files.values():
        results[-1]["variants"] = both
    del files["new"][0]
    short = tables.ratios("old", "new").splitlines()
    assert short[2:] == ["| net, eager | 1.02 | 1.02 | 0.89 | 0.89 |", "", lines[-1][-23:]]
