"""What a run is made of, by name: data sets, networks, pipelines, metrics, and loggers.

The methods have a table of their own, `cosnorm.methods`, since the layers know them too. An entry
names its code as "module:attribute", which is imported when it is used; entries of others can give
the function itself. Loads no torch.

    from cosnorm import study
    study.NETWORKS.add(study.NetworkEntry("mine", "my_package.networks:mine", images=True))
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cosnorm.registry import Registry

Code = str | Callable[..., Any]

PICTURES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
)


@dataclass(frozen=True)
class DatasetEntry:
    """A data set that has a name.

    reader: `reader(root, **options)` gives a `cosnorm.study.data.Dataset`; `root` is the folder of
        the published sets.
    title: a line for `cosnorm data list`.
    preset: `preset(method, seed)` gives the settings of a run; None for those of rows of numbers.
    settings: which settings of a run are options of the reader, and under which names.
    """

    name: str
    reader: Code
    title: str = ""
    preset: Code | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NetworkEntry:
    """A network that has a name.

    builder: `builder(shape, classes, recipe)` gives the module, for rows of `shape` without the
        batch and layers as a `cosnorm.study.models.Recipe` has them; of the settings width,
        channels and pool it is given those that it takes.
    images: whether rows must be images, (channels, height, width).
    sparse: whether it takes `sparse=True`, and then sparse rows.
    stacks: whether several of it train as one (`cosnorm.nn.stacked`).
    rows: how many it evaluates at once.
    settings: what a run with it has unless it is given.
    """

    name: str
    builder: Code
    images: bool = False
    sparse: bool = False
    stacks: bool = False
    rows: int = 1000
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PipelineEntry:
    """A way from stored rows to network input, augmentation included.

    make: gives a `cosnorm.study.data.Pipeline`, with the settings named as arguments.
    settings: the settings of a run that it takes.
    """

    name: str
    make: Code
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class MetricEntry:
    """A number of every evaluation, with a curve in the report.

    label: its name on the axis.
    least: the least height of the axis.
    measure: `measure(learner)` gives the number, without gradients, and leaves the learner
        (`cosnorm.study.train.learner.Learner`) as it was; every rank calls it, and the first one's
        number counts. None where the evaluation has the number anyway.
    """

    name: str
    label: str
    least: float = 1e-3
    measure: Code | None = None

    def __post_init__(self) -> None:
        if self.name in _OF_EVALUATIONS:
            raise ValueError(
                f"every evaluation has a value {self.name!r} of its own: choose another name for "
                "the metric"
            )


@dataclass(frozen=True)
class LoggerEntry:
    """A place where a run's numbers are told to, besides its folder.

    logger: `logger(folder)` gives a `cosnorm.study.runs.logs.Logger`.
    package: what pip installs for it, named where its import fails.
    """

    name: str
    logger: Code
    package: str


_OF_EVALUATIONS = ("epoch", "step", "seconds", "examples_per_second", "layers")
_PRESETS, _DATA = "cosnorm.study.runs.presets", "cosnorm.study.data"

DATASETS: Registry[DatasetEntry] = Registry(
    "data set",
    (
        DatasetEntry("digits", f"{_DATA}.digits:digits", preset=f"{_PRESETS}:digits"),
        DatasetEntry("mnist", f"{_DATA}.idx:mnist", preset=f"{_PRESETS}:mnist"),
        DatasetEntry(
            "20news",
            f"{_DATA}.news:news",
            preset=f"{_PRESETS}:news20",
            settings={"tfidf": "tfidf", "min_df": "min_df"},
        ),
        DatasetEntry("cifar10", f"{_DATA}.cifar:cifar10", preset=f"{_PRESETS}:cifar10"),
        DatasetEntry("cifar100", f"{_DATA}.cifar:cifar100", preset=f"{_PRESETS}:cifar100"),
        DatasetEntry(
            "svhn",
            f"{_DATA}.svhn:svhn",
            preset=f"{_PRESETS}:svhn",
            settings={"svhn_extra": "extra"},
        ),
    ),
)
"""Published data sets, and yours that have a name, for `--dataset`."""

# The user's own data, by the kind of file or folder; readers are given its path.
OWN = {
    entry.name: entry
    for entry in (
        DatasetEntry("npz", f"{_DATA}.arrays:npz"),
        DatasetEntry("csv", f"{_DATA}.tables:table"),
        DatasetEntry(
            "texts",
            f"{_DATA}.texts:text_folders",
            settings={"tfidf": "tfidf", "min_df": "min_df"},
        ),
        DatasetEntry("images", f"{_DATA}.images:image_folders", settings={"image_size": "size"}),
    )
}
_SUFFIXES = {".npz": "npz", ".csv": "csv", ".tsv": "csv"}


def own_kind(dataset: str | Path) -> str:
    """Which of `OWN` a path is: by its suffix; a folder by whether its class folders hold .txt."""
    path = Path(dataset).expanduser()
    if path.suffix.lower() in _SUFFIXES:
        return _SUFFIXES[path.suffix.lower()]
    texts = (found for depth in ("*/*.txt", "*/*/*.txt") for found in path.glob(depth))
    others = (found for depth in ("*/*", "*/*/*") for found in path.glob(depth))
    if any(not _is_hidden(found) for found in texts):
        is_picture = (f.suffix.lower() in PICTURES and not _is_hidden(f) for f in others)
        return "images" if any(is_picture) else "texts"
    return "images"


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".") or path.parent.name.startswith(".")


_SMALL = {"channels": 32, "width": 256, "ema_decay": 0.9999}
NETWORKS: Registry[NetworkEntry] = Registry(
    "network",
    (
        NetworkEntry("mlp", "cosnorm.study.models:mlp", sparse=True, stacks=True, rows=10_000),
        NetworkEntry("vgg", "cosnorm.study.models:vgg", images=True),
        NetworkEntry("small_conv", "cosnorm.study.models:small_conv", images=True, settings=_SMALL),
    ),
)
"""Networks, for `--network`."""

PIPELINES: Registry[PipelineEntry] = Registry(
    "pipeline",
    (
        PipelineEntry("unit_range", f"{_DATA}.pipelines:unit_range"),
        PipelineEntry("tf_cifar", f"{_DATA}.pipelines:tf_cifar", settings=("flip",)),
    ),
)
"""Ways from stored rows to a network, augmentation included, for `--pipeline`."""

METRICS: Registry[MetricEntry] = Registry(
    "metric",
    (
        MetricEntry("test_error", "test error (%)", least=0.1),
        MetricEntry("train_loss", "training loss"),
        MetricEntry("test_error_raw", "test error, not averaged (%)", least=0.1),
        MetricEntry("train_error", "train error (%)", least=0.1),
    ),
)
"""Numbers of every evaluation, each with a curve in the report."""

LOGGERS: Registry[LoggerEntry] = Registry(
    "logger",
    (
        LoggerEntry("tensorboard", "cosnorm.study.runs.logs:TensorBoard", "cosnorm[tensorboard]"),
        LoggerEntry("mlflow", "cosnorm.study.runs.logs:MLflow", "cosnorm[mlflow]"),
    ),
)
"""Places where numbers are told to, besides run folders, for `--log`."""
