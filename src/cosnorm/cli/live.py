"""What moves on a terminal while a run goes: one line where it fits, else two, at any width."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress import Progress, Task, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cosnorm.cli.display import closing, percent
from cosnorm.experiments.config import Config
from cosnorm.experiments.record import finite

Cell = Text | ProgressBar

_BAR = 4  # the shortest that still says something
_FREE = 3  # columns at the end of a line, where the terminal writes ^C without breaking the line
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

    def __init__(self, name: str) -> None:
        self.name, self.console = name, Console()
        self.progress = _Display(console=self.console)
        self.rate = Rate()

    def begin(self, config: Config, step: int, total: int, batch_size: int) -> None:
        self.batch_size = batch_size
        self.rate.mark(step)
        self.task = self.progress.add_task(
            self.name, completed=step, total=total, rate=None, loss=None, error=None
        )
        self.progress.start()

    def step(self, step: int) -> None:
        rate = self.rate.now(step)
        if rate is not None:
            self.progress.update(self.task, completed=step, rate=rate * self.batch_size)

    def evaluation(self, evaluation: Mapping[str, Any]) -> None:
        told = finite(evaluation)
        loss = "NaN" if told["train_loss"] is None else f"{told['train_loss']:.4f}"
        error = percent(told["test_error"])
        self.progress.update(self.task, completed=told["step"], loss=loss, error=error)

    def warning(self, text: str) -> None:
        self.console.print(Text.assemble(("warning:", "yellow"), f" {text}"))

    def end(self, status: str, summary: Mapping[str, Any] | None) -> None:
        self.progress.stop()
        self.console.print(Text(f"{self.name}: {closing(status, summary)}"))


class _Display(Progress):
    """Rich's progress, which counts and estimates, with lines of our own.

    A run that has once needed two lines keeps them until the width is another: what flutters
    cannot be read.
    """

    _folded_at: int | None = None

    def get_renderables(self) -> Iterator[RenderableType]:
        for task in self.tasks:
            width = max(1, self.console.width - _FREE)
            yield Group(*(_table(cells, width) for cells in self._lines(task, width)))

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
