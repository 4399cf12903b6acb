"""A run in progress: the learner, its folder and its clock, between which the loop moves."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from cosnorm.registry import resolve
from cosnorm.study.data import Dataset
from cosnorm.study.names import METRICS
from cosnorm.study.runs.checkpoint import drop_checkpoints, load_checkpoint, save_checkpoint
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.environment import environment
from cosnorm.study.runs.errors import RunError
from cosnorm.study.runs.formats import FORMAT
from cosnorm.study.runs.progress import Watcher
from cosnorm.study.runs.record import AVERAGE, MODEL, RunFolder
from cosnorm.study.runs.result import result_of
from cosnorm.study.runs.sealing import seal
from cosnorm.study.runs.storage import Storage
from cosnorm.study.train.layers import layer_figures
from cosnorm.study.train.learner import Learner


class Clock:
    """Seconds of the whole run, over all its sessions, and the rate of training alone.

    What those take who look on (a viewer's package to load, say) is neither's.
    """

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
    def telling(self) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self._start += time.perf_counter() - begun

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
        **({"columns": list(dataset.columns)} if dataset.columns else {}),
        **({"notes": list(dataset.notes)} if dataset.notes else {}),
    }


def lengths(config: Config, per_epoch: int) -> tuple[int, int]:
    """Steps of the whole run, and steps between evaluations."""
    if config.steps is not None:
        return config.steps, config.eval_every
    assert config.epochs is not None
    return config.epochs * per_epoch, config.eval_every * per_epoch


class Session:
    """One process's part in a run.

    place: where the run lies, for every process to read; `folder` is the first's alone.
    """

    def __init__(
        self,
        learner: Learner,
        dataset: Dataset,
        folder: RunFolder,
        watcher: Watcher,
        watch: bool = False,
        place: Storage | None = None,
    ) -> None:
        self.config, self.learner = learner.config, learner
        self.folder, self.watcher = folder, watcher
        self.place = place or folder.storage
        self.sample = learner.training_sample() if watch else None
        self.data = described(dataset)
        self.per_epoch = learner.batches.per_epoch
        self.total, self.every = lengths(self.config, self.per_epoch)
        self.step = self.saved = 0
        self.raw_error = 0.0  # of the last evaluation, by the parameters, not their average
        self.evaluated: set[int] = set()
        self.clock = Clock(0.0, 0)

    def restore(self) -> None:
        """Take over the last whole checkpoint, and bring the folder to the state of its step."""
        whole = not self.learner.ranks.is_sharded
        found, warnings = load_checkpoint(self.folder.storage, self.config, whole=whole)
        for warning in warnings:
            self.watcher.warning(warning)
        seconds = 0.0
        if found is not None:
            tensors, state = found
            now = self.data
            self.folder.check_data(state["data"], self.config, now["name"], now["fingerprint"])
            self.learner.load(tensors)
            self.step, seconds = state["step"], state["seconds"]
        self._share_state(found)
        drop_checkpoints(self.folder.storage, after=self.step if found else -1)
        self.folder.truncate_metrics(self.step)
        if found is not None:
            self._warn_of_lost_evaluations()
        self.clock = Clock(seconds, self.step)

    def _warn_of_lost_evaluations(self) -> None:
        """What was evaluated before the checkpoint is not evaluated again: its loss must show."""
        self.evaluated = {line["step"] for line in self.folder.metrics()}
        due = range(self.every, self.step + 1, self.every)
        lost = [step for step in due if step not in self.evaluated]
        if lost:
            self.watcher.warning(
                f"{self.folder.storage.label}/metrics.jsonl lacks {len(lost)} of the {len(due)} "
                f"evaluations before step {self.step:,} (the first: step {lost[0]:,}), and the "
                "result will be without them: restore the file, or delete the folder to begin anew"
            )

    def _metrics(self) -> list[dict[str, Any]]:
        """The evaluations of the whole run; an error where the file lost some while it ran."""
        metrics = self.folder.metrics()
        lost = self.evaluated - {line["step"] for line in metrics}
        if lost and self.learner.ranks.is_first:
            raise RunError(
                f"{self.folder.storage.label}/metrics.jsonl has lost {len(lost)} of the "
                f"{len(self.evaluated)} evaluations while the run was under way (the first: step "
                f"{min(lost):,}), so there is no result: restore the file, or delete the folder, "
                "and give the same command again"
            )
        return metrics

    def _share_state(self, found: tuple[dict[str, Tensor], dict[str, Any]] | None) -> None:
        """Every rank goes on from what the first has found."""
        ranks, state = self.learner.ranks, self.learner.state()
        (self.step,) = ranks.most([self.step])
        self.saved = self.step
        shards = ranks.shards(state)
        ranks.share(tensor for name, tensor in state.items() if name not in shards)
        ranks.load(shards, found, self.place)

    def is_due(self, every: float | None) -> bool:
        """Whether it is time for a checkpoint, and there is something new to save."""
        return self.step > self.saved and self.clock.is_time_to_save(every)

    def begin(self) -> None:
        """Tell that it begins, or goes on."""
        self.watcher.begin(self.config, self.step, self.total, self.learner.batches.size)

    def save(self) -> None:
        """A checkpoint of this step."""
        self.learner.wait()  # for training, which is not what saving costs
        with self.clock.saving():
            self.write_checkpoint()

    def write_checkpoint(self) -> None:
        self.saved = self.step
        storage, tensors = self.folder.storage, self.learner.state()
        state: dict[str, Any] = {"seconds": self.clock.seconds(), "data": self.data}
        if shards := self.learner.ranks.shards(tensors):
            state["shards"] = self.learner.ranks.save(shards, storage, self.step)
            tensors = {name: tensor for name, tensor in tensors.items() if name not in shards}
        save_checkpoint(storage, self.step, tensors, state, self.config)

    def evaluate(self) -> bool:
        """Add a line to the metrics; training goes on as if nothing had been asked.

        Returns whether the run is still one of numbers.
        """
        self.learner.wait()
        line = self.evaluation(self.clock.rate(self.step))
        self.folder.append_metrics(line)
        with self.clock.telling():
            is_of_numbers = self.told(line)
        self.clock.restart(self.step)
        return is_of_numbers

    def evaluation(self, rate: float) -> dict[str, Any]:
        """What there is to say of this step; rate: steps a second since the last evaluation."""
        learner, step = self.learner, self.step
        since = step - (step - 1) // self.every * self.every
        loss = float(learner.loss) / since
        learner.loss.zero_()
        raw = learner.error(learner.network, learner.test_part)
        epochs = step / self.per_epoch
        line = {
            "epoch": round(epochs, 4) if step % self.per_epoch else int(epochs),
            "step": step,
            "train_loss": loss,
            "test_error": raw,
        }
        if learner.average is not None:
            averaged = learner.error(learner.average.network, learner.test_part)
            line |= {"test_error": averaged, "test_error_raw": raw}
        line |= self._watched() | self._measured()
        line["seconds"] = round(self.clock.seconds(), 3)
        line["examples_per_second"] = round(rate * learner.batches.size, 1)
        self.raw_error = raw
        return line

    def told(self, line: Mapping[str, Any]) -> bool:
        """Tell of an evaluation that is in the metrics; returns whether it is one of numbers."""
        self.evaluated.add(self.step)
        self.watcher.evaluation(line)
        return math.isfinite(line["train_loss"]) and math.isfinite(line["test_error"])

    @torch.no_grad()
    def _measured(self) -> dict[str, float]:
        """The numbers that others have added to evaluations."""
        added = {name: entry.measure for name, entry in METRICS.items() if entry.measure}
        return {name: float(resolve(code)(self.learner)) for name, code in added.items()}

    def _watched(self) -> dict[str, Any]:
        """What an evaluation tells beyond its result, where that was asked for."""
        if self.sample is None:
            return {}
        learner = self.learner
        shown = learner.network if learner.average is None else learner.average.network
        error = learner.error(shown, self.sample)
        with learner.ranks.whole(learner.network):
            layers = layer_figures(learner.network, self.config.lr)
        return {"train_error": error, "layers": layers}

    def finish(self, status: str, keep_checkpoints: bool) -> dict[str, Any]:
        """Write the final parameters, and last of all the summary."""
        storage, learner = self.folder.storage, self.learner
        seconds, metrics = self.clock.seconds(), self._metrics()
        about = {"step": self.step, "data": self.data, "config": self.config.to_dict()}
        parameters = learner.ranks.gathered(learner.network.state_dict())
        storage.write(MODEL, seal(parameters, about))
        if learner.average is not None:
            parameters = learner.ranks.gathered(learner.average.network.state_dict())
            storage.write(AVERAGE, seal(parameters, about))
        summary = {
            "format": FORMAT,
            **result_of(self.config, metrics, status),
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
