"""One function for each row of settings: the paper's protocol, and defaults for the rest.

The paper gives two recipes: a fully connected network (MNIST, 20NEWS) and a convolutional one
(CIFAR-10, CIFAR-100, SVHN), with learning rate 10 for cosine and Pearson and 1 for the others.

>>> cifar10("pearson").lr
10.0
"""

from typing import Any

from cosnorm.methods import METHODS
from cosnorm.registry import resolve
from cosnorm.study.names import DATASETS, NETWORKS, OWN, PIPELINES, own_kind
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.errors import ConfigError


def learning_rate(method: str, optimizer: str = "sgd") -> float:
    """The paper's rate for plain SGD; a tenth of it with momentum 0.9, whose steps add up to ten.

    Adam's steps do not depend on the gradient's size, so there every method gets its usual 0.001.
    """
    if method not in METHODS:
        raise ConfigError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    rate = METHODS[method].lr
    if optimizer == "sgd":
        return rate
    return rate / 10 if optimizer == "momentum" else 1e-3


def _fully_connected(dataset: str, method: str, **settings: Any) -> Config:
    recipe = {"epochs": 200, "batch_size": 100, "lr": learning_rate(method)}
    return Config(dataset=dataset, method=method, network="mlp", **{**recipe, **settings})


def _convolutional(dataset: str, method: str, **settings: Any) -> Config:
    recipe = {
        "steps": 100_000,
        "batch_size": 128,
        "lr": learning_rate(method),
        "eval_every": 1000,
        "pipeline": "tf_cifar",
        "ema_decay": 0.9999,
        "precision": "bf16",
    }
    return Config(dataset=dataset, method=method, network="vgg", **{**recipe, **settings})


def mnist(method: str, seed: int = 0) -> Config:
    return _fully_connected("mnist", method, seed=seed)


def news20(method: str, seed: int = 0) -> Config:
    return _fully_connected("20news", method, seed=seed)


def cifar10(method: str, seed: int = 0) -> Config:
    return _convolutional("cifar10", method, seed=seed)


def cifar100(method: str, seed: int = 0) -> Config:
    return _convolutional("cifar100", method, seed=seed)


def svhn(method: str, seed: int = 0) -> Config:
    """Mirror images of digits are other signs, so this one row leaves the tutorial's flips out."""
    return _convolutional("svhn", method, seed=seed, flip=False)


def digits(method: str, seed: int = 0) -> Config:
    """scikit-learn's digits: the embedded set, small enough to compare five methods in minutes.

    After epoch 20 the mean error of no method changes by more than one of the 359 test rows, so
    thirty epochs do, and leave the time for seeds.
    """
    return _fully_connected("digits", method, seed=seed, epochs=30)


def own(dataset: str, method: str, seed: int = 0) -> Config:
    """The user's own data: folders of images get convolutions, others the fully connected network.

    A rate that suits every method's scale-free layers suits unknown data best, so it is the
    paper's, over fewer epochs.
    """
    if own_kind(dataset) != "images":
        return _fully_connected(dataset, method, seed=seed, epochs=50)
    sizes = {"network": "small_conv", **NETWORKS["small_conv"].settings}
    return _fully_connected(dataset, method, seed=seed, epochs=50).override(**sizes)


PAPER = {"mnist": mnist, "20news": news20, "cifar10": cifar10, "cifar100": cifar100, "svhn": svhn}


def preset(dataset: str, method: str, seed: int = 0) -> Config:
    """The settings that a run has unless flags say otherwise."""
    if dataset not in DATASETS:
        return own(dataset, method, seed)
    make = DATASETS[dataset].preset
    if make is None:
        return _fully_connected(dataset, method, seed=seed, epochs=50)
    return resolve(make)(method, seed)


def configure(
    dataset: str,
    method: str,
    seed: int = 0,
    *,
    device: str = "cpu",
    epochs: int | None = None,
    steps: int | None = None,
    **settings: Any,
) -> Config:
    """The preset with the given settings in place of its own; None leaves one as it is.

    Settings that follow from others do so unless given: the learning rate from the optimiser, the
    widths from the network, the precision from the device; sparse data stays sparse on a CPU.
    """
    config = with_length(preset(dataset, method, seed), epochs, steps)
    network, optimizer = settings.get("network"), settings.get("optimizer")
    follows: dict[str, Any] = {"device": device, "sparse": device == "cpu"}
    if device == "cpu":
        follows["precision"] = "fp32"
    if optimizer is not None:
        follows["lr"] = learning_rate(method, optimizer)
    if network is not None and network in NETWORKS:
        follows |= NETWORKS[network].settings
    return config.override(**follows).override(**settings)


def with_length(config: Config, epochs: int | None, steps: int | None) -> Config:
    """`config` with another length, and evaluations as often as that length asks for.

    Epochs are evaluated one by one. Steps every 1,000, or ten times in a run under 10,000.
    """
    if epochs is None and steps is None:
        return config
    if epochs is not None and steps is not None:
        raise ConfigError(f"give either epochs or steps; got epochs={epochs}, steps={steps}")
    values = config.to_dict() | {"epochs": epochs, "steps": steps, "eval_every": 1}
    if steps is not None:
        values["eval_every"] = 1000 if steps >= 10_000 else max(1, steps // 10)
    return Config.from_dict(values)


def idle_settings(config: Config) -> dict[str, str]:
    """The settings that do nothing in a run of `config`, each with what it would need."""
    named = config.dataset in DATASETS
    data = DATASETS[config.dataset] if named else OWN[own_kind(config.dataset)]
    is_text = {"tfidf", "min_df"} <= data.settings.keys()
    network, method = NETWORKS[config.network], METHODS[config.method]
    is_used = {
        "tfidf": (is_text, "documents: 20news, or a folder of texts"),
        "min_df": (is_text, "documents: 20news, or a folder of texts"),
        "sparse": (is_text and network.sparse, "documents and the network mlp"),
        "svhn_extra": ("svhn_extra" in data.settings, "the data set svhn"),
        "image_size": ("image_size" in data.settings, "a folder of images"),
        "momentum": (config.optimizer == "momentum", "the optimizer momentum"),
        "channels": (network.images, "a network of convolutions"),
        "pool": (config.network not in ("mlp", "small_conv"), "the network vgg"),
        "flip": ("flip" in PIPELINES[config.pipeline].settings, "the pipeline tf_cifar"),
        "bn_momentum": (method.over_batch, "the method batch"),
        "bn_eps": (method.over_batch, "the method batch"),
        "sync_batch_norm": (method.over_batch, "the method batch"),
        "scale": (method.scaled, "a method whose last layer is scaled: any but none"),
        "scale_start": (method.scaled, "a method whose last layer is scaled: any but none"),
        "ema_statistics": (
            method.over_batch and config.ema_decay > 0,
            "the method batch and an average (--ema-decay)",
        ),
        "precision": (config.precision != "tf32" or config.device == "cuda", "the device cuda"),
    }
    return {key: need for key, (used, need) in is_used.items() if not used}
