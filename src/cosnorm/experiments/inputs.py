"""A configuration's data and its way into the network."""

from pathlib import Path
from typing import Any

from cosnorm.data import Dataset, Pipeline, load, tf_cifar, unit_range
from cosnorm.experiments.config import Config


def dataset_for(config: Config, data_dir: str | Path | None = None) -> Dataset:
    """Load the data set with the options that belong to it."""
    options: dict[str, Any] = {}
    if config.dataset == "20news":
        options = {"tfidf": config.tfidf, "min_df": config.min_df}
    elif config.dataset == "svhn":
        options = {"extra": config.svhn_extra}
    elif config.image_size is not None and Path(config.dataset).is_dir():
        options = {"size": config.image_size}
    return load(config.dataset, data_dir, **options)


def pipeline_for(config: Config) -> Pipeline:
    """What turns stored rows into network input."""
    return tf_cifar(flip=config.flip) if config.pipeline == "tf_cifar" else unit_range
