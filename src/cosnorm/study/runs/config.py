"""One run's settings: everything that decides its result, and nothing else. Loads no torch.

Where the run is stored, where the data lies and how progress is shown are no settings: the same
configuration gives the same result wherever it runs.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_args, get_type_hints

from cosnorm.methods import METHODS
from cosnorm.study.names import NETWORKS, PIPELINES
from cosnorm.study.runs.errors import ConfigError

CHOICES: Mapping[str, Collection[str]] = {
    "method": METHODS,
    "network": NETWORKS,
    "optimizer": ("sgd", "momentum", "adam", "adamw"),
    "scale": ("learned", "fixed", "per_class"),
    "pool": ("same", "valid"),
    "pipeline": PIPELINES,
    "tfidf": ("raw", "l2"),
    "ema_statistics": ("averaged", "raw"),
    "precision": ("fp32", "tf32", "bf16", "fp64"),
    "device": ("cpu", "cuda"),
}

_COUNTS = (
    *("epochs", "steps", "batch_size", "eval_every"),
    *("width", "channels", "min_df", "image_size"),
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of one run. The paper's protocol leaves some open: those say so.

    Of data sets, methods, networks and pipelines, others can be added: `cosnorm.methods` and
    `cosnorm.study.names` have the tables.

    dataset: digits, mnist, 20news, cifar10, cifar100, svhn, or a path of the user's own.
    method: pearson, cosine, batch, weight, layer, none, group or rms, in every layer.
    network: mlp (2 hidden layers), vgg (the paper's 9 convolutions) or small_conv (for CPUs).
    epochs, steps: the length of the run, one of the two.
    batch_size: rows of a step; what is left of an epoch after its last full batch is not used.
    lr, optimizer, momentum, weight_decay: the update; plain SGD is the paper's.
    seed: decides initialisation, order and augmentation.
    width, channels: units of hidden linear layers, channels of convolutions.
    init_std: deviation of the truncated normal initialisation (open: "0.1 variance").
    scale, scale_start: what multiplies the last layer's normalised values before softmax: one
        learned number, a fixed one, or one per class; and its (first) value (open).
    bias, affine: a bias in every layer; re-scaling and re-shifting in hidden ones (paper: neither).
    pool: same-padded convolutions with pools of stride 2, or valid ones with pools of stride 1
        (open).
    bn_momentum, bn_eps: of batch normalisation (open).
    pipeline, flip: how stored rows become input: unit_range, or the TensorFlow tutorial's crops,
        with or without mirror images.
    tfidf, min_df: documents: raw or L2-normalised tf·idf; how many a word must be in (open).
    svhn_extra: with the extra images of SVHN, as in the paper, or without.
    image_size: side to which images of the user's own folders are brought; None for theirs.
    held_out: the share of the training part, of each class, that is kept from training and takes
        the place of the test part: to choose settings by, so that the test part is not.
    ema_decay: of the parameters' moving average, min(ema_decay, (1+t)/(10+t)); 0 for none.
    ema_statistics: batch norm's statistics averaged with the parameters, or raw (open).
    eval_every: epochs (or steps, where steps give the length) between evaluations (open).
    sync_batch_norm: where several processes train, batch normalisation over the rows of all.
    precision: fp32, tf32 (matrix products of CUDA devices), bf16 (autocast) or fp64.
    sparse: keep sparse data sparse in the first layer.
    compile: run the network through torch.compile.
    deterministic: only kernels that give the same bits every time (CPU kernels always do).
    """

    dataset: str
    method: str
    network: str = "mlp"
    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 100
    lr: float
    optimizer: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 0.0
    seed: int = 0
    width: int = 1000
    channels: int = 512
    init_std: float = 0.1
    scale: str = "learned"
    scale_start: float = 1.0
    bias: bool = False
    affine: bool = False
    pool: str = "same"
    bn_momentum: float = 0.1
    bn_eps: float = 1e-5
    pipeline: str = "unit_range"
    flip: bool = True
    tfidf: str = "raw"
    min_df: int = 5
    svhn_extra: bool = True
    image_size: int | None = None
    held_out: float = 0.0
    ema_decay: float = 0.0
    ema_statistics: str = "averaged"
    eval_every: int = 1
    sync_batch_norm: bool = False
    precision: str = "fp32"
    device: str = "cpu"
    sparse: bool = True
    compile: bool = False
    deterministic: bool = False

    def __post_init__(self) -> None:
        for key, choices in CHOICES.items():
            if getattr(self, key) not in choices:
                raise ConfigError(
                    f"{key} must be one of {', '.join(choices)}; got {getattr(self, key)!r}"
                )
        if (self.epochs is None) == (self.steps is None):
            raise ConfigError(
                f"give either epochs or steps; got epochs={self.epochs}, steps={self.steps}"
            )
        for key in _COUNTS:
            if getattr(self, key) is not None and getattr(self, key) < 1:
                raise ConfigError(f"{key} must be at least 1; got {getattr(self, key)}")
        for key in ("lr", "init_std", "scale_start", "bn_eps"):
            _check_number(key, getattr(self, key), 0.0, math.inf, "above 0 and finite")
        for key in ("momentum", "weight_decay", "ema_decay", "held_out"):
            _check_number(key, getattr(self, key), -1e-300, 1.0, "at least 0 and below 1")
        _check_number("bn_momentum", self.bn_momentum, 0.0, 1.0 + 1e-15, "above 0 and at most 1")
        if not 0 <= self.seed < 2**31:
            raise ConfigError(f"seed must be from 0 to 2^31 - 1; got {self.seed}")
        self._check_method()

    def _check_method(self) -> None:
        method = METHODS[self.method]
        if method.over_batch and self.batch_size < 2:
            raise ConfigError(
                f"batch_size must be at least 2 for the method {self.method}, which normalises "
                f"over the rows of a batch; got {self.batch_size}: use more rows or another method"
            )

    @property
    def name(self) -> str:
        """The run's short name, that of its folder in a comparison."""
        return f"{self.method}-seed{self.seed}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Config":
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(f"unknown settings {', '.join(unknown)}")
        missing = sorted({"dataset", "method", "lr"} - set(values))
        if missing:
            raise ConfigError(f"the settings lack {', '.join(missing)}")
        hints = get_type_hints(cls)
        for key, value in values.items():
            _check_type(key, value, hints[key])
        return cls(**values)

    def override(self, **values: Any) -> "Config":
        """A copy with the given settings; None leaves a setting as it is."""
        return replace(self, **{key: value for key, value in values.items() if value is not None})


def _check_type(key: str, value: Any, hint: Any) -> None:
    kinds = get_args(hint) or (hint,)
    if type(value) not in kinds and not (type(value) is int and float in kinds):
        wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ConfigError(f"{key} must be {wanted}; got {value!r}")


def _check_number(key: str, value: float, low: float, high: float, rule: str) -> None:
    if not low < value < high:
        raise ConfigError(f"{key} must be {rule}; got {value}")
