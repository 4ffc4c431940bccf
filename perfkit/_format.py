"""How numbers are said, in findings, verdicts and reports alike: milliseconds, shares, gains, places."""

from __future__ import annotations

import os


def ms(ns: float) -> str:
    """A time in the unit a person reads it in: ``12.5 ms``, ``340 µs``, ``2.4 s``."""
    if ns < 0:
        return f"-{ms(-ns)}"
    if ns >= 10e9:
        return f"{ns / 1e9:.0f} s"
    if ns >= 1e9:
        return f"{ns / 1e9:.1f} s"
    if ns >= 100e6:
        return f"{ns / 1e6:.0f} ms"
    if ns >= 1e6:
        return f"{ns / 1e6:.1f} ms"
    return f"{ns / 1e3:.0f} µs" if ns >= 1e3 else f"{ns:.0f} ns"


def percent(part: float, whole: float) -> str:
    """``56%``; ``<1%`` for a part that is there but rounds to nothing."""
    share = 100 * part / whole if whole else 0.0
    return "<1%" if 0 < share <= 0.5 else f"{share:.0f}%"


def between(low_ns: int, high_ns: int) -> str:
    """A gain: ``20.1 to 45.2 ms``, ``up to 45.2 ms`` where nothing is certain, one number where both say the same."""
    high = ms(high_ns)
    if low_ns <= 0:
        return f"up to {high}"
    low = ms(low_ns)
    if low == high:
        return f"about {high}"
    number, unit = low.split(" ")
    return f"{number} to {high}" if high.endswith(f" {unit}") else f"{low} to {high}"


def change(before: float, after: float) -> str:
    """How much longer or shorter: ``-56%``, ``+8%``, and ``x5.2`` from twice on, where a percentage stops speaking."""
    if before <= 0:
        return "new" if after > 0 else "0%"
    if after >= 2 * before:
        return f"x{after / before:.1f}"
    return f"{'-' if after < before else '+'}{percent(abs(after - before), before)}"


def duration(ns: float) -> str:
    """A stretch of a whole run: ``9.2 h``, ``15 min``, ``48 s``."""
    seconds = ns / 1e9
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else ms(ns)


def per_step(count: float) -> str:
    """How often per step: ``once``, ``twice``, ``8 times``, ``1.5 times``."""
    if abs(count - 1) < 0.05:
        return "once"
    if abs(count - 2) < 0.1:
        return "twice"
    return f"{count:.0f} times" if count >= 10 or abs(count - round(count)) < 0.05 else f"{count:.1f} times"


def place(file: str, line: int | None) -> str:
    """``train.py:31``, relative to the current folder where the file lies below it."""
    try:
        below = os.getcwd() + os.sep
    except OSError:  # the current folder was deleted
        below = os.sep * 2
    shown = file[len(below) :] if file.startswith(below) else file
    return f"{shown}:{line}" if line is not None else shown


def size(count: float) -> str:
    """An amount of memory: ``1.6 GB``, ``20 MB``, ``512 kB``, ``80 bytes``; in powers of 1000."""
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= bytes_:
            return f"{count / bytes_:.1f} {unit}" if count < 10 * bytes_ else f"{count / bytes_:.0f} {unit}"
    return f"{count:.0f} bytes"


def rate(count: float) -> str:
    """How many a second or a step: ``5.93``, ``94.8``, ``1,420``; three digits, and all of the whole part."""
    return f"{count:,.0f}" if count >= 99.95 else f"{count:.3g}"
