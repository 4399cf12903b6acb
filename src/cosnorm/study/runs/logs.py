"""A run's numbers for the viewers that people have: TensorBoard, MLflow, or one of their own.

The run folder is where the numbers are; a log is a copy of its metrics. It is written anew, from
the folder, whenever a run begins or goes on, so that it has every evaluation once, however often
the run was interrupted and whether or not a log was asked for from the start. Nothing is sent
anywhere: logs are files in the folder of the command. Loads no torch.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from cosnorm.registry import resolve
from cosnorm.study.names import LOGGERS
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.errors import ConfigError, RunError
from cosnorm.study.runs.progress import Watcher
from cosnorm.study.runs.record import RunFolder, finite


class Logger(Protocol):
    """Writes the log of one run, made as `logger(folder)` with the folder of all logs.

    It may raise whatever it likes: the run goes on without its log, and says so.
    """

    def begin(self, name: str, config: Mapping[str, Any]) -> None:
        """Begin the log of the run `name`, with nothing left of what it had before."""
        ...

    def add(self, step: int, when: float, numbers: Mapping[str, float]) -> None:
        """Add the numbers of an evaluation; `when` is its time in seconds since 1970."""
        ...

    def end(self, status: str, numbers: Mapping[str, float]) -> None:
        """The run is over or stopped; the numbers are those of its result, if it has one."""
        ...


class Log:
    """A watcher that keeps a log beside the run folder.

    watcher: is told all that this one is told, and of a log that cannot be written.
    logger: writes the log; None for none.
    folder: the run's, from which earlier evaluations come.
    """

    def __init__(self, watcher: Watcher, logger: Logger | None, folder: RunFolder) -> None:
        self.watcher, self.logger, self.folder = watcher, logger, folder
        self._start: float | None = None
        self._last = 0  # the step of the last evaluation in the log

    def begin(self, config: Config, step: int, total: int, batch_size: int) -> None:
        self.watcher.begin(config, step, total, batch_size)
        self._kept(lambda: self._begin(config))

    def step(self, step: int) -> None:
        self.watcher.step(step)

    def evaluation(self, evaluation: Mapping[str, Any]) -> None:
        self.watcher.evaluation(evaluation)
        self._kept(lambda: self._add(evaluation))

    def warning(self, text: str) -> None:
        self.watcher.warning(text)

    def end(self, status: str, summary: Mapping[str, Any] | None) -> None:
        self._kept(lambda: self._end(status, summary))
        self.watcher.end(status, summary)

    def close(self, status: str, summary: Mapping[str, Any] | None) -> None:
        """End the logs alone; of a run that was over before, write them first."""
        self._kept(lambda: self._end(status, summary))
        if isinstance(self.watcher, Log):
            self.watcher.close(status, summary)

    def _begin(self, config: Config) -> None:
        lines = self.folder.metrics()
        self._last = 0
        self._start = time.time() - (lines[-1]["seconds"] if lines else 0.0)
        assert self.logger is not None
        self.logger.begin(config.name, config.to_dict())
        for line in lines:
            self._add(line)

    def _add(self, evaluation: Mapping[str, Any]) -> None:
        assert self.logger is not None and self._start is not None
        numbers = dict(numbers_of(evaluation))
        step = int(numbers.pop("step"))
        if step <= self._last:  # told late, from another machine: the folder had it by then
            return
        self._last = step
        self.logger.add(step, self._start + evaluation["seconds"], numbers)

    def _end(self, status: str, summary: Mapping[str, Any] | None) -> None:
        config = self.folder.config()
        if self._start is None and config is not None:
            self._begin(config)
        assert self.logger is not None
        result = ("test_error_mean", "final_test_error", "steps", "seconds")
        told = {key: value for key, value in (summary or {}).items() if key in result}
        self.logger.end(status, dict(numbers_of(told)))

    def _kept(self, write: Callable[[], None]) -> None:
        """Write, and where that fails leave the log and let the run go on."""
        if self.logger is None:
            return
        try:
            write()
        except Exception as error:
            self.logger = None
            self.watcher.warning(
                f"the log of {self.folder.storage.label} cannot be written "
                f"({type(error).__name__}: {error}): the run goes on without; give the same "
                "command again when that is mended, and the log is made from the run folder"
            )


def numbers_of(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The finite numbers in `values`, those of inner mappings as `outer/inner`.

    >>> dict(numbers_of({"step": 2, "loss": float("nan"), "layers": {"1": {"scale": 3.0}}}))
    {'step': 2.0, 'layers/1/scale': 3.0}
    """
    for key, value in finite(values).items():
        if isinstance(value, Mapping):
            yield from ((f"{key}/{inner}", number) for inner, number in numbers_of(value))
        elif isinstance(value, int | float):
            yield key, float(value)


def logged(watcher: Watcher, loggers: Sequence[Logger], folder: RunFolder) -> Log:
    """The watcher with a log by each of the loggers; where one fails the others go on."""
    for logger in loggers[:-1]:
        watcher = Log(watcher, logger, folder)
    return Log(watcher, loggers[-1] if loggers else None, folder)


def loggers_named(names: Sequence[str] | None, out: str | Path) -> list[Logger]:
    """The loggers of these names, as `logger_named` gives them; the same twice is refused."""
    names = names or ()
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigError(f"--log {twice[0]} is given twice: give each viewer once")
    return [logger_named(name, out) for name in names]


def logger_named(name: str, out: str | Path) -> Logger:
    """The logger of that name, which writes under `out`.

    Refused where there is none of that name, or where its package is missing.
    """
    if name not in LOGGERS:
        raise ConfigError(
            f"--log must be one of {', '.join(LOGGERS)}; got {name!r}: for several, give --log "
            "several times"
        )
    entry = LOGGERS[name]
    if str(out).startswith("s3://"):
        raise ConfigError(
            f"--log {name} writes files of this machine, and {out} is an object store: leave "
            "--log out, or give --out a folder"
        )
    try:
        return resolve(entry.logger)(Path(out))
    except ImportError as error:
        raise RunError(
            f"--log {name} needs {entry.package}, which cannot be imported ({error}); install it "
            f"with: pip install '{entry.package}'"
        ) from error


class TensorBoard:
    """Event files in OUT/tensorboard/NAME, for `tensorboard --logdir OUT/tensorboard`."""

    def __init__(self, out: Path) -> None:
        self.folder = out / "tensorboard"
        self._make: Any = import_module("torch.utils.tensorboard").SummaryWriter

    def begin(self, name: str, config: Mapping[str, Any]) -> None:
        place = self.folder / name
        for old in place.glob("events.out.tfevents.*"):
            old.unlink()
        self.config, self.writer = config, self._make(place)
        self.writer.add_text("config", f"```json\n{json.dumps(config, indent=2)}\n```")

    def add(self, step: int, when: float, numbers: Mapping[str, float]) -> None:
        for name, number in numbers.items():
            self.writer.add_scalar(name, number, step, walltime=when)
        self.writer.flush()

    def end(self, status: str, numbers: Mapping[str, float]) -> None:
        self.writer.add_text("status", status)
        for name, number in numbers.items():
            self.writer.add_scalar(f"result/{name}", number)
        self.writer.close()


class MLflow:
    """A run of the experiment "cosnorm" in OUT/mlflow.db, an SQLite file.

    For `mlflow ui --backend-store-uri sqlite:///OUT/mlflow.db`, which the whole mlflow has.
    """

    def __init__(self, out: Path) -> None:
        # MLflow reports its use to its makers unless told not to; whoever wants that can set it.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        self.out = out.absolute()
        for needed in ("sqlalchemy", "alembic"):
            import_module(needed)
        self._client: Any = import_module("mlflow.tracking").MlflowClient
        self._entities: Any = import_module("mlflow.entities")
        logging = import_module("logging")
        logging.getLogger("mlflow").setLevel(logging.WARNING)

    def begin(self, name: str, config: Mapping[str, Any]) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        self.client = self._client(tracking_uri=f"sqlite:///{self.out / 'mlflow.db'}")
        experiment = self._experiment()
        for old in self.client.search_runs([experiment], f"attributes.run_name = '{name}'"):
            self.client.delete_run(old.info.run_id)
        self.run = self.client.create_run(experiment, run_name=name).info.run_id
        params = [self._entities.Param(key, str(value)) for key, value in config.items()]
        self.client.log_batch(self.run, params=params)

    def _experiment(self) -> str:
        found = self.client.get_experiment_by_name("cosnorm")
        if found is not None:
            return found.experiment_id
        return self.client.create_experiment("cosnorm", (self.out / "mlflow").as_uri())

    def add(self, step: int, when: float, numbers: Mapping[str, float]) -> None:
        self._add(numbers, when, step)

    def end(self, status: str, numbers: Mapping[str, float]) -> None:
        self._add({f"result/{name}": number for name, number in numbers.items()}, time.time(), 0)
        self.client.set_tag(self.run, "status", status)
        over = {"done": "FINISHED", "stopped": "KILLED"}
        self.client.set_terminated(self.run, over.get(status, "FAILED"))

    def _add(self, numbers: Mapping[str, float], when: float, step: int) -> None:
        stamp = int(1000 * when)
        metrics = [self._entities.Metric(n, value, stamp, step) for n, value in numbers.items()]
        self.client.log_batch(self.run, metrics=metrics)
