"""Methods × seeds: many runs, each in its own folder, however they are launched."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cosnorm.experiments.config import Config
from cosnorm.experiments.record import RunFolder
from cosnorm.experiments.run import run
from cosnorm.experiments.stopping import Stop
from cosnorm.experiments.storage import LocalStorage
from cosnorm.experiments.watching import Watcher

if TYPE_CHECKING:
    from cosnorm.data import Dataset
    from cosnorm.experiments.train import Outcome


@dataclass(frozen=True)
class Job:
    """One run to be made, and its folder."""

    config: Config
    out: Path


class Launcher(Protocol):
    """Makes runs, in any order and anywhere, and gives each outcome as it comes."""

    def __call__(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, "Outcome"]]: ...


def jobs_of(configs: Iterable[Config], out: str | Path) -> list[Job]:
    """A job for each configuration, in OUT/METHOD-seedK."""
    return [Job(config, Path(out) / config.name) for config in configs]


class OneByOne:
    """Runs one after another in this process, over data that is loaded once.

    A run that diverges is an outcome like another. A run that is over is not made again. After one
    that was stopped, no other is begun; where a folder is of another run, none is.
    """

    def __init__(
        self,
        watcher: Callable[[Job], Watcher],
        stop: Stop,
        data_dir: str | Path | None = None,
        **options: Any,
    ) -> None:
        self.watcher, self.stop, self.data_dir, self.options = watcher, stop, data_dir, options
        self._loaded: tuple[object, Dataset] | None = None

    def __call__(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, "Outcome"]]:
        for job in jobs:
            RunFolder(LocalStorage(job.out)).check(job.config)
        for job in jobs:
            outcome = run(
                job.config,
                job.out,
                dataset=None if is_over(job) else self._dataset(job.config),
                watcher=self.watcher(job),
                stop=self.stop,
                **self.options,
            )
            yield job, outcome
            if outcome.status == "stopped":
                return

    def _dataset(self, config: Config) -> "Dataset":
        from cosnorm.experiments.inputs import dataset_for

        keys = ("dataset", "tfidf", "min_df", "svhn_extra", "image_size")
        key = [getattr(config, name) for name in keys]
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = key, dataset_for(config, self.data_dir)
        return self._loaded[1]


def is_over(job: Job) -> bool:
    """Whether the job's run has its result."""
    return (job.out / "summary.json").exists()
