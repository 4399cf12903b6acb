import os
import signal
import subprocess
import sys
import threading

import pytest
from experiment_cases import config_for, vector_data

from cosnorm.study.data import load
from cosnorm.study.report import group_runs, load_runs
from cosnorm.study.report.tables import cells, notes
from cosnorm.study.train.run import run
from cosnorm.study.train.stopping import GiveUp, Interrupted, Stop, interruptible


def test_a_first_signal_is_a_reason_and_a_second_ends():
    stop = Stop()
    with stop.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reason == "SIGTERM"
        with pytest.raises(Interrupted, match="interrupted by SIGINT"):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with interruptible(), Stop().listening():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_other_threads_listen_to_nothing_and_leave_handlers_alone():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def listen():
        with interruptible(), Stop().listening():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert seen == [before]


def test_time_counts_from_the_first_listening():
    stop = Stop(max_minutes=0)
    assert stop.reason is None
    with stop.listening():
        assert stop.reason == "max_minutes"


def test_a_signal_while_a_file_is_read_is_no_damage_of_the_file(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image", reason="image folders need pillow")
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        for i in range(5):
            image.new("RGB", (4, 4)).save(tmp_path / name / f"{i}.png")

    def interrupted(path):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(image, "open", interrupted)
    with interruptible(), pytest.raises(Interrupted, match="interrupted by SIGINT"):
        load(str(tmp_path))


def test_a_run_that_learns_nothing_is_given_up(tmp_path):
    config = config_for("none", lr=1e-9, epochs=40)
    give_up = GiveUp(step=20, error=10.0)
    outcome = run(config, tmp_path / "run", dataset=vector_data(), give_up=give_up)
    assert (outcome.status, outcome.summary["steps"]) == ("untrained", 24)  # epochs have 6 steps
    assert outcome.summary["untrained"] and not outcome.summary["diverged"]
    assert outcome.summary["test_error_mean"] is None
    assert outcome.summary["final_test_error"] > 10
    again = run(config, tmp_path / "run", dataset=vector_data(), give_up=give_up)
    assert (again.status, again.summary) == ("untrained", outcome.summary)
    (section,) = group_runs(load_runs(tmp_path)[0], [])
    assert cells(section.groups[0], section)[:5] == [
        "none",
        "not trained",
        "—",
        "—",
        "0 + 1 not trained",
    ]
    assert "none: seed 0 not trained, given up at epoch 4." in notes(section)


def test_a_run_that_learns_is_not_given_up(tmp_path):
    config = config_for("cosine", lr=10.0, epochs=30)
    give_up = GiveUp(step=150, error=50.0)
    outcome = run(config, tmp_path / "run", dataset=vector_data(), give_up=give_up)
    assert (outcome.status, outcome.summary["untrained"]) == ("done", False)


WAITS = """
import os, signal, sys
from cosnorm.study.train.stopping import Interrupted, interruptible
sys.path.insert(0, sys.argv[1])
try:
    with interruptible():
        import heavy
        print("imported", heavy.whole, flush=True)
        signal.pause()
except Interrupted as error:
    print(error, error.code, flush=True)
"""
HEAVY = """
import os, signal, time
class Closed:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        time.sleep(0.05)
try:
    os.kill(os.getpid(), signal.{name})
    time.sleep(0.1)
except BaseException:
    raise AttributeError("half a package")
Closed()
whole = True
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_in_an_import_waits_for_its_end_and_counts(tmp_path, name, code):
    (tmp_path / "heavy.py").write_text(HEAVY.format(name=name))
    arguments = [sys.executable, "-c", WAITS, str(tmp_path)]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=30)
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == ["imported True", f"interrupted by {name} {code}"]


def test_a_signal_that_waits_at_the_end_counts(tmp_path):
    (tmp_path / "heavy.py").write_text(HEAVY.format(name="SIGINT"))
    code = WAITS.replace("signal.pause()", "")
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True)
    assert ended.stdout.splitlines()[-1] == b"interrupted by SIGINT 130"
