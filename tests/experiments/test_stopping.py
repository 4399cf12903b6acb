import os
import signal
import threading

import pytest

from cosnorm.data import load
from cosnorm.experiments.stopping import Interrupted, Stop, interruptible


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
