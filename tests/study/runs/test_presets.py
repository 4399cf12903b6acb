import pytest

from cosnorm.methods import METHODS
from cosnorm.study.runs.errors import ConfigError
from cosnorm.study.runs.presets import PAPER, configure, learning_rate, preset, with_length


@pytest.mark.parametrize("dataset", ["mnist", "20news"])
def test_the_papers_fully_connected_protocol(dataset):
    config = preset(dataset, "cosine")
    assert (config.network, config.width, config.batch_size) == ("mlp", 1000, 100)
    assert (config.epochs, config.eval_every, config.ema_decay) == (200, 1, 0.0)


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100", "svhn"])
def test_the_papers_convolutional_protocol(dataset):
    config = preset(dataset, "batch")
    assert (config.network, config.channels, config.width) == ("vgg", 512, 1000)
    assert (config.steps, config.batch_size, config.eval_every) == (100_000, 128, 1000)
    assert (config.pipeline, config.flip) == ("tf_cifar", dataset != "svhn")
    assert (config.ema_decay, config.ema_statistics, config.pool) == (0.9999, "averaged", "same")


@pytest.mark.parametrize("dataset", PAPER)
def test_what_all_of_the_papers_runs_share(dataset):
    rates = {method: preset(dataset, method).lr for method in METHODS}
    assert rates == {
        "pearson": 10.0,
        "cosine": 10.0,
        "batch": 1.0,
        "weight": 1.0,
        "layer": 1.0,
        "none": 0.1,
        "group": 0.3,
        "rms": 0.3,
    }
    config = preset(dataset, "layer", seed=3)
    assert config.seed == 3
    assert (config.optimizer, config.weight_decay, config.init_std) == ("sgd", 0.0, 0.1)
    assert (config.scale, config.scale_start, config.bias, config.affine) == (
        "learned",
        1.0,
        False,
        False,
    )
    assert (config.tfidf, config.min_df) == ("raw", 5)


def test_own_data():
    assert preset("/data/mine.npz", "cosine").network == "mlp"
    assert preset("/data/mine", "cosine").network == "small_conv"


def test_settings_that_follow_from_others():
    assert configure("mnist", "cosine", optimizer="momentum").lr == 1.0
    assert configure("mnist", "cosine", optimizer="adam").lr == 1e-3
    assert configure("mnist", "cosine", optimizer="adam", lr=0.5).lr == 0.5
    small = configure("cifar10", "cosine", network="small_conv")
    assert (small.channels, small.width) == (32, 256)
    assert configure("cifar10", "cosine", network="small_conv", channels=8).channels == 8
    assert configure("cifar10", "cosine").precision == "fp32"
    assert configure("cifar10", "cosine", device="cuda").precision == "bf16"
    assert configure("20news", "cosine").sparse
    assert not configure("20news", "cosine", device="cuda").sparse


def test_length():
    config = preset("cifar10", "cosine")
    assert with_length(config, None, None) == config
    epochs = with_length(config, 7, None)
    assert (epochs.epochs, epochs.steps, epochs.eval_every) == (7, None, 1)
    assert with_length(config, None, 20_000).eval_every == 1000
    assert with_length(config, None, 500).eval_every == 50
    assert with_length(config, None, 3).eval_every == 1
    with pytest.raises(ConfigError, match="either epochs or steps; got epochs=1, steps=2"):
        with_length(config, 1, 2)


def test_unknown_method():
    with pytest.raises(ConfigError, match=r"method must be one of pearson, .*; got 'instance'"):
        learning_rate("instance")
