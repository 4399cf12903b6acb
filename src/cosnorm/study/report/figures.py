"""Figures for print: test error against epoch or step, a curve per method, a band over seeds."""

import io
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cosnorm.study.report.curves import (
    Curve,
    for_scale,
    group_curve,
    levels,
    off_scale,
    readable_range,
)
from cosnorm.study.report.groups import DatasetGroups, Group, brief
from cosnorm.study.report.runs import ReportError
from cosnorm.study.report.style import Look, looks, variant_look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RC: Any = {
    "font.family": "serif",
    "font.serif": ["STIXGeneral", "Times New Roman", "DejaVu Serif"],
    "mathtext.fontset": "stix",
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "text.parse_math": False,
}

# Inches: the comparison without its legend, a panel of the settings, a line of the legend.
_WIDTH, _HEIGHT, _PANEL, _LINE = 5.2, 3.2, 3.6, 0.17
_LETTER = 0.056  # inches, about, of 8-point type


def figure_files(section: DatasetGroups) -> dict[str, bytes]:
    """PNG and PDF by suffix: the comparison, and, where a method was run with several settings,
    a panel per method that compares them."""
    with print_style():
        files = saved("", _comparison(section))
        several = [m for m, n in Counter(g.method for g in section.groups).items() if n > 1]
        if several:
            files |= saved("-settings", _settings(section, several))
    return files


@contextmanager
def print_style() -> Iterator[None]:
    """Draw as print wants it."""
    try:
        import matplotlib
    except ImportError as error:
        raise ReportError(f"figures need matplotlib ({error}): install cosnorm[report]") from error

    # A name in a script that the font lacks is drawn as boxes; that is no reason to complain.
    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def saved(suffix: str, figure: "Figure") -> dict[str, bytes]:
    """PNG and PDF by suffix and kind."""
    files = {}
    # Without a date the same runs give the same file.
    for kind, metadata in (("png", None), ("pdf", {"CreationDate": None})):
        buffer = io.BytesIO()
        figure.savefig(
            buffer, format=kind, dpi=300, bbox_inches="tight", pad_inches=0.04, metadata=metadata
        )
        files[f"{suffix}.{kind}"] = buffer.getvalue()
    return files


def new_figure(columns: int, rows: int, width: float, height: float) -> tuple["Figure", Any]:
    """A figure of its own, drawn by Agg, without pyplot's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _comparison(section: DatasetGroups) -> "Figure":
    figure, axes = new_figure(1, 1, _WIDTH, _HEIGHT)
    styles = looks([group.method for group in section.groups])
    drawn = [styles[group.method] for group in section.main]
    lines = _draw(axes[0][0], section, section.main, drawn, section.label, _WIDTH)
    figure.set_figheight(_HEIGHT + _LINE * lines)
    return figure


def _settings(section: DatasetGroups, methods: Sequence[str]) -> "Figure":
    columns = min(2, len(methods))
    rows = -(-len(methods) // columns)
    figure, axes = new_figure(columns, rows, _PANEL * columns, 3.0 * rows)
    styles = looks([group.method for group in section.groups])
    for place, ax in enumerate(axes.flat):
        if place >= len(methods):
            ax.remove()
            continue
        groups = [group for group in section.groups if group.method == methods[place]]
        drawn = [variant_look(styles[methods[place]], i) for i in range(len(groups))]
        title = f"{section.label}: {methods[place]}"
        _draw(ax, section, groups, drawn, title, _PANEL, [group.variant for group in groups])
    return figure


def _draw(
    ax: "Axes",
    section: DatasetGroups,
    groups: Sequence[Group],
    styles: Sequence[Look],
    title: str,
    width: float,
    labels: Sequence[str] | None = None,
) -> int:
    """Curves, axes and legend; returns the lines that the legend takes."""
    curves = [group_curve(group, "test_error", section.unit) for group in groups]
    labels = labels or [group.label for group in groups]
    most = int(width / _LETTER) - 20  # with room for the handle, and for what follows a label
    scaled = for_scale(groups, curves)
    ax.set_ylim(*readable_range(scaled))
    rows = zip(groups, curves, styles, labels, off_scale(scaled), levels(scaled), strict=True)
    for group, curve, look, label, off, level in rows:
        # A leading underscore would keep the label out of the legend.
        label = _fitting(label, most)
        name = f" {label}" if label.startswith("_") else label
        text = f"{name}, off scale at {level:.1f} %" if off else name
        _draw_curve(ax, curve, look, text + _standing(group), group.all_diverged)
    ax.set_xlabel(section.unit)
    ax.set_ylabel("test error (%)")
    longest = max((curve.x[-1] for curve in curves if curve.x), default=1)
    ax.set_xlim(0, longest or 1)
    ax.grid(axis="y", color="#d9d9d9", linewidth=0.5)
    ax.set_axisbelow(True)
    if longest >= 1:
        ax.locator_params(axis="x", integer=True, steps=[1, 2, 5, 10])
    if longest >= 10_000:
        ax.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k" if x else "0")
    return _legend(ax, _fitting(title, most), width - 0.5)


def _fitting(label: str, most: int) -> str:
    """A label of at most so many letters, and fewer where they are wide, as W or a sign of Chinese.

    One that is wider than the figure would leave no room for the axes.
    """
    from matplotlib.textpath import TextPath

    label, room = brief(label, most), 72 * _LETTER * most
    while len(label) > 2 and (width := TextPath((0, 0), label, size=8).get_extents().width) > room:
        label = brief(label, min(len(label) - 1, int(len(label) * room / width)))
    return label


def _legend(ax: "Axes", title: str, width: float) -> int:
    """Above the axes, where it hides no curve, and the title above it; returns its lines."""
    labels = ax.get_legend_handles_labels()[1]
    columns = next(n for n in (3, 2, 1) if n == 1 or _legend_width(labels, n) <= width)
    lines = math.ceil(len(labels) / columns)
    ax.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False, handlelength=3.2,
        borderaxespad=0.2, columnspacing=1.5,
    )  # fmt: skip
    ax.set_title(title, loc="left", pad=8 + _LINE * 72 * lines)
    return lines


def _legend_width(labels: Sequence[str], columns: int) -> float:
    """About how many inches the legend takes: handles and letters of 8-point type."""
    lines = math.ceil(len(labels) / columns)
    parts = [labels[i : i + lines] for i in range(0, len(labels), lines)]
    return sum(0.65 + _LETTER * max(map(len, part)) for part in parts)


def _draw_curve(ax: "Axes", curve: Curve, look: Look, label: str, ended: bool) -> None:
    if ended:
        _draw_mark(ax, curve, look, "x", 6)
    style = (0, look.dashes) if look.dashes else "-"
    ax.plot(curve.x, curve.y, color=look.light, linestyle=style, linewidth=1.3, label=label)
    if len(curve.x) == 1:
        _draw_mark(ax, curve, look, "o", 4)
    if any(deviation for deviation in curve.deviation):
        # An error has no part below 0, however far apart the seeds are.
        low = [max(y - (d or 0), min(y, 0)) for y, d in zip(curve.y, curve.deviation, strict=True)]
        high = [y + (d or 0) for y, d in zip(curve.y, curve.deviation, strict=True)]
        ax.fill_between(curve.x, low, high, color=look.light, alpha=0.14, linewidth=0)


def _draw_mark(ax: "Axes", curve: Curve, look: Look, marker: str, size: float) -> None:
    """A mark at the curve's end, whole at the very edge of the axes, none outside them."""
    low, high = ax.get_ylim()
    kept = [(x, y) for x, y in zip(curve.x[-1:], curve.y[-1:], strict=True) if low <= y <= high]
    for x, y in kept:
        ax.plot([x], [y], marker, color=look.light, markersize=size, clip_on=False)


def _standing(group: Group) -> str:
    if group.all_diverged:
        return ", diverged"
    return "" if group.having("finished") else ", in progress"
