"""Numbers, paths and locations as text: the same in findings, verdicts and reports."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

from perfkit._location import Location

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfkit.findings import Evidence, Finding
    from perfkit.run.records import EnergyUse

#: What IPython calls the code of a cell without a file of its own.
_IPYTHON_CELL = re.compile(r"<ipython-input-(\d{1,9})-")


def ms(ns: float) -> str:
    """A time in the unit a person reads: ``12.5 ms``, ``340 µs``, ``2.4 s``."""
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


def share_of(share: float) -> str:
    """A share with as many digits as a person reads: ``41%``, ``2.4%``, ``0.05%``; ``1e-05`` below."""
    size = abs(100 * share)
    if size >= 10:
        return f"{100 * share:.0f}%"
    return (
        f"{100 * share:.1f}%" if size >= 0.95 else f"{100 * share:.2g}%" if size >= 0.01 or not size else f"{share:.0e}"
    )


def share_range(low: float, high: float) -> str:
    """A range of shares: ``38 to 44%``, ``-2.1 to 11%``."""
    return f"{share_of(low).removesuffix('%')} to {share_of(high)}"


def shown_speedup(saving: float, ci: tuple[float, float]) -> str:
    """``1.8x as fast (95% interval 1.7x to 1.9x)`` of the share that is saved and its interval."""
    speed, low, high = (1 / (1 - share) for share in (saving, *ci))
    digits = 1 if low >= 2 else 2
    return f"{speed:.{digits}f}x as fast (95% interval {low:.{digits}f}x to {high:.{digits}f}x)"


def ms_range(low_ns: float, high_ns: float) -> str:
    """A range of times: ``20.1-45.2 ms``, ``up to 45.2 ms`` from zero on, one number where both read the same."""
    high = ms(high_ns)
    if low_ns <= 0:
        return f"up to {high}"
    low = ms(low_ns)
    if low == high:
        return f"about {high}"
    number, unit = low.split(" ")
    return f"{number}-{high}" if high.endswith(f" {unit}") else f"{low} to {high}"


def relative_change(before: float, after: float) -> str:
    """How much longer or shorter: ``-56%``, ``+8%``, and ``x5.2`` from twice on, where percentages are hard to read."""
    if before <= 0:
        return "new" if after > 0 else "0%"
    if after >= 2 * before:
        return f"x{after / before:.1f}"
    return f"{'-' if after < before else '+'}{percent(abs(after - before), before)}"


def duration(ns: float) -> str:
    """A time of minutes or hours: ``9.2 h``, ``15 min``, ``48 s``."""
    seconds = ns / 1e9
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else ms(ns)


def times(count: float) -> str:
    """A count of repetitions: ``once``, ``twice``, ``8 times``, ``1.5 times``."""
    if abs(count - 1) < 0.05:
        return "once"
    if abs(count - 2) < 0.1:
        return "twice"
    return f"{count:.0f} times" if count >= 10 or abs(count - round(count)) < 0.05 else f"{count:.1f} times"


def shown_path(path: str) -> str:
    """A path, relative to the current folder where it lies below that."""
    try:
        return path.removeprefix(os.getcwd() + os.sep)
    except OSError:  # the current folder was deleted
        return path


def shown_location(location: Location) -> str:
    """``train.py:31``, relative to the current folder where the file lies below that; ``cell [3] line 7``."""
    if (cell := _notebook_cell(location.file)) is not None:
        return f"cell [{cell}]" + (f" line {location.line}" if location.line is not None else "")
    path = shown_path(location.file)
    return f"{path}:{location.line}" if location.line is not None else path


def _notebook_cell(file: str) -> int | None:
    """The number of the cell that a notebook keeps in this file, as long as its kernel runs; None for any other."""
    if named := _IPYTHON_CELL.match(file):
        return int(named[1])
    if "ipykernel_" not in file or (ipython := sys.modules.get("IPython")) is None:
        return None
    compiler = getattr(ipython.get_ipython(), "compile", None)
    number = getattr(compiler, "_filename_map", {}).get(file)
    return number if isinstance(number, int) else None


def shown_function(location: Location) -> str:
    """The function around a line: ``Model.forward``; its file and line where it stands in none."""
    return location.function if location.function not in (None, "<module>") else shown_location(location)


def shown_place(finding: Finding) -> str:
    """Where a finding is: its line, else its range, module or kernel; empty where neither is known."""
    return shown_location(finding.spent) if finding.spent is not None else finding.range or ""


def shown_change(finding: Finding) -> str:
    """The line to edit where it is another one: ``train.py:12 (DataLoader(...))``; else empty."""
    return _with_function(finding.change) if finding.change is not None else ""


def shown_places(finding: Finding) -> str:
    """Both places: ``spent at train.py:58 (forward), change train.py:12 (DataLoader(...))``.

    Only where it is if that is also the line to edit; empty where nothing is known.
    """
    change = f"change {shown_change(finding)}" if finding.change is not None else ""
    if finding.spent is None or not change:
        return ", ".join(filter(None, (shown_place(finding), change)))
    return f"spent at {_with_function(finding.spent)}, {change}"


def shown_target(finding: Finding) -> str:
    """The line to edit, without its function, for a sentence: ``train.py:12``; empty where none is known."""
    target = finding.change or finding.spent
    return shown_location(target) if target is not None else ""


def _with_function(location: Location) -> str:
    inside = f" ({location.function})" if location.function not in (None, "<module>") else ""
    return f"{shown_location(location)}{inside}"


def shown_saving(finding: Finding) -> str:
    """What a finding's change is expected to save: ``20.1-45.2 ms``; empty where it is unknown."""
    high_ns = finding.saving_high_ns
    return ms_range(finding.saving_low_ns or 0, high_ns) if high_ns is not None else ""


def why_unquantified(finding: Finding) -> str:
    """Why a problem has no cost; empty where it has one, is only information, or is that the recording lacks parts."""
    if finding.cost_ns is not None or finding.severity == "info" or finding.rule == "cannot-tell":
        return ""
    return next((item.source for item in finding.evidence if item.value is None), "it was not measured")


def evidence_value(evidence: Evidence) -> str:
    """The number of evidence with its unit."""
    return "not measured" if evidence.value is None else f"{evidence.value} {evidence.unit}".strip()


def size(count: float) -> str:
    """An amount of memory in bytes: ``1.6 GB``, ``20 MB``, ``512 kB``, ``80 bytes``; in powers of 1000."""
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= bytes_:
            return f"{count / bytes_:.1f} {unit}" if count < 10 * bytes_ else f"{count / bytes_:.0f} {unit}"
    return f"{count:.0f} bytes"


def joules(amount: float) -> str:
    """Energy: ``12.5 J``, ``340 mJ``."""
    return f"{amount:.3g} J" if amount >= 1 else f"{amount * 1e3:.3g} mJ"


def shown_energy(used: Sequence[EnergyUse]) -> str:
    """Energy per step: ``12.5 J per step: 10.1 J NVIDIA H100, 2.4 J package-0``; empty where nothing was counted."""
    if not used:
        return ""
    total = joules(sum(one.per_step_j for one in used))
    of_all = {"rapl": " (of all programs)", "nvml": ""}
    parts = ", ".join(f"{joules(one.per_step_j)} {one.part}{of_all[one.source]}" for one in used)
    return f"{total} per step: {parts}"


def rate(count: float) -> str:
    """A rate or a count with three digits, and all digits before the decimal point: ``5.93``, ``94.8``, ``1,420``."""
    return f"{count:,.0f}" if count >= 99.95 else f"{count:.3g}"


def rates(steps_per_s: float | None, samples_per_s: float | None, tokens_per_s: float | None) -> list[str]:
    """The rates that are known: ``["20 steps/s", "320 samples/s"]``."""
    named = (("steps", steps_per_s), ("samples", samples_per_s), ("tokens", tokens_per_s))
    return [f"{rate(per_s)} {name}/s" for name, per_s in named if per_s]
