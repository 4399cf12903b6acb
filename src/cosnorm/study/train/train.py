"""The training loop."""

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from cosnorm.study.data import Dataset
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.progress import Watcher
from cosnorm.study.runs.record import RunFolder
from cosnorm.study.runs.storage import Storage
from cosnorm.study.train.learner import Learner, captured
from cosnorm.study.train.ranks import Ranks
from cosnorm.study.train.session import Session
from cosnorm.study.train.stopping import GiveUp, Stop
from cosnorm.study.train.vocabulary import keep_vocabulary


@dataclass(frozen=True)
class Outcome:
    """How a run ended: "done", "diverged", "untrained" (given up), or "stopped" for a reason.

    missing: files of a run done before that its folder has lost.
    """

    status: str
    summary: Mapping[str, Any] | None = None
    reason: str | None = None
    missing: tuple[str, ...] = ()


def train(
    config: Config,
    dataset: Dataset,
    folder: RunFolder,
    *,
    watcher: Watcher,
    stop: Stop,
    checkpoint_seconds: float | None = None,
    keep_checkpoints: bool = True,
    watch: bool = False,
    ranks: Ranks | None = None,
    place: Storage | None = None,
    give_up: GiveUp | None = None,
) -> Outcome:
    """Train from the folder's last checkpoint, or from the beginning, to the end.

    A step is a function of the configuration and its number, and a checkpoint holds all that steps
    change: when and how often a run was stopped does not show in its result. An evaluation goes to
    the metrics first and into a checkpoint after, so that none is lost and none is there twice.
    """
    with arithmetic(config), stop.listening():
        learner = Learner(config, dataset, ranks)
        run = Session(learner, dataset, folder, watcher, watch, place)
        run.restore()
        keep_vocabulary(folder.storage, dataset, watcher)
        warn_of_short_batches(learner, watcher)
        _warn_of_single_steps(learner, watcher)
        with run.clock.telling():
            run.begin()
        learner.batches.begin(run.step)
        advance = captured(learner) if learner.capturable else learner.step
        run.clock.restart(run.step)

        while run.step < run.total:
            reason, is_time_to_save = stop.agreed(learner.ranks, run.is_due(checkpoint_seconds))
            if reason or is_time_to_save:
                run.save()
            if reason:
                return Outcome("stopped", reason=reason)
            if run.step % run.per_epoch == 0:
                learner.batches.begin(run.step)
            advance()
            run.step += 1
            watcher.step(run.step)
            is_due = run.step % run.every == 0 or run.step == run.total
            if is_due and not run.evaluate():
                return Outcome("diverged", run.finish("diverged", keep_checkpoints))
            if is_due and give_up is not None and give_up.on(run.step, run.raw_error):
                return Outcome("untrained", run.finish("untrained", keep_checkpoints))

        return Outcome("done", run.finish("done", keep_checkpoints))


def warn_of_short_batches(learner: Learner, watcher: Watcher) -> None:
    wanted, size = learner.config.batch_size, learner.batches.size
    if size < wanted:
        watcher.warning(
            f"the training part has {size:,} rows, fewer than the {wanted:,} of a batch: every "
            "step takes them all"
        )


def _warn_of_single_steps(learner: Learner, watcher: Watcher) -> None:
    if learner.device.type == "cuda" and learner.ranks.count > 1:
        watcher.warning(
            f"{learner.ranks.count} processes train together: their steps are launched one by one, "
            "since a CUDA graph is captured by a process that trains alone"
        )


@contextmanager
def arithmetic(config: Config) -> Iterator[None]:
    """The process-wide switches of precision and determinism, as the configuration wants them."""
    with _tf32(config.precision in ("tf32", "bf16")), _deterministic(config.deterministic):
        yield


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """TF32 in matrix products and convolutions of CUDA devices, or not."""
    backends: Any = torch.backends
    parts = backends.cuda.matmul, backends.cudnn.conv
    before = [part.fp32_precision for part in parts]
    _allow_tf32(allowed, allowed)
    for part in parts:
        part.fp32_precision = "tf32" if allowed else "ieee"
    try:
        yield
    finally:
        _allow_tf32(*(precision == "tf32" for precision in before))
        for part, precision in zip(parts, before, strict=True):
            part.fp32_precision = precision


def _allow_tf32(products: bool, convolutions: bool) -> None:
    """By torch's older switches, which set the newer ones too.

    torch.compile asks the older, and fails where only the newer were set.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Please use the new API settings")
        torch.backends.cuda.matmul.allow_tf32 = products
        torch.backends.cudnn.allow_tf32 = convolutions


@contextmanager
def _deterministic(wanted: bool) -> Iterator[None]:
    cudnn: Any = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    determined = torch.are_deterministic_algorithms_enabled()
    cudnn.benchmark, cudnn.deterministic = not wanted, wanted
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before
        if wanted:
            torch.use_deterministic_algorithms(determined)
