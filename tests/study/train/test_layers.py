import json

import pytest
import torch
from experiment_cases import (
    StopAfter,
    assert_same_result,
    config_for,
    image_data,
    sparse_data,
    vector_data,
)
from torch import nn

from cosnorm.methods import METHODS
from cosnorm.nn import CosineLinear
from cosnorm.study.train.layers import layer_figures
from cosnorm.study.train.learner import Learner
from cosnorm.study.train.run import load_run, run


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_figures_of_a_layer_by_hand():
    layer = CosineLinear(2, 2, scale=3.0)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    figures = layer_figures(nn.Sequential(nn.Flatten(), layer), lr=10.0)
    assert figures == {
        "1": {"weight_norm": 3.0, "effective_lr": pytest.approx((10 / 25 + 10) / 2), "scale": 3.0}
    }


def test_a_convolutions_weights_are_those_of_an_output():
    layer = nn.Conv2d(4, 2, 3)
    nn.init.ones_(layer.weight)
    assert layer_figures(layer, 1.0)["1"]["weight_norm"] == pytest.approx(6.0)


@pytest.mark.parametrize("data", [vector_data, sparse_data], ids=["dense", "sparse"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_figures_for_every_layer(method, data):
    affine = METHODS[method].affine
    config = config_for(method, affine=affine, scale_start=5.0)
    figures = layer_figures(Learner(config, data()).network, config.lr)
    assert list(figures) == ["1", "2", "3"]
    hidden = 1.0 if affine else None
    last = None if method == "none" else 5.0
    assert [figure["scale"] for figure in figures.values()] == [hidden, hidden, last]
    assert all(figure["weight_norm"] > 0 for figure in figures.values())


@pytest.mark.parametrize("settings", [{}, {"network": "small_conv", "ema_decay": 0.9}])
def test_watching_records_and_changes_nothing(tmp_path, settings):
    config, data = config_for(**settings), image_data()
    run(config, tmp_path / "plain", dataset=data)
    run(config, tmp_path / "watched", dataset=data, watch=True)
    assert_same_result(tmp_path / "plain", tmp_path / "watched")
    assert not any({"train_error", "layers"} & line.keys() for line in lines_of(tmp_path / "plain"))
    lines = lines_of(tmp_path / "watched")
    assert len(lines) == 4
    loaded = load_run(tmp_path / "watched", averaged=False)
    figures = {
        name: {key: pytest.approx(value) if value else value for key, value in figure.items()}
        for name, figure in layer_figures(loaded.network, config.lr).items()
    }
    assert lines[-1]["layers"] == figures
    assert lines[0]["layers"] != figures
    shown = load_run(tmp_path / "watched")
    rows = slice(None, None, 2)  # 60 training rows, 30 of the test part
    wrong = shown.probabilities(data.train.x[rows]).argmax(1) != data.train.y[rows]
    assert lines[-1]["train_error"] == pytest.approx(100 * wrong.float().mean().item())


def test_a_run_that_is_watched_from_its_middle_on(tmp_path):
    config, data = config_for(), vector_data()
    run(config, tmp_path / "run", dataset=data, stop=StopAfter(13))
    run(config, tmp_path / "run", dataset=data, watch=True)
    assert ["layers" in line for line in lines_of(tmp_path / "run")] == [False, False, True, True]
    run(config, tmp_path / "whole", dataset=data)
    assert_same_result(tmp_path / "whole", tmp_path / "run")


def test_a_run_that_diverges_while_it_is_watched(tmp_path):
    config = config_for("none", lr=1e30)
    outcome = run(config, tmp_path / "run", dataset=vector_data(), watch=True)
    assert outcome.status == "diverged"
    last = lines_of(tmp_path / "run")[-1]
    assert last["layers"]["1"]["weight_norm"] is None
    assert last["train_error"] is None


def test_no_more_training_rows_than_the_test_part_has():
    data = vector_data(rows=61, test=30)
    sample = Learner(config_for(), data).training_sample()
    assert torch.equal(sample.x, data.train.x[::3])
    assert torch.equal(sample.y, data.train.y[::3])
