"""Ways to make many runs: one interface, and the launcher that works in this process.

A launcher is a file of its own with one class. It is given jobs, makes their runs in any order and
on any machine, and yields each outcome as it comes. All that a run needs to be made elsewhere is in
its job: the settings (`Config.to_dict`) and the place (`Storage.label`, which `storage_at` opens
again). Nothing here loads torch before a run is made.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cosnorm.study.names import DATASETS, OWN
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.progress import Silence, Watcher
from cosnorm.study.runs.record import RunFolder
from cosnorm.study.runs.storage import Storage
from cosnorm.study.train.run import check_data, data_of_its_own, run
from cosnorm.study.train.seeds import BatchSeeds, groups_of
from cosnorm.study.train.stopping import Stop

if TYPE_CHECKING:
    from cosnorm.study.data import Dataset
    from cosnorm.study.train.train import Outcome

_OF_OWN_DATA = sorted({key for entry in OWN.values() for key in entry.settings})


@dataclass(frozen=True)
class Job:
    """One run to be made, and where."""

    config: Config
    storage: Storage

    @property
    def is_over(self) -> bool:
        """Whether the run has its result."""
        return RunFolder(self.storage).is_over


class Launcher(Protocol):
    """Makes runs, in any order and anywhere.

    A run that diverges is an outcome like another. A run that is over is not made again: its
    outcome is read. After one that was stopped, no other is begun, and no more outcomes come.
    """

    def __call__(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, "Outcome"]]: ...


class InProcess:
    """One run after another in this process, over data that is loaded once.

    watcher: makes the one that looks on while a job's run goes; it is told of the end too.
    stop: the reasons to stop before the end, asked between steps.
    data_dir, checkpoint_seconds, keep_checkpoints, watch: as `run` takes them.
    batch_seeds: whether runs that differ in their seed alone train as one, where they can: "on",
        "off", or "auto" for on a GPU.
    """

    def __init__(
        self,
        watcher: Callable[[Job], Watcher] | None = None,
        stop: Stop | None = None,
        *,
        data_dir: str | Path | None = None,
        checkpoint_seconds: float | None = None,
        keep_checkpoints: bool = True,
        watch: bool = False,
        batch_seeds: str = BatchSeeds.off,
    ) -> None:
        self.watcher, self.stop = watcher or (lambda job: Silence()), stop or Stop()
        self.data_dir, self.checkpoint_seconds = data_dir, checkpoint_seconds
        self.keep_checkpoints, self.watch = keep_checkpoints, watch
        self.batch_seeds = BatchSeeds(batch_seeds)
        self._loaded: tuple[object, Dataset] | None = None

    def __call__(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, "Outcome"]]:
        for job in jobs:  # before the first is trained
            if job.is_over:
                check_data(RunFolder(job.storage), job.config, self._own(job.config))
        for group in groups_of(jobs, self.batch_seeds):
            watchers = [self.watcher(job) for job in group]
            made = zip(group, watchers, self._outcomes(group, watchers), strict=True)
            # What was stopped comes last, and once: after it no more outcomes come.
            for job, watcher, outcome in sorted(made, key=lambda each: each[2].status == "stopped"):
                watcher.end(outcome.status, outcome.summary)
                yield job, outcome
                if outcome.status == "stopped":
                    return

    def _outcomes(self, group: Sequence[Job], watchers: Sequence[Watcher]) -> "list[Outcome]":
        options = {
            "stop": self.stop,
            "checkpoint_seconds": self.checkpoint_seconds,
            "keep_checkpoints": self.keep_checkpoints,
            "watch": self.watch,
        }
        if len(group) > 1:
            from cosnorm.study.train.together import run_together

            return run_together(group, self._dataset(group[0].config), watchers, **options)
        job = group[0]
        dataset = self._own(job.config) if job.is_over else self._dataset(job.config)
        return [run(job.config, job.storage, dataset=dataset, watcher=watchers[0], **options)]

    def _dataset(self, config: Config) -> "Dataset":
        from cosnorm.study.train.inputs import dataset_for

        key = _data_key(config)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = key, dataset_for(config, self.data_dir)
        return self._loaded[1]

    def _own(self, config: Config) -> "Dataset | None":
        """What a run that is over is checked against."""
        if self._loaded is None or self._loaded[0] != _data_key(config):
            found = data_of_its_own(config)
            self._loaded = self._loaded if found is None else (_data_key(config), found)
            return found
        return self._loaded[1]


def _data_key(config: Config) -> list[object]:
    options = DATASETS[config.dataset].settings if config.dataset in DATASETS else ()
    return [getattr(config, name) for name in ("dataset", "held_out", *_OF_OWN_DATA, *options)]
