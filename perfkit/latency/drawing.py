"""Drawings of latency: an SVG without scripts for notebooks and pages, bars of throughput for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfkit._format import ms

#: (batch size, median in ns, p90 in ns or None, whether stable)
Point = tuple[int, int, int | None, bool]

_WIDTH, _HEIGHT = 460, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 24, 36
_BAR = 16
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bars(values: Sequence[float | None]) -> list[str]:
    """A bar for each value, the largest sixteen cells long; an empty one for None."""
    largest = max((value for value in values if value is not None), default=0.0)
    lines = []
    for value in values:
        eighths = round(8 * _BAR * value / largest) if value is not None and largest > 0 else 0
        lines.append("█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip())
    return lines


def draw(points: Sequence[Point], knee: int | None) -> str:
    """Latency over batch size, both logarithmic, and a dashed line of latency proportional to the batch size.

    Where the measured line is flatter than the dashed one, a larger batch gives more throughput. Circles are medians,
    hollow if not stable; vertical bars reach to p90. Empty for fewer than two points.
    """
    if len(points) < 2:
        return ""
    first, last = points[0], points[-1]
    tops = [p90 or median for _, median, p90, _ in points]
    low_ns, high_ns = min(median for _, median, _, _ in points) / 1.3, max(tops) * 1.3
    x_span = math.log(last[0] / first[0])
    y_span = math.log(high_ns / low_ns)

    def x(size: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log(size / first[0]) / x_span

    def y(ns: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * math.log(max(ns, low_ns) / low_ns) / y_span

    # The dashed line ends at the edge of the drawing.
    linear_end = min(last[0], first[0] * high_ns / first[1])
    parts = [
        _line(_LEFT, _HEIGHT - _BOTTOM, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM, "stroke-opacity='.4'"),
        _line(x(first[0]), y(first[1]), x(linear_end), y(first[1] * linear_end / first[0]), "stroke-dasharray='4 4'"),
    ]
    if knee is not None:
        parts.append(_line(x(knee), _TOP, x(knee), _HEIGHT - _BOTTOM, "stroke-opacity='.4' stroke-dasharray='1 3'"))
        anchor = "end" if x(knee) > _WIDTH / 2 else "start"
        parts.append(_text(x(knee), _TOP - 8, f"{knee} is worth it", anchor))
    path = " ".join(f"{x(size):.1f},{y(median):.1f}" for size, median, _, _ in points)
    parts.append(f"<polyline points='{path}' fill='none' stroke='#2a78d6' stroke-width='2'/>")
    for size, median, p90, is_stable in points:
        if p90 is not None:
            parts.append(_line(x(size), y(median), x(size), y(p90), "stroke='#2a78d6' stroke-width='2'"))
        fill = "#2a78d6" if is_stable else "none"
        parts.append(f"<circle cx='{x(size):.1f}' cy='{y(median):.1f}' r='4' fill='{fill}' stroke='#2a78d6'/>")
        parts.append(_text(x(size), _HEIGHT - _BOTTOM + 16, str(size)))
    parts += [_text(_LEFT - 8, y(ns) + 4, ms(ns), "end") for ns in (first[1], last[1])]
    parts.append(_text((_LEFT + _WIDTH) / 2, _HEIGHT - 4, "batch size"))
    return (
        f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' width='{_WIDTH}' height='{_HEIGHT}' role='img' "
        "aria-label='Latency over batch size' stroke='currentColor' fill='currentColor' font-size='11'>"
        f"{''.join(parts)}</svg>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' {style}/>"


def _text(x: float, y: float, label: str, anchor: str = "middle") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' stroke='none'>{label}</text>"
