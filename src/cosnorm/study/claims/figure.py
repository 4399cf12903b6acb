"""A study's figure: panels with a line for each method, the mean over seeds in a band of all; or
with a point for each seed where there is one number of a run."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cosnorm.methods import Look
from cosnorm.study.report.figures import new_figure, print_style, saved
from cosnorm.study.report.style import looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


@dataclass(frozen=True)
class Panel:
    """One drawing: for each method and x, the value of every seed.

    log: the axes that are logarithmic, "x", "y" or "xy". Words on the x axis are drawn in order.
    """

    title: str
    x: str
    y: str
    values: Mapping[str, Mapping[Any, Sequence[float]]]
    log: str = ""


def panel_of(
    rows: Sequence[Mapping[str, Any]], title: str, key: str, value: str, words: tuple[str, str],
    log: str = "",
) -> Panel:  # fmt: skip
    """A panel of `value` against `key`; where no row has a number, a line has a gap."""
    values: dict[str, dict[Any, list[float]]] = {}
    for row in rows:
        here = values.setdefault(row["method"], {}).setdefault(row[key], [])
        if row[value] is not None:
            here.append(row[value])
    return Panel(title, *words, values, log)


def figure_files(panels: Sequence[Panel]) -> dict[str, bytes]:
    """PNG and PDF by suffix."""
    with print_style():
        columns = min(2, len(panels))
        lines = -(-len(panels) // columns)
        figure, axes = new_figure(columns, lines, 3.6 * columns, 2.8 * lines + 0.4)
        methods = list(dict.fromkeys(m for panel in panels for m in panel.values))
        styles = looks(methods)  # of all panels, so that no two lines of the legend look alike
        for ax, panel in zip(axes.flat, panels, strict=True):
            _draw(ax, panel, styles)
        shown = _by_label(axes.flat)
        figure.legend(
            [shown[m] for m in methods], methods, loc="outside lower center", frameon=False,
            ncols=3,
        )  # fmt: skip
        return saved("", figure)


def _by_label(axes: "Iterable[Axes]") -> "dict[Any, Line2D]":
    """What stands for each method in the legend: its line where it has one, else its points."""
    drawn = [line for ax in axes for line in ax.get_lines()]
    drawn.sort(key=lambda line: line.get_linestyle() != "None")
    return {line.get_label(): line for line in drawn}


def _draw(ax: "Axes", panel: Panel, styles: Mapping[str, Look]) -> None:
    for method, by_x in panel.values.items():
        xs = list(by_x) if _has_words(panel) else sorted(by_x)
        known = {x: by_x[x] or [math.nan] for x in xs}
        means = [statistics.fmean(known[x]) for x in xs]
        look = styles[method]
        if len(xs) == 1:  # no line: a point for each seed
            every = list(by_x[xs[0]])
            ax.plot(xs * len(every), every, "o", color=look.light, markersize=4, label=method)
            continue
        style: Any = (0, look.dashes) if look.dashes else "-"
        ax.plot(xs, means, color=look.light, linestyle=style, linewidth=1.2, label=method)
        low, high = [min(known[x]) for x in xs], [max(known[x]) for x in xs]
        ax.fill_between(xs, low, high, color=look.light, alpha=0.15, linewidth=0)
    if "x" in panel.log and not _has_words(panel):
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
    from matplotlib.ticker import MaxNLocator

    positive = [v for by_x in panel.values.values() for v in _all(by_x) if v > 0]
    if "y" in panel.log and positive:
        ax.set_yscale("log")
        if max(positive) < 10 * min(positive):  # powers of ten would be one label, or none
            ax.yaxis.set_major_locator(MaxNLocator(5))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter("")
    ax.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)


def _has_words(panel: Panel) -> bool:
    return any(isinstance(x, str) for by_x in panel.values.values() for x in by_x)


def _all(by_x: Mapping[Any, Sequence[float]]) -> list[float]:
    return [value for values in by_x.values() for value in values]
