"""What is seen on a terminal, at every width."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_cases import ENVIRONMENT, PROGRAM, own_data
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from cosnorm.cli import live
from cosnorm.cli.live import LiveLine, lines
from cosnorm.cli.tables import _print_table
from cosnorm.report import Run, group_runs


def task_of(name="pearson-seed0", **fields):
    known = {"rate": 5021.4, "loss": "0.0008", "error": "1.67%"} | fields
    progress = Progress()
    progress.add_task(name, completed=70, total=100, **known)
    return progress.tasks[0]


def shown(task, width, **options):
    """Each line as the terminal gets it, and the cells of each as text."""
    found = lines(task, width, **options)
    console = Console(width=width + 20, color_system=None)
    with console.capture() as capture:
        for cells in found:
            console.print(live._table(cells, width))
    texts = [[c.plain if isinstance(c, Text) else "bar" for c in cells] for cells in found]
    return [line.rstrip() for line in capture.get().splitlines()], texts


@pytest.mark.parametrize("name", ["none-seed0", "cifar100/pearson-seed12"])
@pytest.mark.parametrize("rate", [None, 7.0, 5021.4, 1234567.0])
@pytest.mark.parametrize("width", [5, 17, 24, 37, 47, 57, 77, 117, 200])
def test_no_line_is_wider_than_the_terminal(name, rate, width):
    printed, texts = shown(task_of(name, rate=rate), width)
    assert len(printed) == len(texts) <= 2
    assert all(len(line) <= width for line in printed)
    assert all("…" not in line for line in printed[1:])


@pytest.mark.parametrize("width", [24, 37, 47, 57, 77, 117])
def test_what_matters_is_there_at_every_width(width):
    printed, _ = shown(task_of(), width)
    whole = " ".join(printed)
    for part in ("pearson-seed0", "70%", "loss 0.0008", "error 1.67%"):
        assert part in whole
    if width >= 37:  # 40 columns
        assert "5,021" in whole and "━" in whole and "--:--" in whole


def test_one_line_where_it_fits_and_two_where_it_does_not():
    task = task_of()
    left = "--:--"
    one = ["pearson-seed0", "bar", " 70%", left, "5,021 examples/s", "loss 0.0008"]
    assert shown(task, 77)[1] == [[*one, "test error 1.67%"]]
    head = ["pearson-seed0", "bar", " 70%", left]
    brief = ["5,021/s", "loss 0.0008", "test error 1.67%"]
    assert shown(task, 57)[1] == [head, ["5,021 examples/s", *brief[1:]]]
    assert shown(task, 37)[1] == [head, brief]
    assert shown(task, 34)[1] == [head, [*brief[:2], "error 1.67%"]]
    assert shown(task, 24)[1] == [["pearson-seed0", " 70%", left], ["loss 0.0008", "error 1.67%"]]
    assert shown(task, 12)[1] == [["pearso…", " 70%"], ["error 1.67%"]]


def test_before_the_first_evaluation():
    task = task_of(rate=None, loss=None, error=None)
    assert shown(task, 37)[1] == [["pearson-seed0", "bar", " 70%", "--:--"]]


def test_two_lines_stay_two_until_the_width_changes():
    display = live._Display(console=Console(width=77))
    display.add_task("cosine", total=9, rate=1.0, loss="1", error="2.0%")
    task = display.tasks[0]
    assert len(display._lines(task, 40)) == 2
    task.fields |= {"rate": None, "loss": None}
    assert len(lines(task, 40)) == 1
    assert len(display._lines(task, 40)) == 2
    assert len(display._lines(task, 77)) == 1


def on_a_terminal(columns, *arguments, term="xterm"):
    """All that the program writes to a terminal of so many columns, and its exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {k: v for k, v in ENVIRONMENT.items() if k not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [*PROGRAM, *map(str, arguments)],
        env={**environment, "TERM": term},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    told = b""
    while part := _read(ours):
        told += part
    os.close(ours)
    return told.decode(), process.wait(timeout=60)


def _read(descriptor):
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux says so when the last writer has gone
        return b""


def without_codes(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.parametrize("columns", [40, 120])
def test_a_run_on_a_terminal(tmp_path, columns):
    told, code = on_a_terminal(
        *(columns, "train", "--dataset", own_data(tmp_path / "own.npz"), "--method", "cosine"),
        *("--epochs", 3, "--width", 16, "--device", "cpu", "--out", tmp_path / "out"),
    )
    assert code == 0
    seen = [line.rstrip() for line in re.split(r"[\r\n]+", without_codes(told))]
    assert max(map(len, seen)) <= columns
    assert any(re.search(r"cosine-seed0 ━+ 100% ", line) for line in seen)
    assert any(re.search(r"loss \d\.\d{4} test error \d+\.\d\d%$", line) for line in seen)
    assert "cosine-seed0: done, test error" in " ".join(seen)


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(tmp_path):
    told, code = on_a_terminal(
        *(80, "train", "--dataset", own_data(tmp_path / "own.npz"), "--method", "cosine"),
        *("--epochs", 1, "--width", 16, "--device", "cpu", "--out", tmp_path / "out"),
        term="dumb",
    )
    assert code == 0
    assert "cosine-seed0: begins, 2 steps on cpu" in told
    assert "\x1b" not in told


def test_brackets_in_a_warning_are_no_markup(capsys):
    line = LiveLine("cosine-seed0")
    line.warning("/data/[red]/[/x] is damaged")
    assert capsys.readouterr().out == "warning: /data/[red]/[/x] is damaged\n"


def run_of(method, seed, error):
    config = {"dataset": "/own/[b]data.npz", "method": method, "seed": seed, "epochs": 2}
    summary = {"diverged": error is None, "test_error_mean": error}
    return Run(Path(f"{method}-{seed}"), f"{method}-{seed}", config, summary=summary)


def report_of(**errors):
    """What the table is made of: the error of each seed of each method, None where it diverged."""
    runs = [run_of(name, i, error) for name in errors for i, error in enumerate(errors[name])]
    return SimpleNamespace(sections=group_runs(runs, []))


@pytest.mark.parametrize("width", [28, 40, 50, 60, 100])
def test_the_table_of_a_comparison(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    _print_table(report_of(pearson=[3.34, 3.9], batch=[3.34, 3.9]))
    told = capsys.readouterr().out
    assert all(len(line) <= width for line in told.splitlines())
    assert re.search(r"pearson .*3\.62% ± 0\.40 .*2", told)
    assert ("[b]data.npz" in told) == (width >= 50)
    assert ("┏" in told) == (width >= 50)


def test_the_table_tells_of_divergence_at_any_width(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    _print_table(report_of(pearson=[3.34, 3.9, None], batch=[None, None]))
    told = capsys.readouterr().out
    assert re.search(r"pearson +3\.62% ± 0\.40 +2 \+ 1 diverged", told)
    assert re.search(r"batch +diverged +0 \+ 2 diverged", told)


def test_help_does_without_the_live_display():
    code = "import sys, cosnorm.cli; sys.exit('rich.progress' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT).returncode == 0
