"""What is seen on a terminal, at every width."""

import fcntl
import io
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_cases import ENVIRONMENT, PROGRAM, own_data
from rich.console import Console
from rich.progress import Progress
from rich.text import Text
from screen import seen as seen_on

from cosnorm.study.cli import live
from cosnorm.study.cli.live import LiveLine, line_of_all, lines
from cosnorm.study.cli.outlook import Outlook, Place, time_text
from cosnorm.study.cli.showing import ShownHandler
from cosnorm.study.cli.tables import print_tables
from cosnorm.study.report import Run, group_runs
from cosnorm.study.runs.config import Config


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
    display = live.Display(console=Console(width=77))
    display.add_task("cosine", total=9, rate=1.0, loss="1", error="2.0%")
    task = display.tasks[0]
    assert len(display._lines(task, 40)) == 2
    task.fields |= {"rate": None, "loss": None}
    assert len(lines(task, 40)) == 1
    assert len(display._lines(task, 40)) == 2
    assert len(display._lines(task, 77)) == 1


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def ran(outlook, clock, number, seconds, *, begun=0, total=100, made=None):
    """The run of this number, from step `begun` to step `made`, in so many seconds."""
    outlook.begin(number, begun, total)
    clock.now += seconds
    outlook.step(number, total if made is None else made)


def test_the_time_left_counts_each_method_at_its_own_speed():
    clock = Clock()
    outlook = Outlook(["pearson", "pearson", "batch", "batch"], clock)
    assert outlook.seconds_left() is None
    outlook.begin(0, 0, 100)
    assert outlook.seconds_left() is None, "no step has been made"
    clock.now += 5
    outlook.step(0, 25)
    assert outlook.seconds_left() == pytest.approx(15 + 3 * 20)
    clock.now += 15
    outlook.step(0, 100)
    outlook.end(0)
    assert outlook.seconds_left() == pytest.approx(60)
    ran(outlook, clock, 1, 20)
    outlook.end(1)
    ran(outlook, clock, 2, 40)
    outlook.end(2)
    assert outlook.seconds_left() == pytest.approx(40), "batch takes 40 s, whatever pearson takes"
    ran(outlook, clock, 3, 10, made=50)
    assert outlook.seconds_left() == pytest.approx(10), "the present run goes by its own speed"


def test_runs_that_are_over_or_go_on_take_only_what_is_left_of_them():
    clock = Clock()
    outlook = Outlook(["pearson", "batch", "batch"], clock)
    outlook.end(0)
    ran(outlook, clock, 1, 10, begun=80)
    assert outlook.seconds_left() == pytest.approx(50), "10 s for a fifth of a run"


def test_runs_that_go_at_once_share_the_time_and_a_run_may_begin_twice():
    clock = Clock()
    outlook = Outlook(["batch"] * 6, clock)
    outlook.begin(0, 0, 100)
    outlook.begin(1, 0, 100)
    clock.now += 10
    outlook.step(0, 50)
    outlook.step(1, 50)
    assert outlook.told == ("0 of 6 done, 2 going", "0/6")
    assert outlook.made == 1
    assert outlook.seconds_left() == pytest.approx((10 + 10 + 4 * 20) / 2)
    outlook.begin(1, 20, 100)
    assert outlook.made == pytest.approx(0.7)
    outlook.end(0)
    assert outlook.told == ("run 2 of 6", "2/6")


def test_many_runs_at_once_leave_room_for_the_line_of_all(monkeypatch):
    monkeypatch.setenv("LINES", "12")
    display = live.Display(Outlook(["batch"] * 40), console=Console(width=120, file=io.StringIO()))
    watchers = [LiveLine(display, f"batch-seed{k}", Place(display.outlook, k)) for k in range(40)]
    config = SimpleNamespace()
    for watcher in watchers[:30]:
        watcher.begin(config, 0, 100, 10)
    watchers[3].begin(config, 0, 100, 10)
    display.stop()
    with display.console.capture() as capture:
        display.console.print(display.get_renderable())
    told = capture.get().splitlines()
    assert len(told) <= 12
    assert told[0].startswith("batch-seed0 ") and told[-2].strip() == f"and {30 - 9} more"
    assert told[-1].startswith("0 of 40 done, 30 going ")
    for watcher in watchers[:30]:
        watcher.end("done", None)
    assert not display.tasks


@pytest.mark.parametrize(
    "seconds, text", [(None, "-:--"), (7.4, "0:07"), (750, "12:30"), (11100, "3:05:00")]
)
def test_times_as_text(seconds, text):
    assert time_text(seconds) == text


@pytest.mark.parametrize("width", [5, 10, 17, 24, 37, 77, 117])
def test_the_line_of_all_runs_fits(width):
    clock = Clock()
    outlook = Outlook(["batch"] * 25, clock)
    outlook.end(0)
    ran(outlook, clock, 1, 30, made=50)
    cells = line_of_all(outlook, width)
    texts = [cell.plain for cell in cells if isinstance(cell, Text)]
    assert len(" ".join(texts)) <= width
    assert "23:30" in texts[-1]
    if width >= 24:
        assert texts[0] == "run 2 of 25"
    bars = [cell for cell in cells if not isinstance(cell, Text)]
    assert [bar.completed for bar in bars] == ([pytest.approx(1.5)] if width >= 37 else [])


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


def test_a_comparison_on_a_terminal(tmp_path):
    told, code = on_a_terminal(
        *(80, "compare", "--dataset", own_data(tmp_path / "own.npz"), "--methods", "cosine,none"),
        *("--epochs", 3, "--width", 16, "--device", "cpu", "--out", tmp_path / "out"),
    )
    assert code == 0
    seen = [line.rstrip() for line in re.split(r"[\r\n]+", without_codes(told))]
    assert seen[0] == "2 runs: 2 methods, 1 seed each"
    moving = [line for line in seen if line.endswith(" left for all")]
    assert moving and max(map(len, moving)) <= 80
    assert moving[0].startswith("run 1 of 2 ")
    assert re.fullmatch(r"run 2 of 2 ━+ 0:00 left for all", moving[-1])


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_every_run_leaves_its_result_and_its_warnings_and_nothing_else(tmp_path, columns):
    data = tmp_path / "own.csv"
    rows = [f"{i % 3 + i / 1000},{i % 7},{'abc'[i % 3]}" for i in range(60)]
    data.write_text("\n".join(["a,b,label", *rows, rows[0]]) + "\n")
    told, code = on_a_terminal(
        *(columns, "compare", "--dataset", data, "--methods", "pearson,batch", "--seeds", 3),
        *("--epochs", 12, "--width", 16, "--device", "cpu", "--out", tmp_path / "out"),
    )
    assert code == 0
    whole = "".join(line.ljust(columns) for line in seen_on(told, columns))
    whole = re.sub(" +", " ", whole)
    names = [f"{method}-seed{seed}" for method in ("pearson", "batch") for seed in range(3)]
    for name in names:
        assert whole.count(f"{name}: done, test error") == 1, name
    assert whole.count("warning:") == told.count("warning:") >= len(names)
    assert "━" not in whole.split("batch-seed2: done")[0], "a dead bar"
    assert "left for all" not in whole


def test_nobody_else_draws_and_news_are_drawn():
    """A thread that draws between two lines that are printed leaves parts of a bar."""
    told, threads = io.StringIO(), threading.active_count()
    console = Console(width=77, file=told, force_terminal=True, color_system=None)
    line = LiveLine(live.Display(console=console), "cosine-seed0")
    config = Config(dataset="mnist", method="cosine", lr=1.0, steps=100)
    line.begin(config, 0, 100, 8)
    try:
        assert threading.active_count() == threads
        assert "  0% " in told.getvalue()
        line.progress._drawn -= 1
        line.evaluation({"step": 60, "train_loss": 0.5, "test_error": 12.0})
        assert " 60% " in told.getvalue() and "test error 12.00%" in told.getvalue()
        line.evaluation({"step": 61, "train_loss": 0.5, "test_error": 12.0})
        assert " 61% " not in told.getvalue(), "too soon to be read"
        line.progress._drawn -= 1
        line.rate._time -= 1
        line.step(70)
        assert " 70% " in told.getvalue()
    finally:
        line.progress.stop()


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
    line = LiveLine(live.Display(), "cosine-seed0")
    line.warning("/data/[red]/[/x] is damaged")
    assert capsys.readouterr().out == "warning: /data/[red]/[/x] is damaged\n"


def run_of(method, seed, error, dataset="/own/[b]data.npz", epochs=2):
    config = {"dataset": dataset, "method": method, "seed": seed, "epochs": epochs}
    summary = {"diverged": error is None, "test_error_mean": error, "data": {"test": 10_000}}
    return Run(Path(f"{method}-{seed}"), f"{method}-{seed}", config, summary=summary)


def report_of(place=(), **errors):
    """What the table is made of: the error of each seed of each method, None where it diverged."""
    runs = [
        run_of(name, i, error, *place) for name in errors for i, error in enumerate(errors[name])
    ]
    return SimpleNamespace(sections=group_runs(runs, []))


@pytest.mark.parametrize("width", [28, 40, 50, 60, 100])
def test_the_table_of_a_comparison(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    print_tables(report_of(pearson=[3.34, 3.9], batch=[3.34, 3.9]))
    told = capsys.readouterr().out
    assert all(len(line) <= width for line in told.splitlines())
    assert re.search(r"pearson .*3\.62% ± 0\.40 .*2", told)
    assert ("[b]data.npz" in told) == (width >= 50)
    assert ("┏" in told) == (width >= 50)


def test_the_table_tells_of_divergence_at_any_width(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    print_tables(report_of(pearson=[3.34, 3.9, None], batch=[None, None]))
    told = capsys.readouterr().out
    assert re.search(r"pearson +3\.62% ± 0\.40 +2 \+ 1 diverged", told)
    assert re.search(r"batch +diverged +0 \+ 2 diverged", told)


def test_verdicts_on_every_pair(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    print_tables(report_of(pearson=[3.3, 3.9], cosine=[4.3, 4.92], batch=[3.31, 3.91]))
    told = capsys.readouterr().out
    assert re.search(r"pearson − cosine .*−1\.01 \(−1\.14 to −0\.88\).* 2 .* better", told)
    assert re.search(r"pearson − batch .*−0\.01 \(−0\.05 to.* equivalent within 0\.19", told)
    assert re.search(r"cosine − batch .* worse", told)


def test_of_many_settings_the_terminal_says_which_are_compared(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    runs = [
        Run(f"{m}{rate}{seed}", m, {**run_of(m, seed, 3.0).config, "lr": rate}, summary=summary)
        for m in ("pearson", "batch")
        for rate in range(1, 7)
        for seed, error in enumerate((3.0 + rate, 3.3 + rate))
        for summary in [run_of(m, seed, error).summary]
    ]
    print_tables(SimpleNamespace(sections=group_runs(runs, [])))
    told = capsys.readouterr().out
    assert "Compared is one setting of each method: pearson (lr=1), batch (lr=1). 10 other" in told


def test_the_papers_value_the_interval_and_the_verdict_beside_each_cell(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    print_tables(report_of(("mnist", 200), pearson=[1.44, 1.45, 1.46], weight=[2.1, 2.11, 2.12]))
    told = capsys.readouterr().out
    assert re.search(
        r"pearson .*1\.45% .*1\.39% .*\+0\.06 \(\+0\.01 to \+0\.11\).* agrees within 0\.23", told
    )
    assert re.search(r"weight .*1\.65% .*\+0\.46 \(\+0\.41 to \+0\.51\).* higher", told)
    assert re.search(r"pearson − weight .* better .*−0\.26 .* as in the paper", told)


def test_one_seed_says_that_it_gives_no_verdict(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    print_tables(report_of(("mnist", 200), pearson=[1.44], cosine=[1.5]))
    told = capsys.readouterr().out
    assert re.search(r"pearson .*\+0\.05 .* 1 seed: no verdict", told)
    assert "1 seed: no verdict on any pair of methods" in told


def test_help_does_without_the_live_display():
    code = "import sys, cosnorm.study.cli; sys.exit('rich.progress' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT).returncode == 0


def test_messages_of_the_library_go_to_the_standard_error_of_the_moment(monkeypatch):
    handler = ShownHandler()
    moment = io.StringIO()
    monkeypatch.setattr("sys.stderr", moment)  # as a display does while it moves
    handler.handle(logging.makeLogRecord({"msg": "the lease of %s is lost", "args": ("a\x1b",)}))
    assert moment.getvalue() == "cosnorm: warning: the lease of a\\x1b is lost\n"
