"""The launcher that hands each run to a Ray cluster, as a task with its own CPUs and GPUs.

The nodes share the storage of the runs, under the same name. A run whose node is lost is sent
again, and goes on from its last checkpoint. Ray is loaded when the first run is to be made.
"""

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosnorm.study.runs.errors import ConfigError, InUseError, RunError
from cosnorm.study.runs.progress import Silence, Watcher
from cosnorm.study.train.launchers import InProcess, Job
from cosnorm.study.train.ray_connection import connected
from cosnorm.study.train.ray_worker import Letters, Mailbox, Place, make
from cosnorm.study.train.stopping import Interrupted, Stop

if TYPE_CHECKING:
    from cosnorm.study.train.train import Outcome

_LOOK_S = 0.1  # between two looks at what the runs tell
_SAVE_S = 120.0  # for runs to save, once they are asked to stop
_ZOMBIE_S = 60.0  # for the process of a lost node to find that it is lost
_SHARED_S = 90.0  # for a shared file system to show what another node has written
_MOST_LOSSES = 5  # of one run, without a step between them


class RayCluster:
    """Every run a task of a Ray cluster, in processes that stay for the runs after it.

    watcher, stop, data_dir, checkpoint_seconds, keep_checkpoints, watch: as `InProcess` takes them.
    address: HOST:PORT of the cluster, or "auto" for the one of this machine. None for that of
        RAY_ADDRESS; where that is not set, for a cluster of this machine alone, which listens on
        loopback and ends with the runs. A connection that the program has is used as it is.
    cpus, gpus: what a run takes of its node, and how many threads it has; a GPU may be shared
        (0.25). None for a whole GPU where the run is on cuda, else for none.

    A run that another program has in hand is put off. Where all that is left is in other hands, an
    `InUseError` says so.
    """

    def __init__(
        self,
        watcher: Callable[[Job], Watcher] | None = None,
        stop: Stop | None = None,
        *,
        address: str | None = None,
        cpus: float = 1.0,
        gpus: float | None = None,
        data_dir: str | Path | None = None,
        **options: Any,
    ) -> None:
        if not 0 < cpus < math.inf:
            raise ConfigError(f"a run takes a number of CPUs above 0; got {cpus}: use 1")
        if gpus is not None and not (0 <= gpus <= 1 or (gpus > 1 and float(gpus).is_integer())):
            raise ConfigError(f"a run takes whole GPUs, or a part of one; got {gpus}: use 1 or 0.5")
        self.watcher, self.stop = watcher or (lambda job: Silence()), stop or Stop()
        self.address = address or os.environ.get("RAY_ADDRESS") or None
        self.cpus, self.gpus = cpus, gpus
        place = None if data_dir is None else Path(data_dir).absolute()
        self.options = {**options, "data_dir": place}

    def __call__(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, "Outcome"]]:
        over, left = [], []
        for job in jobs:
            (over if job.is_over else left).append(job)
        yield from InProcess(self.watcher, self.stop)(over)  # which reads their outcomes
        if left:
            with self.stop.listening(), connected(self.address) as ray:
                yield from _Round(self, ray, left)()

    def gpus_of(self, job: Job) -> float:
        """What the job's run takes."""
        return float(job.config.device == "cuda") if self.gpus is None else self.gpus


class _Round:
    """Jobs on their way.

    going: each by the reference of its task, with the number on its letters. A job that is sent
        again has another number: what the process of a lost node still tells is not read.
    """

    def __init__(self, launcher: RayCluster, ray: Any, jobs: Sequence[Job]) -> None:
        self.launcher, self.ray, self.jobs = launcher, ray, jobs
        self.watchers = {job: launcher.watcher(job) for job in jobs}
        self.step: dict[Job, int] = {}  # of those that were begun
        self.losses: dict[Job, list[int]] = {job: [] for job in jobs}  # the step at each
        self.put_off: dict[Job, InUseError] = {}  # in the hands of another program
        self.has_moved = False  # whether a run has ended since they were put off
        self._check_resources()
        # The process stays for the next run, with a GPU too: see `_variables`.
        self.task = ray.remote(max_calls=0)(make)
        self.mailbox = _mailbox(ray)
        self.numbers = itertools.count()
        self.going: dict[Any, tuple[int, Job]] = {}
        for job in jobs:
            self._send(job)

    def __call__(self) -> Iterator[tuple[Job, "Outcome"]]:
        try:
            while self.going:
                yield from self._ended(_LOOK_S)
                if self.launcher.stop.reason is not None:
                    yield from self._stopped(self.launcher.stop.reason)
                    return
                if not self.going and self.put_off:
                    self._try_again()
        except Interrupted:  # a second signal: at once
            raise
        except BaseException:
            self._asked_to_save()
            raise

    def _ended(self, seconds: float) -> Iterator[tuple[Job, "Outcome"]]:
        """The jobs that are over since the last look; those that were lost are sent again."""
        ended, _ = self.ray.wait(list(self.going), timeout=seconds)
        self._read_letters()
        for task in ended:
            _, job = self.going.pop(task)
            outcome = self._outcome(task, job)
            if outcome is not None:
                self.has_moved = True
                self._check_shared(job)
                self.watchers[job].end(outcome.status, outcome.summary)
                yield job, outcome
            elif job not in self.put_off and self.launcher.stop.reason is None:
                self._send(job)

    def _outcome(self, task: Any, job: Job) -> "Outcome | None":
        """How the run ended; None where it did not: it was lost, is to go on, or is put off."""
        errors = self.ray.exceptions
        try:
            answer = self.ray.get(task)
        except errors.TaskCancelledError:
            return None
        except errors.RayTaskError as error:  # `make` returns its own
            told = f"{type(error.cause).__name__}: {error.cause}".splitlines()[0]
            raise RunError(
                f"{job.config.name} failed on its node ({told}): every node needs the same "
                "versions of Python, ray and cosnorm, and for object stores the same variables, set"
                " where `ray start` is called"
            ) from error
        except errors.RayError as error:
            self._lost(job, error)
            return None
        if isinstance(answer, InUseError):
            self.put_off[job] = answer
            return None
        if isinstance(answer, Exception):
            raise answer
        return None if answer.status == "stopped" else answer

    def _lost(self, job: Job, error: Exception) -> None:
        """Say so, and give up on a run that is lost again and again where it stands."""
        losses = self.losses[job]
        losses.append(self.step.get(job, 0))
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if losses[-_MOST_LOSSES:] == [losses[-1]] * _MOST_LOSSES:
            raise RunError(
                f"{job.config.name} was lost {_MOST_LOSSES} times at step {losses[-1]:,} "
                f"({reason}): give it more memory, or find out with `cosnorm train`"
            )
        self.watchers[job].warning(f"{job.config.name} was lost and is begun again: {reason}")
        if not self._fitting(job):
            self.watchers[job].warning(
                f"no node is left with {self._wanted(job)} for {job.config.name}, which waits for "
                "one: add a node, or stop and give the same command later"
            )

    def _try_again(self) -> None:
        """Send what was put off, when nothing else is left; over and over only if it helps."""
        waiting, self.put_off = self.put_off, {}
        if not self.has_moved:
            raise next(iter(waiting.values()))
        self.has_moved = False
        for job in waiting:
            self._send(job)

    def _stopped(self, reason: str) -> Iterator[tuple[Job, "Outcome"]]:
        """Have the runs saved: those that end all the same, then one that did not."""
        from cosnorm.study.train.train import Outcome

        asked = [job for _, job in self.going.values()]
        over = self._asked_to_save()
        yield from over.items()
        left = [job for job in asked if job not in over]
        for job in left:
            if job in self.step or job == left[0]:
                self.watchers[job].end("stopped", None)
        if left:
            yield left[0], Outcome("stopped", reason=reason)

    def _asked_to_save(self) -> "dict[Job, Outcome]":
        """Ask what goes to save and stop, and wait for it; the outcomes of what ends instead."""
        over: dict[Job, Outcome] = {}
        for task in self.going:
            # A task that runs hears SIGINT, as `Stop` does; its letters are not called off.
            self.ray.cancel(task, recursive=False)
        end = time.monotonic() + _SAVE_S
        while self.going and time.monotonic() < end:
            ended, _ = self.ray.wait(list(self.going), timeout=_LOOK_S)
            for task in ended:
                _, job = self.going.pop(task)
                with suppress(Exception):  # it is told when the same command comes again
                    if outcome := self._outcome(task, job):
                        over[job] = outcome
        for job, outcome in over.items():
            self.watchers[job].end(outcome.status, outcome.summary)
        return over

    def _send(self, job: Job) -> None:
        """Have the job's run made."""
        launcher, number = self.launcher, next(self.numbers)
        task = self.task.options(
            num_cpus=launcher.cpus,
            num_gpus=launcher.gpus_of(job),
            max_retries=0,
            name=job.config.name,
            runtime_env={"env_vars": _variables()},
        )
        patience = _ZOMBIE_S if self.losses[job] else 0.0
        place = Place(os.getcwd(), max(1, int(launcher.cpus)), patience)
        letters = Letters(self.mailbox, number)
        self.going[task.remote(job, letters, launcher.options, place)] = number, job

    def _read_letters(self) -> None:
        writers = dict(self.going.values())
        for number, events in self.ray.get(self.mailbox.taken.remote()):
            if (job := writers.get(number)) is None:
                continue
            for name, arguments in events:
                if name in ("begin", "step"):
                    self.step[job] = arguments[1] if name == "begin" else arguments[0]
                getattr(self.watchers[job], name)(*arguments)

    def _check_resources(self) -> None:
        for job in self.jobs:
            if not self._fitting(job):
                kinds = {_told(node["Resources"]) for node in _nodes(self.ray)}
                raise ConfigError(
                    f"a run needs {self._wanted(job)} on one node, and no node of the cluster has "
                    f"them (there are: {'; '.join(sorted(kinds))}): use --cpus-per-run and "
                    "--gpus-per-run, or another cluster"
                )

    def _fitting(self, job: Job) -> bool:
        cpus, gpus = self.launcher.cpus, self.launcher.gpus_of(job)
        found = (node["Resources"] for node in _nodes(self.ray))
        return any(has.get("CPU", 0) >= cpus and has.get("GPU", 0) >= gpus for has in found)

    def _wanted(self, job: Job) -> str:
        return _told({"CPU": self.launcher.cpus, "GPU": self.launcher.gpus_of(job)})

    def _check_shared(self, job: Job) -> None:
        end = time.monotonic() + _SHARED_S
        while not job.is_over and self.launcher.stop.reason is None:
            if time.monotonic() > end:
                raise RunError(
                    f"{job.config.name} is over, but {job.storage.label} does not have it here: "
                    "its node wrote to a folder of its own; give --out a place that all nodes share"
                )
            job.storage.names("")  # to list a folder has NFS look at it anew
            time.sleep(_LOOK_S)


def _told(resources: Mapping[str, float]) -> str:
    return f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"


def _nodes(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _variables() -> dict[str, str]:
    """What the processes of runs inherit. Ray hides no GPU: a process has several in turn."""
    ours = {name: value for name, value in os.environ.items() if name.startswith("COSNORM_")}
    return {**ours, "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}


def _mailbox(ray: Any) -> Any:
    """A mailbox on the node of this program: it must outlive the others."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()
