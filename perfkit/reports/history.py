"""The history of runs on a terminal: for each workload a verdict, and a line for each run with its step."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from perfkit._format import joules, ms, percent, rate, relative_change, shown_path, size
from perfkit.history.gathering import cause_of
from perfkit.history.results import History, RunSummary, StepChange, WorkloadHistory
from perfkit.ledger.ledger_text import TextTable
from perfkit.reports.console import print_line, print_text, table_lines

#: Runs of a workload that are shown without ``all``: as many as a person reads at once.
SHOWN = 20
#: Skipped runs that are named without ``all``.
_SKIPPED = 3
#: What stands behind a commit.
_MARKS = {True: "+ files differed from the commit", None: "? whether files differed is not known"}
_BARS = "▁▂▃▄▅▆▇█"
#: Cells of the picture of a run's step times.
_CELLS = 8


def print_history(history: History, console: Console, *, all: bool = False) -> None:
    """Write the workloads, the newest one first; ``all`` shows every run."""
    for number, workload in enumerate(history.workloads):
        if number:
            console.print()
        _workload(workload, console, all=all)
    skipped = history.skipped if all else history.skipped[:_SKIPPED]
    if history.skipped:
        console.print()
    for one in skipped:
        print_text(Text(f"skipped {shown_path(one.path)}: {one.reason}", style="yellow"), console)
    if more := len(history.skipped) - len(skipped):
        print_line(Text(f"{more} more runs were skipped: --all", style="dim"), console)


def _workload(workload: WorkloadHistory, console: Console, *, all: bool) -> None:
    print_text(Text(f"{workload.name} · {workload.machine}", style="dim"), console)
    print_text(Text(workload.verdict, style="bold"), console)
    for result in workload.objectives:
        print_text(Text(result.sentence, style="green" if result.met else "bold red"), console)
    console.print()
    begin = 0 if all else max(0, len(workload.runs) - SHOWN)
    hidden = workload.left_out + begin
    if hidden:
        how = "--all, and --limit for older ones" if workload.left_out else "--all"
        print_line(Text(f"{hidden:,} earlier runs are not shown: {how}", style="dim"), console)
    changes = {change.at: change for change in workload.changes}
    for at in (at for at in changes if at < begin):
        print_text(_changed(changes[at]), console)
    shown = workload.runs[begin:]
    lines = table_lines(history_table(shown, pictures=not console.options.ascii_only), console)
    print_line(lines[0], console)
    finding = None
    for at, (run, line) in enumerate(zip(shown, lines[1:], strict=True), start=begin):
        if at in changes:
            print_text(_changed(changes[at]), console)
        print_line(line, console)
        if run.finding != finding and run.finding is not None:
            finding = run.finding
            print_line(Text(f"  first finding: {finding or 'none'}", style="dim"), console)
        for note in run.notes:
            print_text(Text(note, style="dim"), console, indent=2)
    marks = {run.dirty for run in shown if run.commit}
    meanings = [sentence for mark, sentence in _MARKS.items() if mark in marks]
    if meanings:
        print_line(Text("; ".join(meanings), style="dim"), console)


def _changed(change: StepChange) -> Text:
    """The line above the first run of a new level."""
    slower = change.share > 0
    text = (
        f"{'▲ slower' if slower else '▼ faster'} {relative_change(change.before_ns, change.after_ns)}: "
        f"{ms(change.before_ns)} → {ms(change.after_ns)}, {cause_of(change)}"
    )
    return Text(text, style="red" if slower else "green")


def history_table(runs: tuple[RunSummary, ...], *, pictures: bool = True) -> TextTable:
    """A row for each run; columns that no run has are left out, and the folder of each run is its last column."""
    low, high = _scale(runs)
    columns: dict[str, list[str]] = {
        "start": [_short_day(run.start_unix_ns) for run in runs],
        "commit": [_commit(run) for run in runs],
        "main phase": [_main_phase(run) for run in runs],
        "median": [_or_none(run.median_ns, ms) for run in runs],
        "p10-p90": [_range(run) for run in runs],
        _between(low, high): [picture(run, low, high) for run in runs] if pictures and high > low else [],
        "memory": [_or_none(run.memory_bytes, size) for run in runs],
        "syncs": [_or_none(run.syncs_per_step, rate) for run in runs],
        "J/step": [_or_none(run.energy_j, joules) for run in runs],
    }
    kept = {head: cells for head, cells in columns.items() if any(cell != "-" for cell in cells)}
    texts = [head for head in ("start", "commit", "main phase") if head in kept]
    heads = [*texts, *(head for head in kept if head not in texts)]
    return TextTable(tuple(heads), tuple(zip(*(kept[head] for head in heads), strict=True)), len(texts))


def picture(run: RunSummary, low_ns: int, high_ns: int) -> str:
    """The distribution of a run's steps as blocks, from ``low_ns`` to ``high_ns`` in equal cells."""
    counts = [0] * _CELLS
    for ns in run.quantiles_ns:
        counts[min(_CELLS - 1, max(0, int(_CELLS * (ns - low_ns) / max(1, high_ns - low_ns))))] += 1
    most = max(counts)
    return "".join(_BARS[round((len(_BARS) - 1) * count / most)] if count else " " for count in counts) if most else "-"


def _scale(runs: tuple[RunSummary, ...]) -> tuple[int, int]:
    """The same for all runs, so that a change is a shift: from the smallest p10 to the largest p90."""
    low = min((run.p10_ns for run in runs if run.p10_ns is not None), default=0)
    return low, max((run.p90_ns for run in runs if run.p90_ns is not None), default=low)


def _short_day(unix_ns: int) -> str:
    try:
        return time.strftime("%m-%d %H:%M", time.localtime(unix_ns / 1e9))
    except (OverflowError, ValueError, OSError):  # a year that this system cannot show
        return "-"


def _commit(run: RunSummary) -> str:
    return f"{run.commit[:7]}{'+' if run.dirty else '?' if run.dirty is None else ''}" if run.commit else "-"


def _main_phase(run: RunSummary) -> str:
    phase = run.main_phase
    return f"{phase[0]} {percent(phase[1], sum(run.phases_ns.values()))}" if phase is not None else "-"


def _range(run: RunSummary) -> str:
    if run.p10_ns is None or run.p90_ns is None:
        return "-"
    return _between(run.p10_ns, run.p90_ns)


def _between(low_ns: int, high_ns: int) -> str:
    low, high = ms(low_ns), ms(high_ns)
    return f"{low.split(' ')[0]}-{high}" if low.split(" ")[1] == high.split(" ")[1] else f"{low}-{high}"


def _or_none(value: float | None, write: Callable[[float], str]) -> str:
    return write(value) if value is not None else "-"
