"""Many runs in one place, each in its own folder, however they are launched."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cosnorm.study.runs.config import Config
from cosnorm.study.runs.errors import ConfigError
from cosnorm.study.runs.record import RunFolder
from cosnorm.study.runs.storage import Storage, storage_at
from cosnorm.study.train.launchers import InProcess, Job, Launcher

if TYPE_CHECKING:
    from cosnorm.study.train.train import Outcome


def compare(
    configs: Iterable[Config],
    launcher: Launcher | None = None,
    storage: str | Path | Storage = "runs",
) -> "dict[str, Outcome]":
    """Make a run of each configuration, or go on with it, in `storage`/METHOD-seedK.

    configs: the settings of each run; `cosnorm.study.configure` makes them from a data set, a
        method and a seed.
    launcher: how the runs are made; None for one after another in this process.
    storage: a folder, or any other storage.

    Returns the outcome of each run by its name. A run that diverged has its outcome too; where one
    was stopped, those after it are missing, and the same call goes on from there. Where one of the
    folders holds a run with other settings, none is begun.

        from cosnorm import study
        configs = [
            study.configure("digits", method, seed, epochs=5)
            for method in ("pearson", "batch") for seed in range(3)
        ]
        study.compare(configs, storage="runs/digits")
        study.write_report("runs/digits", "runs/digits/report")
    """
    jobs = _jobs(configs, storage_at(storage))
    for job in jobs:
        RunFolder(job.storage).check(job.config)
    launch = launcher or InProcess()
    return {job.config.name: outcome for job, outcome in launch(jobs)}


def _jobs(configs: Iterable[Config], storage: Storage) -> list[Job]:
    configs = list(configs)
    twice = [name for name, count in Counter(c.name for c in configs).items() if count > 1]
    if twice:
        raise ConfigError(
            f"each run of a comparison needs a method and a seed of its own; got {twice[0]} more "
            "than once: give the others a seed, or a storage, of their own"
        )
    return [Job(config, storage.at(config.name)) for config in configs]
