"""Runs that differ in their seed alone, trained as one, each in a folder of its own.

A folder gets what a run alone writes there. All are at the same step: where some have a later
checkpoint than others, they go back to the last step that all have; where there is none, as with
a folder that was begun alone, those at the same step train as one, then the others.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from cosnorm.study.runs.checkpoint import drop_checkpoints, saved_steps
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.environment import environment
from cosnorm.study.runs.progress import Watcher
from cosnorm.study.runs.record import RunFolder
from cosnorm.study.train.learner import Learner, captured
from cosnorm.study.train.ranks import Alone
from cosnorm.study.train.run import check_device, opened
from cosnorm.study.train.session import Session
from cosnorm.study.train.stack import Stack
from cosnorm.study.train.stopping import GiveUp, Stop
from cosnorm.study.train.train import Outcome, arithmetic, warn_of_short_batches
from cosnorm.study.train.vocabulary import keep_vocabulary

if TYPE_CHECKING:
    from cosnorm.study.data import Dataset
    from cosnorm.study.train.launchers import Job


def run_together(
    jobs: "Sequence[Job]",
    dataset: "Dataset",
    watchers: Sequence[Watcher],
    *,
    stop: Stop,
    checkpoint_seconds: float | None = None,
    keep_checkpoints: bool = True,
    watch: bool = False,
    give_up: GiveUp | None = None,
) -> "list[Outcome]":
    """Begin the runs or go on with them, as `cosnorm.study.train.run.run` does with one.

    jobs: with configurations that differ in their seed alone, none of them over.
    watchers: of each run; their `end` is the caller's.
    """
    config = jobs[0].config
    check_device(config)
    folders = [RunFolder(job.storage) for job in jobs]
    here = {**environment(config.device), "processes": 1, "together": len(jobs)}
    for note in dataset.notes:
        watchers[0].warning(note)
    outcomes: dict[int, Outcome] = {}
    with ExitStack() as claims:
        for number, (job, folder) in enumerate(zip(jobs, folders, strict=True)):
            claim = opened(folder, job.config, here, Alone(), watchers[number])
            if over := claims.enter_context(claim):
                outcomes[number] = over
        left = [number for number in range(len(jobs)) if number not in outcomes]
        chosen = [(jobs[i].config, folders[i], watchers[i]) for i in left]
        with arithmetic(config), stop.listening():
            sessions = _restored(chosen, dataset, watch)
            made: dict[Session, Outcome] = {}
            for step in sorted({session.step for session in sessions}, reverse=True):
                level = [session for session in sessions if session.step == step]
                made |= Round(level, stop, checkpoint_seconds, keep_checkpoints, give_up)()
        outcomes |= {number: made[session] for number, session in zip(left, sessions, strict=True)}
    return [outcomes[number] for number in range(len(jobs))]


def _restored(
    runs: Sequence[tuple[Config, RunFolder, Watcher]], dataset: "Dataset", watch: bool
) -> list[Session]:
    """The runs where their folders left them, over data that is on the device once."""
    _go_back(runs)
    sessions, shared = [], dataset
    for config, folder, watcher in runs:
        learner = Learner(config, shared)
        shared = replace(dataset, train=learner.train_part, test=learner.test_part)
        session = Session(learner, dataset, folder, watcher, watch)
        session.restore()
        keep_vocabulary(folder.storage, dataset, watcher)
        warn_of_short_batches(learner, watcher)
        sessions.append(session)
    return sessions


def _go_back(runs: Sequence[tuple[Config, RunFolder, Watcher]]) -> None:
    """Where all have a checkpoint of the same step, drop what some have beyond it."""
    saved = [saved_steps(folder.storage) for _, folder, _ in runs]
    common = max(set.intersection(*saved), default=None)
    for (_, folder, watcher), steps in zip(runs, saved, strict=True):
        if common is not None and max(steps) > common:
            watcher.warning(
                f"{folder.storage.label} goes back from step {max(steps):,} to {common:,}, the "
                "last of which all runs that train as one have a checkpoint"
            )
            drop_checkpoints(folder.storage, after=common)


class Round:
    """Runs at the same step, from there to their ends; `cosnorm.study.train.train` for several."""

    def __init__(
        self,
        sessions: Sequence[Session],
        stop: Stop,
        checkpoint_seconds: float | None,
        keep_checkpoints: bool,
        give_up: GiveUp | None,
    ) -> None:
        self.going = list(sessions)
        self.stop, self.checkpoint_seconds = stop, checkpoint_seconds
        self.keep_checkpoints, self.give_up = keep_checkpoints, give_up
        learners = [session.learner for session in sessions]
        self.learner = Stack(learners) if len(learners) > 1 else learners[0]
        self.outcomes: dict[Session, Outcome] = {}

    def __call__(self) -> dict[Session, Outcome]:
        first, learner = self.going[0], self.learner
        step, total = first.step, first.total
        with self._telling():
            for session in self.going:
                session.begin()
        learner.batches.begin(step)
        advance = captured(learner) if learner.capturable else learner.step
        for session in self.going:
            session.clock.restart(step)

        while step < total and self.going:
            reason = self.stop.reason
            if reason or self.going[0].is_due(self.checkpoint_seconds):
                self._save()
            if reason:
                return self.outcomes | {s: Outcome("stopped", reason=reason) for s in self.going}
            if step % first.per_epoch == 0:
                learner.batches.begin(step)
            advance()
            step += 1
            for session in self.going:
                session.step = step
                session.watcher.step(step)
            if step % first.every == 0 or step == total:
                self._evaluate()

        for session in self.going:
            self._end(session, "done")
        return self.outcomes

    def _evaluate(self) -> None:
        """As `Session.evaluate`; a run that is none of numbers, or is given up, leaves the others.

        The lines are written at the same time: a disk takes as long for one as for all.
        """
        going = self.going
        going[0].learner.wait()
        rates = [session.clock.rate(session.step) for session in going]
        lines = [s.evaluation(rate) for s, rate in zip(going, rates, strict=True)]
        with ThreadPoolExecutor(len(going)) as pool:
            list(pool.map(lambda s, line: s.folder.append_metrics(line), going, lines))
        with self._telling():
            are_of_numbers = [s.told(line) for s, line in zip(going, lines, strict=True)]
        self.going = []
        for session, is_of_numbers in zip(going, are_of_numbers, strict=True):
            session.clock.restart(session.step)
            if not is_of_numbers:
                self._end(session, "diverged")
            elif self.give_up is not None and self.give_up.on(session.step, session.raw_error):
                self._end(session, "untrained")
            else:
                self.going.append(session)

    def _telling(self) -> ExitStack:
        """What is told of one run is no time of any."""
        telling = ExitStack()
        for session in self.going:
            telling.enter_context(session.clock.telling())
        return telling

    def _end(self, session: Session, status: str) -> None:
        summary = session.finish(status, self.keep_checkpoints)
        self.outcomes[session] = Outcome(status, summary)

    def _save(self) -> None:
        """A checkpoint of each, whose time is that of all."""
        self.going[0].learner.wait()
        with ExitStack() as saving:
            for session in self.going:
                saving.enter_context(session.clock.saving())
            for session in self.going:
                session.write_checkpoint()
