"""Logs as the packages that show them read them."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from experiment_cases import Notes, StopAfter, config_for, vector_data

from cosnorm.study import LOGGERS, LoggerEntry
from cosnorm.study.runs.errors import ConfigError, RunError
from cosnorm.study.runs.logs import Log, TensorBoard, logged, logger_named, loggers_named
from cosnorm.study.runs.record import RunFolder
from cosnorm.study.runs.storage import storage_at
from cosnorm.study.train.run import run


class ByHeart:
    """A logger that remembers."""

    def __init__(self, folder):
        self.folder, self.begun, self.added, self.ended = folder, [], [], []

    def begin(self, name, config):
        self.begun.append((name, config))
        self.added = []

    def add(self, step, when, numbers):
        self.added.append((step, when, dict(numbers)))

    def end(self, status, numbers):
        self.ended.append((status, dict(numbers)))


def trained(out, logger, *, config=None, **options):
    notes = Notes()
    log = Log(notes, logger, RunFolder(storage_at(out)))
    outcome = run(
        config or config_for(), out, dataset=vector_data(), watcher=log,
        **{"checkpoint_seconds": 0, **options},
    )  # fmt: skip
    log.end(outcome.status, outcome.summary)
    return notes, outcome


def metrics(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_log_is_a_copy_of_the_metrics(tmp_path):
    logger = ByHeart(tmp_path)
    notes, outcome = trained(tmp_path / "run", logger, watch=True)
    assert logger.begun[0][0] == "cosine-seed0"
    assert logger.begun[0][1]["batch_size"] == 10
    lines = metrics(tmp_path / "run")
    assert [step for step, _, _ in logger.added] == [line["step"] for line in lines] != []
    for (_, _, numbers), line in zip(logger.added, lines, strict=True):
        assert numbers["test_error"] == line["test_error"]
        assert numbers["layers/1/weight_norm"] == line["layers"]["1"]["weight_norm"]
    assert logger.ended[0][0] == "done"
    assert logger.ended[0][1]["test_error_mean"] == outcome.summary["test_error_mean"]
    assert notes.steps[-1] == 24 and notes.ended == ["done"] and not notes.warnings


def test_a_run_that_is_stopped_and_gone_on_with_is_logged_whole(tmp_path):
    first, second = ByHeart(tmp_path), ByHeart(tmp_path)
    trained(tmp_path / "run", first, stop=StopAfter(15))
    assert [step for step, _, _ in first.added] == [6, 12]
    assert first.ended == [("stopped", {})]
    trained(tmp_path / "run", second)
    assert [step for step, _, _ in second.added] == [6, 12, 18, 24]
    times = [when for _, when, _ in second.added]
    assert times == sorted(times)


def test_a_run_that_is_over_gets_its_log(tmp_path):
    trained(tmp_path / "run", None)
    logger = ByHeart(tmp_path)
    trained(tmp_path / "run", logger)
    assert [step for step, _, _ in logger.added] == [6, 12, 18, 24]
    assert logger.ended[0][0] == "done"


def test_a_log_that_fails_leaves_the_run_alone(tmp_path):
    (tmp_path / "tensorboard").write_text("a file where the folder should be")
    notes, outcome = trained(tmp_path / "run", TensorBoard(tmp_path))
    assert outcome.status == "done"
    (warning,) = notes.warnings
    assert "the log of" in warning and "the run goes on without" in warning
    (tmp_path / "tensorboard").unlink()
    trained(tmp_path / "run", TensorBoard(tmp_path))
    assert scalars(tmp_path / "tensorboard" / "cosine-seed0")["test_error"]


def test_loggers_of_others_and_wrong_names(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"one of tensorboard, mlflow; got 'wandb'"):
        logger_named("wandb", tmp_path)
    monkeypatch.setattr(LOGGERS, "_entries", dict(LOGGERS))
    LOGGERS.add(LoggerEntry("mine", ByHeart, "mine"))
    assert logger_named("mine", tmp_path).folder == tmp_path


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow.tracking"),
                         ("mlflow", "sqlalchemy")],
)  # fmt: skip
def test_a_logger_that_is_not_installed(name, module, tmp_path, monkeypatch):
    for loaded in [m for m in sys.modules if m.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RunError, match=rf"--log {name} needs .* pip install 'cosnorm\[{name}\]'"):
        logger_named(name, tmp_path)


def scalars(folder):
    """What TensorBoard itself reads: the values of each curve by step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: {event.step: event.value for event in events.Scalars(tag)}
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_reads_it(tmp_path):
    config = config_for(epochs=4)
    for stop in (StopAfter(15), None):
        trained(tmp_path / "run", TensorBoard(tmp_path), config=config, stop=stop, watch=True)
    read = scalars(tmp_path / "tensorboard" / "cosine-seed0")
    lines = metrics(tmp_path / "run")
    assert read["test_error"] == pytest.approx({e["step"]: e["test_error"] for e in lines})
    assert read["train_loss"] == pytest.approx({e["step"]: e["train_loss"] for e in lines})
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert read["result/test_error_mean"][0] == pytest.approx(summary["test_error_mean"])
    assert len(list((tmp_path / "tensorboard").rglob("events.*"))) == 1


def in_python(code, folder, *arguments, **environment):
    """Run code that imports from this file in a process of its own."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    # MLflow reports nothing where it sees a test or a CI machine: hide both from it.
    hidden = {"PYTEST_CURRENT_TEST", "CI", "GITHUB_ACTIONS"}
    inherited = {key: value for key, value in os.environ.items() if key not in hidden}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], capture_output=True, text=True,
        timeout=250, cwd=folder, env={**inherited, "PYTHONPATH": path, **environment},
    )  # fmt: skip


class Deadly(ByHeart):
    """A logger in whose hands the process is killed."""

    def add(self, step, when, numbers):
        super().add(step, when, numbers)
        if step == 12:
            os.kill(os.getpid(), signal.SIGKILL)


def test_killed_after_an_evaluation_that_no_checkpoint_has(tmp_path):
    """The evaluation is made again, and the log has it once."""
    code = """
        from pathlib import Path
        from test_logs import Deadly, trained
        trained(Path("run"), Deadly(Path()), checkpoint_seconds=1e9)
    """
    assert in_python(code, tmp_path).returncode == -signal.SIGKILL
    assert [line["step"] for line in metrics(tmp_path / "run")] == [6, 12]
    assert not list((tmp_path / "run").rglob("checkpoints/*"))
    logger = ByHeart(tmp_path)
    trained(tmp_path / "run", logger)
    assert [step for step, _, _ in logger.added] == [6, 12, 18, 24]
    assert [line["step"] for line in metrics(tmp_path / "run")] == [6, 12, 18, 24]


# Written down and not only refused: an exception in a thread of another's would not be seen.
WATCHED = """
        import sys
        from pathlib import Path

        def told(event, arguments):
            if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
                with open("contacted", "a") as file:
                    print(event, arguments, file=file)
                raise OSError("no server may be contacted")

        sys.addaudithook(told)
"""


@pytest.mark.slow
def test_mlflow_reads_it_and_nothing_is_sent(tmp_path):
    code = f"""{WATCHED}
        from test_logs import StopAfter, metrics, trained
        from cosnorm.study.runs.logs import logger_named
        out = Path()
        for stop in (StopAfter(15), None):
            notes, _ = trained(out / "run", logger_named("mlflow", out), stop=stop, watch=True)
            assert not notes.warnings, notes.warnings
        from mlflow.tracking import MlflowClient
        client = MlflowClient(tracking_uri="sqlite:///mlflow.db")
        (run,) = client.search_runs([client.get_experiment_by_name("cosnorm").experiment_id])
        assert run.info.run_name == "cosine-seed0" and run.info.status == "FINISHED", run.info
        assert run.data.params["batch_size"] == "10" and run.data.tags["status"] == "done"
        lines = metrics(out / "run")
        for name in ("test_error", "train_loss"):
            history = client.get_metric_history(run.info.run_id, name)
            assert {{m.step: m.value for m in history}} == {{e["step"]: e[name] for e in lines}}
        assert len(lines) == 4 and "result/test_error_mean" in run.data.metrics
    """
    done = in_python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"run", "mlflow.db"}


@pytest.mark.slow
def test_whoever_wants_mlflow_to_report_can_say_so(tmp_path):
    """And the test above would see it: MLflow's makers are contacted here, as far as a lookup."""
    code = f"""{WATCHED}
        import time
        from test_logs import trained
        from cosnorm.study.runs.logs import logger_named
        trained(Path("run"), logger_named("mlflow", Path()))
        while not Path("contacted").exists():  # MLflow does it in a thread, in its own time
            time.sleep(0.05)
    """
    done = in_python(code, tmp_path, MLFLOW_DISABLE_TELEMETRY="false")
    assert done.returncode == 0, done.stderr
    assert "mlflow" in (tmp_path / "contacted").read_text()


def test_evaluations_that_are_told_late_are_logged_once(tmp_path):
    """As a cluster tells them: the folder has what the watcher is yet to hear of."""
    trained(tmp_path / "run", None)
    logger, lines = ByHeart(tmp_path), metrics(tmp_path / "run")
    log = Log(Notes(), logger, RunFolder(storage_at(tmp_path / "run")))
    log.begin(config_for(), 0, 24, 10)
    for line in lines:
        log.evaluation(line)
    assert [step for step, _, _ in logger.added] == [line["step"] for line in lines]


class Broken(ByHeart):
    """A logger that fails at its first number."""

    def add(self, step, when, numbers):
        raise OSError("the disk is full")


def test_several_logs_each_by_itself(tmp_path):
    first, broken, last = ByHeart(tmp_path), Broken(tmp_path), ByHeart(tmp_path)
    notes = Notes()
    folder = RunFolder(storage_at(tmp_path / "run"))
    log = logged(notes, [first, broken, last], folder)
    outcome = run(config_for(), tmp_path / "run", dataset=vector_data(), watcher=log)
    log.end(outcome.status, outcome.summary)
    told = [[(step, numbers) for step, _, numbers in one.added] for one in (first, last)]
    assert told[0] == told[1] != []
    assert [len(logger.ended) for logger in (first, broken, last)] == [1, 0, 1]
    assert notes.ended == ["done"] and len(notes.warnings) == 1
    again = [ByHeart(tmp_path), ByHeart(tmp_path)]
    logged(Notes(), again, folder).close("done", outcome.summary)
    assert all(len(logger.ended) == 1 and logger.added for logger in again)


def test_the_same_log_twice_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="--log tensorboard is given twice: give each viewer"):
        loggers_named(["tensorboard", "mlflow", "tensorboard"], tmp_path)
    with pytest.raises(ConfigError, match="one of tensorboard, mlflow; got 'wandb': for several"):
        loggers_named(["tensorboard", "wandb"], tmp_path)
    assert loggers_named(None, tmp_path) == []


class Slow(ByHeart):
    """A logger whose package takes long to load, and each of its lines long to write."""

    def begin(self, name, config):
        time.sleep(2)
        super().begin(name, config)

    def add(self, step, when, numbers):
        time.sleep(0.5)
        super().add(step, when, numbers)


def test_what_a_log_takes_is_not_the_runs_time(tmp_path):
    logger = Slow(tmp_path)
    _, outcome = trained(tmp_path / "run", logger)
    taken = 2 + 0.5 * len(logger.added)
    begun = time.perf_counter()
    trained(tmp_path / "again", None)
    alone = time.perf_counter() - begun
    assert taken > 2.5
    assert outcome.summary["seconds"] < alone + 0.5 * taken
    assert metrics(tmp_path / "run")[-1]["examples_per_second"] > 10 / 0.5
