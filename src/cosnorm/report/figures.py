"""Figures for print: test error against epoch or step, a curve per method, a band over seeds."""

import io
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cosnorm.report.curves import Curve, group_curve, levels, off_scale, readable_range
from cosnorm.report.groups import DatasetGroups, Group
from cosnorm.report.runs import ReportError
from cosnorm.report.style import Look, looks, variant_look

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


def figure_files(section: DatasetGroups) -> dict[str, bytes]:
    """PNG and PDF by suffix: the comparison, and, where a method was run with several settings,
    a panel per method that compares them."""
    try:
        import matplotlib
    except ImportError as error:
        raise ReportError(f"figures need matplotlib ({error}): install cosnorm[report]") from error

    # A name in a script that the font lacks is drawn as boxes; that is no reason to complain.
    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        files = _saved("", _comparison(section))
        several = [m for m, n in Counter(g.method for g in section.groups).items() if n > 1]
        if several:
            files |= _saved("-settings", _settings(section, several))
    return files


def _saved(suffix: str, figure: "Figure") -> dict[str, bytes]:
    files = {}
    # Without a date the same runs give the same file.
    for kind, metadata in (("png", None), ("pdf", {"CreationDate": None})):
        buffer = io.BytesIO()
        figure.savefig(
            buffer, format=kind, dpi=300, bbox_inches="tight", pad_inches=0.04, metadata=metadata
        )
        files[f"{suffix}.{kind}"] = buffer.getvalue()
    return files


def _new_figure(columns: int, rows: int, width: float, height: float) -> tuple["Figure", Any]:
    """A figure of its own, drawn by Agg, without pyplot's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _comparison(section: DatasetGroups) -> "Figure":
    figure, axes = _new_figure(1, 1, 5.2, 3.4)
    styles = looks([group.method for group in section.groups])
    _draw(axes[0][0], section, section.main, [styles[group.method] for group in section.main])
    axes[0][0].set_title(section.label)
    return figure


def _settings(section: DatasetGroups, methods: Sequence[str]) -> "Figure":
    columns = min(2, len(methods))
    rows = -(-len(methods) // columns)
    figure, axes = _new_figure(columns, rows, 3.6 * columns, 2.7 * rows)
    styles = looks([group.method for group in section.groups])
    for place, ax in enumerate(axes.flat):
        if place >= len(methods):
            ax.remove()
            continue
        groups = [group for group in section.groups if group.method == methods[place]]
        drawn = [variant_look(styles[methods[place]], i) for i in range(len(groups))]
        _draw(ax, section, groups, drawn, [group.variant for group in groups])
        ax.set_title(f"{section.label}: {methods[place]}")
    return figure


def _draw(
    ax: "Axes",
    section: DatasetGroups,
    groups: Sequence[Group],
    styles: Sequence[Look],
    labels: Sequence[str] | None = None,
) -> None:
    curves = [group_curve(group, "test_error", section.unit) for group in groups]
    labels = labels or [group.label for group in groups]
    rows = zip(groups, curves, styles, labels, off_scale(curves), levels(curves), strict=True)
    for group, curve, look, label, off, level in rows:
        # A leading underscore would keep the label out of the legend.
        name = f" {label}" if label.startswith("_") else label
        text = f"{name}, off scale at {level:.1f} %" if off else name
        _draw_curve(ax, curve, look, text + _standing(group), group.all_diverged)
    ax.set_ylim(*readable_range(curves))
    ax.set_xlabel(section.unit)
    ax.set_ylabel("test error (%)")
    longest = max((curve.x[-1] for curve in curves if curve.x), default=1)
    ax.set_xlim(0, longest or 1)
    ax.grid(axis="y", color="#d9d9d9", linewidth=0.5)
    ax.set_axisbelow(True)
    if longest >= 10_000:
        ax.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k" if x else "0")
    ax.legend(edgecolor="none", framealpha=0.85, handlelength=3.2, loc="upper right")


def _draw_curve(ax: "Axes", curve: Curve, look: Look, label: str, ended: bool) -> None:
    if ended:
        ax.plot(curve.x[-1:], curve.y[-1:], "x", color=look.light, markersize=6)
    style = (0, look.dashes) if look.dashes else "-"
    marker = "o" if len(curve.x) == 1 else None
    ax.plot(
        curve.x, curve.y, color=look.light, linestyle=style, linewidth=1.3, label=label,
        marker=marker, markersize=4,
    )  # fmt: skip
    if any(deviation for deviation in curve.deviation):
        low = [y - (d or 0) for y, d in zip(curve.y, curve.deviation, strict=True)]
        high = [y + (d or 0) for y, d in zip(curve.y, curve.deviation, strict=True)]
        ax.fill_between(curve.x, low, high, color=look.light, alpha=0.18, linewidth=0)


def _standing(group: Group) -> str:
    if group.all_diverged:
        return ", diverged"
    return "" if group.having("finished") else ", in progress"
