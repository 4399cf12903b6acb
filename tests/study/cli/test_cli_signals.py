"""Signals at any moment from the first on: the code is the signal's, and the folder can go on.

COSNORM_SIGNALS says how many are spread over the first three seconds; the more, the longer. The
seconds count from the first line of ours that can run: before it Python itself starts, which takes
some hundredths of a second and may answer SIGINT with 1, whatever the program.
"""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from cli_cases import own_data, started, wait_for
from experiment_cases import Notes, StopAfter

from cosnorm.study.runs.record import RunFolder
from cosnorm.study.runs.storage import LocalStorage
from cosnorm.study.train.run import run

COUNT = int(os.environ.get("COSNORM_SIGNALS", "10"))
SPAN_S = 3.0
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return own_data(tmp_path_factory.mktemp("data") / "own.npz")


def shell_code(code):
    """What a shell shows of a process that a signal ended."""
    return 128 - code if code < 0 else code


def hears(process):
    """Whether the program has begun: Python itself does not catch SIGTERM."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return True  # it has ended
    caught = re.search(r"SigCgt:\s*([0-9a-f]+)", status)
    return caught is None or bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def assert_resumable(out):
    """Either nothing is there, or a run that goes on."""
    config = RunFolder(LocalStorage(out)).config()
    if config is None:
        assert not out.exists() or [path.name for path in out.iterdir()] in ([], [".lock"])
        return
    notes = Notes()
    assert run(config, out, watcher=notes, stop=StopAfter(2)).status == "stopped"
    assert notes.warnings == []


@pytest.mark.timeout(120 + 15 * COUNT)
@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_signal_at_any_moment_counts(data, tmp_path, number):
    arguments = (
        *("train", "--dataset", data, "--method", "cosine", "--epochs", 100_000, "--width", 32),
        *("--batch-size", 20, "--device", "cpu", "--out"),
    )
    half = COUNT // 2
    delays = [SPAN_S * (place + (number == signal.SIGTERM) / 2) / half for place in range(half)]
    wrong = []
    for place, delay in enumerate(delays):
        out = tmp_path / str(place)
        with started(*arguments, out) as process:
            wait_for(lambda process=process: hears(process))
            time.sleep(delay)
            process.send_signal(number)
            _, told = process.communicate(timeout=60)
        if shell_code(process.returncode) != CODES[number]:
            wrong.append((round(delay, 3), process.returncode, told[-300:]))
        assert_resumable(out)
    assert wrong == []
