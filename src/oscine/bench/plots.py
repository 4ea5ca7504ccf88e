"""Plots as SVG, written by hand: no plotting library to install, and a page that needs nothing but itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

# Told apart also in grey and by most colour-blind readers; lines differ in dashes, too.
COLOURS = ("#0b6fa4", "#c8501e", "#2b8a3e", "#8b3fa0", "#a67c00", "#555555")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 4", "12 4")
WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 30, 74
LEGEND_LINE = 18
LETTER = 7  # a wide guess: whoever looks at it may have any font

STYLE = (
    "text{font:12px system-ui,sans-serif;fill:currentColor}.axis{stroke:currentColor;stroke-width:1}"
    ".grid{stroke:currentColor;stroke-width:1;opacity:.15}.title{font-weight:600}.mid{text-anchor:middle}"
    ".end{text-anchor:end}"
)


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Scale:
    """A value's place along an axis of pixels."""

    low: float
    high: float
    first_px: float
    last_px: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.first_px + share * (self.last_px - self.first_px), 1)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from low to high."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [step * index for index in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... within the range; only powers of ten where that would be many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 4 else (1,)
    return [value for p in powers for f in factors if low <= (value := f * 10.0**p) <= high]


def log_bounds(low: float, high: float) -> tuple[float, float]:
    """The 1, 2 or 5 times a power of ten below and above, so that an axis has at least two ticks."""
    steps = [
        f * 10.0**p for p in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2) for f in (1, 2, 5)
    ]
    return max(step for step in steps if step <= low * 1.001), min(step for step in steps if step > high)


def _fitting(text: str, width_px: float) -> str:
    """Its middle is left out first: names differ at their ends."""
    most = int(width_px / LETTER)
    if len(text) <= most:
        return text
    return f"{text[: most // 2 - 1]}…{text[len(text) - (most - most // 2) :]}"


def _label(value: float) -> str:
    """Three digits; all of them where they are whole numbers."""
    return f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"


def _apart(values: Sequence[float], scale: Scale) -> list[float]:
    """Those whose labels do not touch, from left to right."""
    kept: list[float] = []
    free_px = -math.inf
    for value in values:
        half_px = (len(_label(value)) + 1) * LETTER / 2
        if scale(value) - half_px >= free_px:
            kept.append(value)
            free_px = scale(value) + half_px
    return kept


def _svg(title: str, body: Sequence[str], names: Sequence[str] = ()) -> str:
    legend, lines = _legend(names)
    height = HEIGHT + LEGEND_LINE * max(0, lines - 1)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'aria-label="{escape(title)}" color="#333" style="background:#fff">',  # also on a dark page
            f"<style>{STYLE}</style>",
            f'<text class="title" x="{LEFT}" y="18">{escape(_fitting(title, WIDTH - LEFT - RIGHT))}</text>',
            *body,
            *legend,
            "</svg>",
        ]
    )


def _axes(
    x: Scale, y: Scale, x_ticks: Sequence[float], y_ticks: Sequence[float], x_name: str, y_name: str
) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    lines = [f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>']
    for value in y_ticks:
        lines.append(f'<line class="grid" x1="{LEFT}" y1="{y(value)}" x2="{right}" y2="{y(value)}"/>')
        lines.append(f'<text class="end" x="{LEFT - 6}" y="{y(value) + 4}">{value:g}</text>')
    for value in _apart(x_ticks, x):
        lines.append(f'<line class="axis" x1="{x(value)}" y1="{bottom}" x2="{x(value)}" y2="{bottom + 4}"/>')
        lines.append(f'<text class="mid" x="{x(value)}" y="{bottom + 17}">{_label(value)}</text>')
    lines.append(f'<text class="mid" x="{(LEFT + right) / 2}" y="{bottom + 34}">{escape(x_name)}</text>')
    middle = (TOP + bottom) / 2
    lines.append(
        f'<text class="mid" transform="translate(14 {middle}) rotate(-90)" x="0" y="0">{escape(y_name)}</text>'
    )
    return lines


def _legend(names: Sequence[str]) -> tuple[list[str], int]:
    """Its marks, and how many lines it takes."""
    marks, at, line = [], float(LEFT), 0
    for index, name in enumerate(names):
        name = _fitting(name, WIDTH - RIGHT - LEFT - 28)
        if at > LEFT and at + 28 + LETTER * len(name) > WIDTH - RIGHT:
            at, line = float(LEFT), line + 1
        colour, dash = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
        y = HEIGHT - 18 + LEGEND_LINE * line
        marks.append(
            f'<line x1="{at}" y1="{y}" x2="{at + 22}" y2="{y}" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/><text x="{at + 28}" y="{y + 4}">{escape(name)}</text>'
        )
        at += 44 + LETTER * len(name)
    return marks, line + 1


def line_plot(title: str, x_name: str, y_name: str, series: Sequence[Series], *, log_y: bool = True) -> str:
    """Loads grow by factors, so x is logarithmic; y too unless told otherwise. Points that are not above 0 are left out
    of a logarithmic axis."""
    series = [Series(one.name, tuple(p for p in one.points if p[1] > 0 or not log_y)) for one in series]
    xs = sorted({x for one in series for x, _ in one.points})
    ys = [y for one in series for _, y in one.points]
    if not ys:
        return _svg(title, [f'<text x="{LEFT}" y="{HEIGHT // 2}">no figures</text>'])
    x_scale = Scale(xs[0], xs[-1], LEFT + 12, WIDTH - RIGHT - 12, log=True)
    low, high = log_bounds(min(ys), max(ys)) if log_y else (0.0, max(ys) * 1.08 or 1.0)
    y_scale = Scale(low, high, HEIGHT - BOTTOM, TOP, log=log_y)
    y_ticks = log_ticks(low, high) if log_y else ticks(low, high)
    x_ticks = xs if len(xs) <= 12 else log_ticks(xs[0], xs[-1]) or xs
    body = _axes(x_scale, y_scale, x_ticks, y_ticks, x_name, y_name)
    for index, one in enumerate(series):
        colour, dash = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
        path = " ".join(f"{x_scale(x)},{y_scale(y)}" for x, y in one.points)
        body.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
        body += [
            f'<circle cx="{x_scale(x)}" cy="{y_scale(y)}" r="3.5" fill="{colour}">'
            f"<title>{escape(one.name)}: {y:.4g} at {_label(x)}</title></circle>"
            for x, y in one.points
        ]
    return _svg(title, body, [one.name for one in series])


def timeline_plot(title: str, example: dict[str, Any]) -> str:
    """Sound received as steps, sound played as a line that stands still where the player had nothing to play."""
    arrived, heard = example["arrived_ms"], example["heard_ms"]
    received = [(arrived[0], 0.0)]
    played = [(arrived[0], 0.0)]
    stalls: list[tuple[float, float]] = []
    for at, total in zip(arrived, heard, strict=True):
        received += [(at, received[-1][1]), (at, total)]
        free_at, done = played[-1]
        if at > free_at:
            if len(played) > 1:
                stalls.append((free_at, at))
            played.append((at, done))
            free_at = at
        played.append((free_at + total - done, total))
    end = max(played[-1][0], example["e2e_ms"])
    received.append((end, heard[-1]))
    x_scale = Scale(0.0, end, LEFT, WIDTH - RIGHT)
    y_scale = Scale(0.0, heard[-1] * 1.05, HEIGHT - BOTTOM, TOP)
    body = _axes(
        *(x_scale, y_scale, ticks(0.0, end, 8), ticks(0.0, heard[-1])),
        *("ms since the request was sent", "ms of sound"),
    )
    for begin, until in stalls:
        width = max(0.8, x_scale(until) - x_scale(begin))
        body.append(
            f'<rect x="{x_scale(begin)}" y="{TOP}" width="{width}" height="{HEIGHT - TOP - BOTTOM}" fill="#c8501e" '
            f'opacity=".25"><title>nothing to play for {until - begin:.1f} ms</title></rect>'
        )
    for index, line in enumerate((received, played)):
        path = " ".join(f"{x_scale(x)},{y_scale(y)}" for x, y in line)
        body.append(
            f'<polyline points="{path}" fill="none" stroke="{COLOURS[index]}" stroke-width="2" '
            f'stroke-dasharray="{DASHES[index]}"/>'
        )
    return _svg(title, body, ["received", "played"])
