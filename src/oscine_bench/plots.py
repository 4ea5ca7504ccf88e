"""Draws charts as SVG text with matplotlib (the extra `bench`)."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oscine.errors import OscineError
from oscine_bench.summary import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Distinguishable in gray and for most color-blind readers; the dashes differ, too.
_COLORS = ("#0b6fa4", "#c8501e", "#2b8a3e", "#8b3fa0", "#a67c00", "#555555")
_DASHES: tuple[Any, ...] = ("-", (0, (6, 3)), (0, (2, 3)), (0, (8, 3, 2, 3)), (0, (1, 4)), (0, (12, 4)))
_TITLE_CHARACTERS, _NAME_CHARACTERS = 80, 90
_HEIGHT_INCHES, _LEGEND_LINE_INCHES = 3.6, 0.2
_MIN_TICK_DISTANCE = 0.05  # of the axis, so that labels do not touch
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: searchable, and equal on every machine
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.alpha": 0.3,
    "font.size": 9,
}


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: tuple[tuple[float, float], ...]


class _Chart:
    """One figure with one pair of axes."""

    def __init__(self, title: str, x_name: str, y_name: str) -> None:
        try:
            import matplotlib
            from matplotlib.figure import Figure
        except ImportError:
            raise OscineError("charts need matplotlib; install it with: pip install 'oscine[bench]'") from None
        # The salt makes the ids in an SVG reproducible, and different from those of other charts on the same page.
        self._style = {**_STYLE, "svg.hashsalt": title}
        with matplotlib.rc_context(self._style):
            self._figure = Figure()
            self.axes: Axes = self._figure.add_subplot(xlabel=x_name, ylabel=y_name)
        self.axes.set_title(_shortened(title, _TITLE_CHARACTERS), loc="left", fontweight="bold")

    def line(self, index: int, name: str, points: Sequence[tuple[float, float]], marker: str = "") -> None:
        style = {"color": _COLORS[index % len(_COLORS)], "linestyle": _DASHES[index % len(_DASHES)], "marker": marker}
        label = _shortened(name, _NAME_CHARACTERS)
        self.axes.plot(*zip(*points, strict=True), label=label, markersize=4, clip_on=not marker, **style)

    def svg(self) -> str:
        import matplotlib

        handles, labels = self.axes.get_legend_handles_labels()
        columns = 1 if max(map(len, labels), default=0) > _NAME_CHARACTERS / 4 else 4
        # A layout by hand: matplotlib's own draws every chart twice.
        height = _HEIGHT_INCHES + _LEGEND_LINE_INCHES * math.ceil(len(labels) / columns)
        self._figure.set_size_inches(6.4, height)
        self._figure.subplots_adjust(
            left=0.1, right=0.98, top=1 - 0.3 / height, bottom=1 - (_HEIGHT_INCHES - 0.5) / height
        )
        self._figure.legend(handles, labels, loc="lower left", ncols=columns, frameon=False, handlelength=3)
        file = io.StringIO()
        with matplotlib.rc_context(self._style):
            self._figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        return file.getvalue()[file.getvalue().index("<svg") :].rstrip()


def _shortened(text: str, max_characters: int) -> str:
    """Cuts the middle of a name, because names differ at their ends."""
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    return f"{text[: half - 1]}…{text[-half:]}"


def _label(value: float) -> str:
    """Formats three digits, or all digits of an integer."""
    return f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"


def _log_bounds(low: float, high: float) -> tuple[float, float]:
    """Returns the nearest 1, 2 or 5 times a power of ten below and above, so that the axis has at least two ticks."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    return max(step for step in steps if step <= low * 1.001), min(step for step in steps if step > high)


def _separate(values: Sequence[float]) -> list[float]:
    """Drops ascending values that lie too close to the previous one, on a logarithmic axis."""
    width = math.log(values[-1] / values[0])
    kept: list[float] = []
    for value in values:
        if not kept or math.log(value / kept[-1]) >= _MIN_TICK_DISTANCE * width:
            kept.append(value)
    return kept


def line_plot(
    title: str, x_name: str, y_name: str, series: Sequence[Series], *, log_x: bool = True, log_y: bool = True
) -> str:
    """Draws lines. Loads grow by factors, so x is logarithmic by default. If y is too, points that are not above 0 are
    dropped."""
    chart = _Chart(title, x_name, y_name)
    series = [Series(one.name, tuple(p for p in one.points if p[1] > 0 or not log_y)) for one in series]
    xs = sorted({x for one in series for x, _ in one.points})
    if not xs:
        chart.axes.text(0.5, 0.5, "no figures", transform=chart.axes.transAxes, ha="center")
        return chart.svg()
    for index, one in enumerate(series):
        if one.points:
            chart.line(index, one.name, one.points, marker="o")
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

    if log_x:
        chart.axes.set_xscale("log")
        ticks = _separate(xs)
        chart.axes.set_xticks(ticks, [_label(tick) for tick in ticks])
        chart.axes.xaxis.minorticks_off()
    else:
        chart.axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        chart.axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if log_y:
        ys = [y for one in series for _, y in one.points]
        chart.axes.set_yscale("log")
        chart.axes.set_ylim(*_log_bounds(min(ys), max(ys)))
        chart.axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        chart.axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        chart.axes.yaxis.minorticks_off()
    else:
        chart.axes.set_ylim(bottom=0)
    return chart.svg()


def timeline_plot(title: str, example: Row) -> str:
    """Draws received audio as steps and played audio as a line, shaded where the player had run dry."""
    arrived, totals = example["arrived_ms"], example["heard_ms"]
    received = [(arrived[0], 0.0)]
    played = [(arrived[0], 0.0)]
    chart = _Chart(title, "ms since the request was sent", "ms of audio")
    for at, total in zip(arrived, totals, strict=True):
        received += [(at, received[-1][1]), (at, total)]
        free_at, done = played[-1]
        if at > free_at:
            chart.axes.axvspan(free_at, at, color=_COLORS[1], alpha=0.25, linewidth=0)
            played.append((at, done))
            free_at = at
        played.append((free_at + total - done, total))
    received.append((max(played[-1][0], example["e2e_ms"]), totals[-1]))
    for index, (name, points) in enumerate((("received", received), ("played", played))):
        chart.line(index, name, points)
    chart.axes.set_xlim(left=0)
    chart.axes.set_ylim(bottom=0)
    return chart.svg()


def waterfall_plot(title: str, x_name: str, stages: Sequence[tuple[str, float]]) -> str:
    """Draws stages that follow each other: each bar begins where the previous one ends."""
    chart = _Chart(title, x_name, "")
    total = sum(length for _, length in stages)
    begin = 0.0
    for row, (name, length) in enumerate(stages):
        chart.axes.barh(row, length, left=begin, color=_COLORS[0])
        before = begin + length > 0.6 * total  # the bar's name stands where there is room
        chart.axes.text(
            begin if before else begin + length,
            row,
            f" {name}: {_label(length)} ",
            ha="right" if before else "left",
            va="center",
        )
        begin += length
    chart.axes.set_yticks([])
    chart.axes.invert_yaxis()
    chart.axes.set_xlim(0, total)
    return chart.svg()
