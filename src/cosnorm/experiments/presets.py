"""One function for each row of settings: the paper's protocol, and defaults for the rest.

The paper gives two recipes: a fully connected network (MNIST, 20NEWS) and a convolutional one
(CIFAR-10, CIFAR-100, SVHN), with learning rate 10 for cosine and Pearson and 1 for the others.

>>> cifar10("pearson").lr
10.0
"""

from typing import Any

from cosnorm.experiments.config import Config
from cosnorm.experiments.errors import ConfigError

LEARNING_RATES = {
    "pearson": 10.0,
    "cosine": 10.0,
    "batch": 1.0,
    "weight": 1.0,
    "layer": 1.0,
    "none": 0.1,
}


def learning_rate(method: str, optimizer: str = "sgd") -> float:
    """The paper's rate for plain SGD; a tenth of it with momentum 0.9, whose steps add up to ten.

    Adam's steps do not depend on the gradient's size, so there every method gets its usual 0.001.
    """
    if method not in LEARNING_RATES:
        raise ConfigError(f"method must be one of {', '.join(LEARNING_RATES)}; got {method!r}")
    if optimizer == "sgd":
        return LEARNING_RATES[method]
    return LEARNING_RATES[method] / 10 if optimizer == "momentum" else 1e-3


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
    """scikit-learn's digits: the embedded set, small enough to compare five methods in minutes."""
    return _fully_connected("digits", method, seed=seed, epochs=100)


def own(dataset: str, method: str, seed: int = 0) -> Config:
    """The user's own data: folders of images get convolutions, arrays the fully connected network.

    A rate that suits every method's scale-free layers suits unknown data best, so it is the
    paper's, over fewer epochs.
    """
    if dataset.lower().endswith(".npz"):
        return _fully_connected(dataset, method, seed=seed, epochs=50)
    sizes = {"network": "small_conv", "channels": 32, "width": 256, "ema_decay": 0.9999}
    return _fully_connected(dataset, method, seed=seed, epochs=50).override(**sizes)


PAPER = {"mnist": mnist, "20news": news20, "cifar10": cifar10, "cifar100": cifar100, "svhn": svhn}
NAMED = {**PAPER, "digits": digits}


def preset(dataset: str, method: str, seed: int = 0) -> Config:
    """The settings that a run has unless flags say otherwise."""
    if dataset in NAMED:
        return NAMED[dataset](method, seed)
    return own(dataset, method, seed)


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
    widths from the network, the precision and the layout of sparse data from the device.
    """
    config = with_length(preset(dataset, method, seed), epochs, steps)
    network, optimizer = settings.get("network"), settings.get("optimizer")
    follows: dict[str, Any] = {"device": device, "sparse": device == "cpu"}
    if device == "cpu":
        follows["precision"] = "fp32"
    if optimizer is not None:
        follows["lr"] = learning_rate(method, optimizer)
    if network == "small_conv":
        follows |= {"channels": 32, "width": 256, "ema_decay": 0.9999}
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
