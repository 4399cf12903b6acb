"""A configuration's data and its way into the network."""

from pathlib import Path

from cosnorm.registry import resolve
from cosnorm.study.data import Dataset, Pipeline, held_out, load
from cosnorm.study.names import DATASETS, OWN, PIPELINES, own_kind
from cosnorm.study.runs.config import Config


def dataset_for(config: Config, data_dir: str | Path | None = None) -> Dataset:
    """Load the data set with the options that belong to it."""
    named = config.dataset in DATASETS
    entry = DATASETS[config.dataset] if named else OWN[own_kind(config.dataset)]
    options = {option: getattr(config, key) for key, option in entry.settings.items()}
    dataset = load(config.dataset, data_dir, **options)
    return held_out(dataset, config.held_out) if config.held_out else dataset


def pipeline_for(config: Config) -> Pipeline:
    """What turns stored rows into network input."""
    entry = PIPELINES[config.pipeline]
    return resolve(entry.make)(**{key: getattr(config, key) for key in entry.settings})
