"""A run in progress: the learner, its folder and its clock, between which the loop moves."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from cosnorm.data import Dataset
from cosnorm.experiments.checkpoint import drop_checkpoints, load_checkpoint, save_checkpoint, seal
from cosnorm.experiments.config import Config
from cosnorm.experiments.environment import environment
from cosnorm.experiments.errors import RunError
from cosnorm.experiments.learner import Learner
from cosnorm.experiments.record import AVERAGE, MODEL, RunFolder
from cosnorm.experiments.result import result_of
from cosnorm.experiments.watching import Watcher


class Clock:
    """Seconds of the whole run, over all its sessions, and the rate of training alone."""

    def __init__(self, before: float, step: int) -> None:
        self._start = time.perf_counter() - before
        self._saved = time.perf_counter()
        self._cost = 0.0
        self.restart(step)

    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def restart(self, step: int) -> None:
        """Measure the rate from here."""
        self._mark, self._mark_step, self._idle = time.perf_counter(), step, 0.0

    def rate(self, step: int) -> float:
        """Steps a second since `restart`, time spent on saving left out."""
        busy = time.perf_counter() - self._mark - self._idle
        return (step - self._mark_step) / max(busy, 1e-9)

    def is_time_to_save(self, every: float | None) -> bool:
        """Whether `every` seconds are over; with None, 50 times as long as saving takes, or 1 s."""
        pause = max(1.0, 50 * self._cost) if every is None else every
        return time.perf_counter() - self._saved >= pause

    @contextmanager
    def saving(self) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self._saved = time.perf_counter()
        self._cost = self._saved - begun
        self._idle += self._cost


def described(dataset: Dataset) -> dict[str, Any]:
    """What a network needs to know of its data once the data is gone."""
    return {
        "name": dataset.name,
        "kind": dataset.kind,
        "dtype": str(dataset.train.x.dtype).removeprefix("torch."),
        "sample_shape": list(dataset.sample_shape),
        "classes": list(dataset.classes),
        "train": len(dataset.train),
        "test": len(dataset.test),
        "fingerprint": dataset.fingerprint,
    }


def lengths(config: Config, per_epoch: int) -> tuple[int, int]:
    """Steps of the whole run, and steps between evaluations."""
    if config.steps is not None:
        return config.steps, config.eval_every
    assert config.epochs is not None
    return config.epochs * per_epoch, config.eval_every * per_epoch


class Session:
    """One process's part in a run."""

    def __init__(
        self,
        learner: Learner,
        dataset: Dataset,
        folder: RunFolder,
        watcher: Watcher,
    ) -> None:
        self.config, self.learner = learner.config, learner
        self.folder, self.watcher = folder, watcher
        self.data = described(dataset)
        self.per_epoch = learner.batches.per_epoch
        self.total, self.every = lengths(self.config, self.per_epoch)
        self.step = 0
        self.clock = Clock(0.0, 0)

    def restore(self) -> None:
        """Take over the last whole checkpoint, and bring the folder to the state of its step."""
        found, warnings = load_checkpoint(self.folder.storage, self.config)
        for warning in warnings:
            self.watcher.warning(warning)
        seconds = 0.0
        if found is not None:
            tensors, state = found
            self._check_data(state["data"])
            self.learner.load(tensors)
            self.step, seconds = state["step"], state["seconds"]
        self._share_state()
        drop_checkpoints(self.folder.storage, after=self.step if found else -1)
        self.folder.truncate_metrics(self.step)
        if found is not None:
            self._warn_of_lost_evaluations()
        self.clock = Clock(seconds, self.step)

    def _warn_of_lost_evaluations(self) -> None:
        """What was evaluated before the checkpoint is not evaluated again: its loss must show."""
        kept = {line["step"] for line in self.folder.metrics()}
        due = range(self.every, self.step + 1, self.every)
        lost = [step for step in due if step not in kept]
        if lost:
            self.watcher.warning(
                f"{self.folder.storage.label}/metrics.jsonl lacks {len(lost)} of the {len(due)} "
                f"evaluations before step {self.step:,} (the first: step {lost[0]:,}), and the "
                "result will be without them: restore the file, or delete the folder to begin anew"
            )

    def _share_state(self) -> None:
        """Every rank goes on from what the first has read."""
        step = torch.tensor(self.step)
        self.learner.ranks.share((step, *self.learner.state().values()))
        self.step = int(step)

    def _check_data(self, before: Mapping[str, Any]) -> None:
        if before["fingerprint"] != self.data["fingerprint"]:
            raise RunError(
                f"{self.folder.storage.label} was begun with other data than {self.data['name']} "
                "is now: restore the data, or choose another folder"
            )

    def save(self) -> None:
        """A checkpoint of this step."""
        self.learner.wait()  # for training, which is not what saving costs
        with self.clock.saving():
            state = {"format": 1, "seconds": self.clock.seconds(), "data": self.data}
            tensors = self.learner.state()
            save_checkpoint(self.folder.storage, self.step, tensors, state, self.config)

    def evaluate(self) -> bool:
        """Add a line to the metrics; training goes on as if nothing had been asked.

        Returns whether the run is still one of numbers.
        """
        learner, step = self.learner, self.step
        since = step - (step - 1) // self.every * self.every
        loss = float(learner.loss) / since
        learner.loss.zero_()
        rate = self.clock.rate(step)
        raw = learner.error(learner.network)
        epochs = step / self.per_epoch
        line = {
            "epoch": round(epochs, 4) if step % self.per_epoch else int(epochs),
            "step": step,
            "train_loss": loss,
            "test_error": raw,
        }
        if learner.average is not None:
            line |= {"test_error": learner.error(learner.average.network), "test_error_raw": raw}
        line["seconds"] = round(self.clock.seconds(), 3)
        line["examples_per_second"] = round(rate * learner.batches.size, 1)
        self.folder.append_metrics(line)
        self.watcher.evaluation(line)
        self.clock.restart(step)
        return math.isfinite(loss) and math.isfinite(line["test_error"])

    def finish(self, diverged: bool, keep_checkpoints: bool) -> dict[str, Any]:
        """Write the final parameters, and last of all the summary."""
        storage, learner = self.folder.storage, self.learner
        seconds = self.clock.seconds()
        about = {"step": self.step, "data": self.data, "config": self.config.to_dict()}
        storage.write(MODEL, seal(learner.network.state_dict(), about))
        if learner.average is not None:
            average = learner.average.network.state_dict()
            storage.write(AVERAGE, seal(average, about))
        summary = {
            **result_of(self.config, self.folder.metrics(), diverged),
            "steps": self.step,
            "seconds": round(seconds, 3),
            "data": self.data,
            "config": self.config.to_dict(),
            "environment": self.folder.read("environment.json") or environment(self.config.device),
        }
        self.folder.write("summary.json", summary)
        if not keep_checkpoints:
            drop_checkpoints(storage)
        return summary
