"""The training loop."""

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from cosnorm.data import Dataset
from cosnorm.experiments.config import Config
from cosnorm.experiments.learner import Learner, captured
from cosnorm.experiments.ranks import Ranks
from cosnorm.experiments.record import RunFolder
from cosnorm.experiments.session import Session
from cosnorm.experiments.stopping import Stop
from cosnorm.experiments.vocabulary import keep_vocabulary
from cosnorm.experiments.watching import Watcher


@dataclass(frozen=True)
class Outcome:
    """How a run ended: "done", "diverged", or "stopped" for a reason.

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
    ranks: Ranks | None = None,
) -> Outcome:
    """Train from the folder's last checkpoint, or from the beginning, to the end.

    A step is a function of the configuration and its number, and a checkpoint holds all that steps
    change: when and how often a run was stopped does not show in its result. An evaluation goes to
    the metrics first and into a checkpoint after, so that none is lost and none is there twice.
    """
    with arithmetic(config), stop.listening():
        learner = Learner(config, dataset, ranks)
        run = Session(learner, dataset, folder, watcher)
        run.restore()
        keep_vocabulary(folder.storage, dataset, watcher)
        _warn_of_short_batches(learner, watcher)
        watcher.begin(config, run.step, run.total, learner.batches.size)
        learner.batches.begin(run.step)
        advance = captured(learner) if learner.capturable else learner.step
        run.clock.restart(run.step)

        while run.step < run.total:
            if reason := stop.agreed(learner.ranks):
                run.save()
                return Outcome("stopped", reason=reason)
            if run.step % run.per_epoch == 0:
                learner.batches.begin(run.step)
            advance()
            run.step += 1
            watcher.step(run.step)
            is_due = run.step % run.every == 0 or run.step == run.total
            if is_due and not run.evaluate():
                return Outcome("diverged", run.finish(True, keep_checkpoints))
            if run.clock.is_time_to_save(checkpoint_seconds):
                run.save()

        return Outcome("done", run.finish(False, keep_checkpoints))


def _warn_of_short_batches(learner: Learner, watcher: Watcher) -> None:
    wanted, size = learner.config.batch_size, learner.batches.size
    if size < wanted:
        watcher.warning(
            f"the training part has {size:,} rows, fewer than the {wanted:,} of a batch: every "
            "step takes them all"
        )


@contextmanager
def arithmetic(config: Config) -> Iterator[None]:
    """The process-wide switches of precision and determinism, as the configuration wants them."""
    with _tf32(config.precision != "fp32"), _deterministic(config.deterministic):
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
