"""What the processes of a Ray cluster do: make a run, tell of it, and stop when they are asked."""

import os
import socket
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from cosnorm.study.runs.config import Config
from cosnorm.study.runs.errors import InUseError, StorageError
from cosnorm.study.train.launchers import InProcess, Job
from cosnorm.study.train.stopping import StartedStop

if TYPE_CHECKING:
    from cosnorm.study.train.train import Outcome

_LOOK_S = 0.1  # between two looks at whether a run is let go of
_TELL_S = 0.25  # between two letters of a run

_warm: dict[str, InProcess] = {}  # by its options; it keeps the data it has loaded


class Place(NamedTuple):
    """Where and how a run is made.

    folder: what relative names begin at.
    patience: seconds to wait for a process of before to let go of the run.
    """

    folder: str
    threads: int
    patience: float


def make(
    job: Job, letters: "Letters", options: Mapping[str, Any], place: Place
) -> "Outcome | Exception":
    """Make the job's run here. What goes wrong is returned, to be raised where the user is.

    options: as `InProcess` takes them.
    """
    try:
        _prepare(job, place)
        launcher = _warm.setdefault(repr(options), InProcess(**options))
        launcher.watcher, launcher.stop = (lambda job: letters), StartedStop()
        end = time.monotonic() + place.patience
        while True:
            try:
                ((_, outcome),) = launcher([job])
                return outcome
            except InUseError:
                if time.monotonic() > end or launcher.stop.reason is not None:
                    raise
                time.sleep(_LOOK_S)
    except Exception as error:
        told = _told_from(job, error)
        told.add_note(traceback.format_exc())
        return told


def _told_from(job: Job, error: Exception) -> Exception:
    """The error as it can be understood elsewhere, where the storage may well answer."""
    if isinstance(error, InUseError) or not isinstance(error, StorageError):
        return error
    text = f"{job.config.name} failed on the node {socket.gethostname()}: {error}"
    if "AWS_" in text:
        text += "; a node has variables of its own: set them where `ray start` is called"
    return type(error)(text)


def _prepare(job: Job, place: Place) -> None:
    import torch

    from cosnorm.study.extensions import load_extensions

    with suppress(OSError):  # a node that has no such folder may yet share the runs
        os.chdir(place.folder)
    load_extensions()
    torch.set_num_threads(place.threads)
    if job.config.device == "cuda" and torch.cuda.is_available():
        import ray

        if gpus := ray.get_gpu_ids():
            torch.cuda.set_device(index_of(gpus, os.environ.get("CUDA_VISIBLE_DEVICES")))


def index_of(gpus: Sequence[Any], visible: str | None) -> int:
    """What torch calls the first of the GPUs that Ray names.

    Ray names them as CUDA_VISIBLE_DEVICES does, torch by their places in it.

    >>> index_of(["5"], "3,5")
    1
    """
    name = str(gpus[0])
    return visible.split(",").index(name) if visible else int(name)


class Mailbox:
    """An actor where letters wait to be read."""

    def __init__(self) -> None:
        self.letters: list[tuple[int, list[tuple[str, tuple[Any, ...]]]]] = []

    def put(self, number: int, events: list[tuple[str, tuple[Any, ...]]]) -> None:
        self.letters.append((number, events))

    def taken(self) -> list[tuple[int, list[tuple[str, tuple[Any, ...]]]]]:
        """The letters since the last time, each with the number of who wrote it."""
        letters, self.letters = self.letters, []
        return letters


class Letters:
    """The watcher of a run elsewhere: it writes home what it is told, a few times a second.

    Training does not wait for the post: while a letter is on its way, the next one grows longer.
    """

    def __init__(self, mailbox: Any, number: int) -> None:
        self.mailbox, self.number = mailbox, number
        self.events: list[tuple[str, tuple[Any, ...]]] = []
        self.sent = 0.0
        self.letter: Any = None

    def _add(self, name: str, *arguments: Any) -> None:
        self.events.append((name, arguments))
        if time.monotonic() - self.sent >= _TELL_S and self._arrived():
            self._send()

    def _arrived(self) -> bool:
        import ray

        return self.letter is None or bool(ray.wait([self.letter], timeout=0)[0])

    def _send(self) -> None:
        self.letter = self.mailbox.put.remote(self.number, self.events)
        self.events, self.sent = [], time.monotonic()

    def begin(self, config: Config, step: int, total: int, batch_size: int) -> None:
        self._add("begin", config, step, total, batch_size)

    def step(self, step: int) -> None:
        if self.events and self.events[-1][0] == "step":
            self.events.pop()
        self._add("step", step)

    def evaluation(self, evaluation: Mapping[str, Any]) -> None:
        self._add("evaluation", dict(evaluation))

    def warning(self, text: str) -> None:
        self._add("warning", text)

    def end(self, status: str, summary: Mapping[str, Any] | None) -> None:
        """What is left to tell of the run; how it ended is the task's answer, which comes after."""
        import ray

        self._send()
        ray.get(self.letter)
