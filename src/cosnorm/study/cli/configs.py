"""From what is given on the command line to the settings of runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cosnorm.methods import METHODS, PAPER_METHODS
from cosnorm.study.cli.settings import chosen_device
from cosnorm.study.names import DATASETS
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.errors import ConfigError
from cosnorm.study.runs.presets import idle_settings

_MOST_RUNS = 10_000  # each is a folder, and a row of the report


def configured(
    dataset: str,
    method: str,
    seed: int,
    epochs: int | None,
    steps: int | None,
    settings: dict[str, Any],
) -> Config:
    """The settings of one run, from what was given on the command line."""
    from cosnorm.study.runs.presets import configure

    if not dataset.strip():
        raise ConfigError("--dataset is empty: give the name of a set, an .npz file or a folder")
    device = chosen_device(settings.get("device"))
    place = dataset if dataset in DATASETS else str(Path(dataset).expanduser().resolve())
    others = {key: value for key, value in settings.items() if key != "device"}
    return configure(place, method, seed, device=device, epochs=epochs, steps=steps, **others)


def all_configured(
    dataset: str,
    methods: Sequence[str],
    seeds: int,
    epochs: int | None,
    steps: int | None,
    settings: dict[str, Any],
) -> list[Config]:
    """Every method with every seed."""
    count = len(methods) * seeds
    if count > _MOST_RUNS:
        raise ConfigError(
            f"a comparison has at most {_MOST_RUNS:,} runs; got {count:,} ({len(methods)} methods "
            f"with {seeds:,} seeds each): give fewer --seeds"
        )
    return [
        configured(dataset, method, seed, epochs, steps, settings)
        for method in methods
        for seed in range(seeds)
    ]


def check_used(configs: Sequence[Config], settings: dict[str, Any]) -> None:
    """Refuse a setting that was given and does nothing in any of the runs."""
    for key, value in settings.items():
        if value is None:
            continue
        needs = [idle_settings(config).get(key) for config in configs]
        if needs and None not in needs:
            flag = f"--{key.replace('_', '-')}"
            raise ConfigError(f"{flag} does nothing here, as it needs {needs[0]}: leave it out")


def check_data_dir(datasets: Sequence[str], data_dir: Path | None, is_here: bool = True) -> None:
    """Refuse a folder of data that is not there, or that none of the data sets is looked for in.

    is_here: whether the runs are made on this machine, whose folders can be looked at.
    """
    if data_dir is None:
        return
    if all(name == "digits" or name not in DATASETS for name in datasets):
        why = "digits is embedded" if "digits" in datasets else "your own data is its own path"
        raise ConfigError(
            f"--data-dir does nothing here, as it is for published data sets and {why}: leave it "
            "out"
        )
    if is_here and not data_dir.expanduser().is_dir():
        raise ConfigError(
            f"--data-dir must be a folder; there is none at {data_dir}: name the one that holds "
            "the data, or leave it out for $COSNORM_DATA or the cache"
        )


def chosen_methods(given: str | None) -> Sequence[str]:
    """The methods named in a list with commas; the paper's where none is given."""
    if given is None:
        return PAPER_METHODS
    named = list(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    unknown = [name for name in named if name not in METHODS]
    if unknown or not named:
        raise ConfigError(f"methods must be some of {','.join(METHODS)}; got {given!r}")
    return named
