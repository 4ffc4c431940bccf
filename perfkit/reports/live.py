"""A run while it goes on, on a terminal: step time, phases, throughput, memory, ranks, findings, the last window.

Made from the newest rows alone, in the looks of a diagnosis (`perfkit.reports.console`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from perfkit._format import duration, ms, percent, rate, shown_location, size
from perfkit.diagnosis import Diagnosis
from perfkit.reports.console import print_bar, print_line, print_text
from perfkit.run.file_names import trace_name
from perfkit.run.follower import SILENT_S, RankFollower, RunFollower, end_unix_s
from perfkit.run.records import PHASES, Step, Window

#: What "now" is: enough steps that one odd one does not move it, few enough to see a change within a minute or so.
_NOW = 64
#: Findings that are shown: the rest of a small terminal.
_FINDINGS = 3
#: Ranks that one line names.
_NAMED = 3
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=+*%#"


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """What the newest rows say; times in ns, per step; None = not known."""

    step: int
    last_ns: int
    median_ns: int
    mean_ns: int
    phases_ns: dict[str, int]
    steps_per_s: float
    samples_per_s: float | None
    tokens_per_s: float | None
    memory_bytes: int | None
    memory_peak_bytes: int | None
    rss_bytes: int | None


def now_of(rows: Sequence[Step]) -> Now | None:
    """Sum up the newest rows; of those that perfkit slows by recording only what memory was. None where there are none.

    The median is of rows: merged ones count as one step of their mean.
    """
    if not rows:
        return None
    calm = [row for row in rows if not _recorded(row) and row.mode == "train"] or list(rows)
    newest = calm[-_NOW:]
    each = sorted(row.wall_ns // max(1, row.steps) for row in newest)
    wall_ns = sum(row.wall_ns for row in newest)
    steps = sum(row.steps for row in newest)

    def a_second(values: Sequence[int | None]) -> float | None:
        known = [value for value in values if value is not None]
        return 1e9 * sum(known) / wall_ns if known and wall_ns else None

    def latest(values: Sequence[int | None]) -> int | None:
        return next((value for value in reversed(values) if value is not None), None)

    phases = {name: sum(getattr(row.phases_ns, name) or 0 for row in newest) // max(1, steps) for name in PHASES}
    last = rows[-1]
    return Now(
        step=last.step + last.steps - 1,
        last_ns=last.wall_ns // max(1, last.steps),
        median_ns=each[len(each) // 2],
        mean_ns=wall_ns // max(1, steps),
        phases_ns={name: ns for name, ns in phases.items() if ns},
        steps_per_s=a_second([row.steps for row in newest]) or 0.0,
        samples_per_s=a_second([row.samples for row in newest]),
        tokens_per_s=a_second([row.tokens for row in newest]),
        memory_bytes=latest([row.memory_bytes for row in rows]),
        memory_peak_bytes=latest([row.memory_peak_bytes for row in rows]),
        rss_bytes=latest([row.rss_bytes for row in rows]),
    )


def _recorded(row: Step) -> bool:
    return row.kind != "timed"


def print_live(live: RunFollower, shown: RankFollower, diagnosis: Diagnosis | None, console: Console) -> None:
    """Print one picture of a run: ``shown`` is the rank whose steps it is of, ``diagnosis`` what was found so far."""
    now = now_of(shown.tail.rows)
    print_text(Text(f"{live.path} · {_whose(live, shown)} · {state_of(shown)}", style="dim"), console)
    if now is None:
        print_line(Text("no step yet"), console)
    else:
        print_text(Text(_step(now, live), style="bold"), console)
        print_line(_sparkline(shown.tail.rows, console), console)
        if set(now.phases_ns) - {"other"}:
            print_bar(now.phases_ns, console)
        print_text(Text(", ".join([*_rates(now), *_memory(now)])), console)
    if len(live.ranks) > 1:
        print_text(Text(_ranks(live)), console)
    _window(shown, console)
    _findings(diagnosis, console)


def line_of(live: RunFollower, shown: RankFollower) -> str:
    """The run in one line, for a pipe."""
    now = now_of(shown.tail.rows)
    if now is None:
        return f"no step yet  {state_of(shown)}"
    total = sum(now.phases_ns.values())
    phases = " ".join(f"{name} {percent(ns, total)}" for name, ns in now.phases_ns.items())
    parts = [_step(now, live), *_rates(now), *_memory(now), phases]
    if shown.rank is not None and shown.rank.windows:
        parts.append(f"window {shown.rank.windows[-1].index}")
    return "  ".join([*parts, state_of(shown)])


def _whose(live: RunFollower, shown: RankFollower) -> str:
    ranks = live.run.world_size if live.run is not None else len(live.ranks)
    where = f" on {shown.rank.host}, process {shown.rank.pid}" if shown.rank is not None else ""
    return (f"rank {shown.index} of {ranks}" if ranks > 1 else f"rank {shown.index}") + where


def state_of(shown: RankFollower) -> str:
    """Whether a rank runs, in a word or two."""
    if shown.rank is not None and shown.rank.ending is not None:
        ended = end_unix_s(shown.rank)
        ago = f" {duration(max(0.0, time.time() - ended) * 1e9)} ago" if ended is not None else ""
        return f"ended{ago}: {shown.rank.ending}"
    if shown.died:
        return "its process is gone, and has not written how it ended"
    silent_s = time.time() - shown.written_unix_s
    return f"nothing written for {duration(silent_s * 1e9)}" if silent_s > SILENT_S else "running"


def _step(now: Now, live: RunFollower) -> str:
    total = live.run.total_steps if live.run is not None else None
    of = f" of {total:,}" if total is not None else ""
    text = f"step {now.step:,}{of}  {ms(now.last_ns)}, median {ms(now.median_ns)}"
    left = total - now.step - 1 if total is not None else 0
    return text + (f", {duration(left * now.mean_ns)} left" if left > 0 else "")


def _rates(now: Now) -> list[str]:
    named = (("steps", now.steps_per_s), ("samples", now.samples_per_s), ("tokens", now.tokens_per_s))
    return [f"{rate(number)} {what}/s" for what, number in named if number]


def _memory(now: Now) -> list[str]:
    named = (("device", now.memory_bytes), ("device peak", now.memory_peak_bytes), ("process", now.rss_bytes))
    return [f"{what} {size(value)}" for what, value in named if value is not None]


def _sparkline(rows: Sequence[Step], console: Console) -> Text:
    """The newest steps, one character each, by their time; those that perfkit recorded are dim."""
    newest = list(rows)[-console.width :]
    walls = [row.wall_ns // max(1, row.steps) for row in newest]
    # From nothing: a step of twice the time is twice as high.
    top = max(walls) or 1
    blocks = _ASCII_BLOCKS if console.options.ascii_only else _BLOCKS
    line = Text()
    for row, wall in zip(newest, walls, strict=True):
        line.append(blocks[min(7, 8 * wall // top)], style="dim" if _recorded(row) else "cyan")
    return line


def _ranks(live: RunFollower) -> str:
    nows = {index: now for index, one in live.ranks.items() if (now := now_of(one.tail.rows)) is not None}
    over = [f"rank {index} {state}" for index, one in live.ranks.items() if (state := state_of(one)) != "running"]
    missing = (live.run.world_size if live.run is not None else 0) - len(live.ranks)
    parts = [f"{len(live.ranks)} ranks" + (f", {missing} more not there" if missing > 0 else "")]
    if nows:
        slowest = max(nows, key=lambda index: nows[index].median_ns)
        fastest = min(nows, key=lambda index: nows[index].median_ns)
        at = [now.step for now in nows.values()]
        parts.append(
            f"median {ms(nows[fastest].median_ns)} (rank {fastest}) to {ms(nows[slowest].median_ns)} (rank {slowest}), "
            f"at steps {min(at):,} to {max(at):,}"
        )
    more = [f"{len(over) - _NAMED} more"] if len(over) > _NAMED else []
    return "; ".join([*parts, *over[:_NAMED], *more])


def _window(shown: RankFollower, console: Console) -> None:
    windows: tuple[Window, ...] = shown.rank.windows if shown.rank is not None else ()
    if shown.tail.rows and (newest := shown.tail.rows[-1]).kind in ("warmup", "window"):
        print_line(Text(f"window {newest.window} is being recorded", style="yellow"), console)
    if windows:
        last = windows[-1]
        why = f", {last.reason}" if last.reason is not None else ""
        file = shown.folder / trace_name(last.index)
        what = f": {last.problem}" if last.problem is not None else f": {file}" if file.is_file() else ""
        print_text(
            Text(f"window {last.index}, steps {last.first_step:,} to {last.last_step:,}{why}{what}", style="dim"),
            console,
        )


def _findings(diagnosis: Diagnosis | None, console: Console) -> None:
    if diagnosis is None:
        return
    print_text(Text(f"so far: {diagnosis.verdict}"), console)
    roots = [finding for finding in diagnosis.findings if finding.follows is None]
    for number, finding in enumerate(roots[:_FINDINGS], 1):
        where = f"  {shown_location(finding.spent)}" if finding.spent is not None else ""
        lost = f"  {ms(finding.cost_ns)} a step" if finding.cost_ns is not None else ""
        print_line(Text(f"{number} {finding.rule}{where}{lost}"), console)
    if len(roots) > _FINDINGS:
        print_line(
            Text(f"{len(roots) - _FINDINGS} more: perfkit diagnose {Path(diagnosis.source)}", style="dim"), console
        )
