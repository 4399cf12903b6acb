"""What moves on a terminal while runs go: one line each where it fits, else two, at any width.

A comparison has one line more: how many runs it has, and the time left for all.
"""

import time
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from rich.console import Group, RenderableType
from rich.progress import Progress, Task, TaskID, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cosnorm.study.cli.display import closing, percent
from cosnorm.study.cli.outlook import Outlook, Place, time_text
from cosnorm.study.cli.showing import shown
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.record import finite

Cell = Text | ProgressBar

_BAR = 4  # the shortest that still says something
_OTHERS = 3  # lines of a terminal that are not for runs
_FREE = 3  # columns at the end of a line, where the terminal writes ^C without breaking the line
_PAUSE = 0.1  # seconds between two pictures
_TIME_LEFT = TimeRemainingColumn(compact=True)
# What is known of the training, shorter and shorter; the test error goes last.
_RESULTS = (
    ("{rate:,.0f} examples/s", "loss {loss}", "test error {error}"),
    ("{rate:,.0f}/s", "loss {loss}", "test error {error}"),
    ("{rate:,.0f}/s", "loss {loss}", "error {error}"),
    ("loss {loss}", "error {error}"),
    ("error {error}",),
    ("{error}",),
)


class LiveLine:
    """Progress, rate, time left, train loss and test error, as they come."""

    def __init__(self, progress: "Display", name: str, place: Place | None = None) -> None:
        self.name, self.place, self.progress = name, place, progress
        self.console, self.rate = progress.console, Rate()
        self.task: TaskID | None = None

    def begin(self, config: Config, step: int, total: int, batch_size: int) -> None:
        self.batch_size = batch_size
        self.rate.mark(step)
        if self.place is not None:
            self.place.begin(step, total)
        self._leave()  # where it was before, if it was lost there
        self.task = self.progress.add_task(
            self.name, completed=step, total=total, rate=None, loss=None, error=None
        )
        self.progress.start()

    def step(self, step: int) -> None:
        if self.place is not None:
            self.place.step(step)
        rate = self.rate.now(step)
        if rate is not None and self.task is not None:
            self.progress.update(self.task, completed=step, rate=rate * self.batch_size)
            self.progress.refresh_if_due()

    def evaluation(self, evaluation: Mapping[str, Any]) -> None:
        assert self.task is not None
        told = finite(evaluation)
        loss = "NaN" if told["train_loss"] is None else f"{told['train_loss']:.4f}"
        error = percent(told["test_error"])
        self.progress.update(self.task, completed=told["step"], loss=loss, error=error)
        self.progress.refresh_if_due()

    def warning(self, text: str) -> None:
        self.console.print(Text.assemble(("warning:", "yellow"), f" {shown(text)}"))

    def end(self, status: str, summary: Mapping[str, Any] | None) -> None:
        self.progress.refresh()
        self._leave()
        if self.place is not None:
            self.place.end()
        # Above what moves, which goes on until all runs are over: a display that is stopped and
        # started again takes the lines since for its own, and erases them.
        self.console.print(Text(f"{self.name}: {closing(status, summary)}"))
        self.progress.refresh()

    def _leave(self) -> None:
        if self.task is not None:
            self.progress.remove_task(self.task)
            self.task = None


class Display(Progress):
    """Rich's progress, which counts and estimates, with lines of our own.

    It leaves nothing behind: what stays of a run are the lines printed above it.

    It is drawn by whoever has news, not by Rich's thread: a line printed while that thread draws
    takes the height of one picture and erases another, so parts of a bar stay.

    Runs for which the terminal is not high enough are counted in a line.

    A run that has once needed two lines keeps them until the width is another: what flutters
    cannot be read.
    """

    _folded_at: int | None = None

    def __init__(self, outlook: Outlook | None = None, **options: Any) -> None:
        self.outlook, self._drawn = outlook, 0.0
        super().__init__(transient=True, auto_refresh=False, **options)

    def refresh_if_due(self) -> None:
        now = time.monotonic()
        if now - self._drawn >= _PAUSE:
            self._drawn = now
            self.refresh()

    def get_renderables(self) -> Iterator[RenderableType]:
        tasks = self.tasks
        if not tasks:  # as while Rich is being made
            return
        width = max(1, self.console.width - _FREE)
        shown = [self._lines(task, width) for task in tasks]
        room = self.console.height - _OTHERS
        fitting = max(1, sum(height <= room for height in accumulate(map(len, shown))))
        found = [cells for each in shown[:fitting] for cells in each]
        if len(tasks) > fitting:
            found.append([Text(f"and {len(tasks) - fitting} more")])
        if self.outlook is not None:
            found.append(line_of_all(self.outlook, width))
        yield Group(*(_table(cells, width) for cells in found))

    def _lines(self, task: Task, width: int) -> list[list[Cell]]:
        shown = lines(task, width, fold=self._folded_at == width)
        if len(shown) > 1:
            self._folded_at = width
        return shown


def lines(task: Task, width: int, *, fold: bool = False) -> list[list[Cell]]:
    """The cells of one line, or of two where one is too narrow for everything."""
    name, bar = Text(task.description), ProgressBar(total=task.total, completed=task.completed)
    done = Text(f"{int(task.percentage):3d}%", "progress.percentage")
    left = _TIME_LEFT.render(task)
    results = [_filled(form, task.fields) for form in _RESULTS]
    one = [name, bar, done, left, *results[0]]
    if not fold and _length(one) <= width:
        return [one]
    cropped = name.copy()
    cropped.truncate(max(1, width - 1 - done.cell_len), overflow="ellipsis")
    heads: list[list[Cell]] = [
        *([name, bar, done, left], [name, done, left]),
        *([name, done], [cropped, done], [done]),
    ]
    return [_first_that_fits(width, heads), _first_that_fits(width, results)]


def line_of_all(outlook: Outlook, width: int) -> list[Cell]:
    """Which runs of how many are going, and the time left for all of them."""
    bar = ProgressBar(total=outlook.count, completed=outlook.made)
    number, short = map(Text, outlook.told)
    left = Text(time_text(outlook.seconds_left()), "progress.remaining")
    for_all = Text.assemble(left, " left for all")
    choices: list[list[Cell]] = [
        *([number, bar, for_all], [number, for_all], [number, left]),
        *([short, left], [left]),
    ]
    return _first_that_fits(width, choices)


def _filled(form: tuple[str, ...], fields: Mapping[str, Any]) -> list[Cell]:
    """The parts of a form of which the value is known."""
    known = {key: value for key, value in fields.items() if value is not None}
    return [Text(part.format(**known)) for part in form if any(f"{{{k}" in part for k in known)]


def _first_that_fits(width: int, choices: list[list[Cell]]) -> list[Cell]:
    fitting = (cells for cells in choices if _length(cells) <= width)
    return next(fitting, choices[-1])


def _length(cells: list[Cell]) -> int:
    lengths = [cell.cell_len if isinstance(cell, Text) else _BAR for cell in cells]
    return sum(lengths) + max(0, len(cells) - 1)


def _table(cells: list[Cell], width: int) -> Table:
    """A line that stretches its bar to the width there is."""
    bars = [isinstance(cell, ProgressBar) for cell in cells]
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    table.width = width if any(bars) else None
    for is_bar in bars:
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1 if is_bar else None)
    table.add_row(*cells)
    return table


class Rate:
    """Steps a second, asked at every step and answered four times a second."""

    def __init__(self) -> None:
        self.mark(0)

    def mark(self, step: int) -> None:
        self._step, self._time = step, time.monotonic()

    def now(self, step: int) -> float | None:
        elapsed = time.monotonic() - self._time
        if elapsed < 0.25:
            return None
        rate = (step - self._step) / elapsed
        self.mark(step)
        return rate
