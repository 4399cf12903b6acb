import math

import pytest

from cosnorm.study.runs.config import Config
from cosnorm.study.runs.errors import ConfigError


def config(**settings):
    return Config(**{"dataset": "digits", "method": "cosine", "lr": 1.0, "epochs": 2, **settings})


def test_settings_survive_json():
    import json

    made = config(lr=0.5, ema_decay=0.9)
    assert Config.from_dict(json.loads(json.dumps(made.to_dict()))) == made


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "mean"}, "method must be one of pearson, cosine, .*; got 'mean'"),
        ({"network": "resnet"}, "network must be one of mlp, vgg, small_conv; got 'resnet'"),
        ({"device": "tpu"}, "device must be one of cpu, cuda; got 'tpu'"),
        ({"steps": 3}, "either epochs or steps; got epochs=2, steps=3"),
        ({"epochs": None}, "either epochs or steps; got epochs=None, steps=None"),
        ({"epochs": 0}, "epochs must be at least 1; got 0"),
        ({"batch_size": -1}, "batch_size must be at least 1; got -1"),
        ({"lr": 0.0}, "lr must be above 0 and finite; got 0.0"),
        ({"lr": math.nan}, "lr must be above 0 and finite; got nan"),
        ({"lr": math.inf}, "lr must be above 0 and finite; got inf"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1; got 1.0"),
        ({"ema_decay": -0.1}, "ema_decay must be at least 0 and below 1; got -0.1"),
        ({"bn_momentum": 0.0}, "bn_momentum must be above 0 and at most 1; got 0.0"),
        ({"held_out": 1.0}, "held_out must be at least 0 and below 1; got 1.0"),
        ({"held_out": -0.1}, "held_out must be at least 0 and below 1; got -0.1"),
        ({"method": "batch", "batch_size": 1}, "batch_size must be at least 2 for .* batch.*got 1"),
        ({"seed": -1}, "seed must be from 0 to 2\\^31 - 1; got -1"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        config(**settings)


def test_limits_that_are_allowed():
    config(method="cosine", batch_size=1)
    config(method="batch", batch_size=2, affine=True)
    config(momentum=0.0, weight_decay=0.0, ema_decay=0.0, bn_momentum=1.0, seed=2**31 - 1)


def test_unknown_and_missing_settings_are_refused():
    with pytest.raises(ConfigError, match=r"unknown settings colour$"):
        Config.from_dict({**config().to_dict(), "colour": 1})
    with pytest.raises(ConfigError, match="lack lr, method"):
        Config.from_dict({"dataset": "digits"})


def test_override_leaves_what_is_none():
    assert config().override(lr=None, width=7) == config(width=7)


def test_name():
    assert config(seed=3).name == "cosine-seed3"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": "16"}, "width must be int; got '16'"),
        ({"epochs": 2.0}, "epochs must be int or null; got 2.0"),
        ({"lr": None}, "lr must be float; got None"),
        ({"bias": 1}, "bias must be bool; got 1"),
        ({"seed": True}, "seed must be int; got True"),
    ],
)
def test_wrong_types_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Config.from_dict({**config().to_dict(), **settings})


def test_whole_numbers_are_numbers():
    assert Config.from_dict({**config().to_dict(), "lr": 3}).lr == 3
