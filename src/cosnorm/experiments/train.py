"""The training loop."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from cosnorm.data import Dataset
from cosnorm.experiments.config import Config
from cosnorm.experiments.learner import Learner, captured
from cosnorm.experiments.record import RunFolder
from cosnorm.experiments.session import Session
from cosnorm.experiments.stopping import Stop
from cosnorm.experiments.watching import Watcher


@dataclass(frozen=True)
class Outcome:
    """How a run ended: "done", "diverged", or "stopped" for a reason."""

    status: str
    summary: Mapping[str, Any] | None = None
    reason: str | None = None


def train(
    config: Config,
    dataset: Dataset,
    folder: RunFolder,
    *,
    watcher: Watcher,
    stop: Stop,
    checkpoint_seconds: float | None = None,
    keep_checkpoints: bool = True,
) -> Outcome:
    """Train from the folder's last checkpoint, or from the beginning, to the end.

    A step is a function of the configuration and its number, and a checkpoint holds all that steps
    change: when and how often a run was stopped does not show in its result. An evaluation goes to
    the metrics first and into a checkpoint after, so that none is lost and none is there twice.
    """
    with arithmetic(config), stop.listening():
        learner = Learner(config, dataset)
        run = Session(learner, dataset, folder, watcher)
        run.restore()
        watcher.begin(config, run.step, run.total, learner.batches.size)
        learner.batches.begin(run.step)
        advance = captured(learner) if learner.capturable else learner.step
        run.clock.restart(run.step)

        while run.step < run.total:
            if stop.reason:
                run.save()
                return Outcome("stopped", reason=stop.reason)
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


@contextmanager
def arithmetic(config: Config) -> Iterator[None]:
    """The process-wide switches of precision and determinism, as the configuration wants them."""
    backends: Any = torch.backends
    cudnn = backends.cudnn
    precise = (backends.cuda.matmul, cudnn.conv)
    before = [part.fp32_precision for part in precise], cudnn.benchmark, cudnn.deterministic
    determined = torch.are_deterministic_algorithms_enabled()
    for part in precise:
        part.fp32_precision = "ieee" if config.precision == "fp32" else "tf32"
    cudnn.benchmark, cudnn.deterministic = not config.deterministic, config.deterministic
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        precisions, cudnn.benchmark, cudnn.deterministic = before
        for part, precision in zip(precise, precisions, strict=True):
            part.fp32_precision = precision
        if config.deterministic:
            torch.use_deterministic_algorithms(determined)
