"""A running training on a terminal: step time, phases, throughput, memory, ranks, findings, the last window.

It is made from the newest rows only, in the style of a diagnosis (`perfkit.reports.console`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from perfkit._format import duration, ms, percent, rates, shown_places, size
from perfkit.diagnosis import Diagnosis
from perfkit.reports.console import print_bar, print_line, print_text
from perfkit.reports.live_ranks import LateNow
from perfkit.run.ending import SILENT_S
from perfkit.run.file_names import trace_name
from perfkit.run.follower import RankFollower, RunFollower, end_unix_s
from perfkit.run.records import PHASES, Step, Window

#: Rows of the current state: enough that one slow step does not move it, few enough to show a change within a minute.
_NEWEST = 64
#: Findings that are shown, which fit a small terminal.
_FINDINGS = 3
#: Ranks that one line lists.
_NAMED = 3
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=+*%#"


class CurrentState(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of the newest rows; times in ns per step; None: unknown."""

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


def summarize(rows: Sequence[Step]) -> CurrentState | None:
    """Summarize the newest rows, None without rows; of rows slowed by recording, only the memory is used.

    The median is over rows: merged steps count as one step of their mean.
    """
    if not rows:
        return None
    undisturbed = [row for row in rows if not _recorded(row) and row.mode == "train"] or list(rows)
    newest = undisturbed[-_NEWEST:]
    per_step = sorted(row.wall_ns // max(1, row.steps) for row in newest)
    wall_ns = sum(row.wall_ns for row in newest)
    steps = sum(row.steps for row in newest)

    def per_second(values: Sequence[int | None]) -> float | None:
        known = [value for value in values if value is not None]
        return 1e9 * sum(known) / wall_ns if known and wall_ns else None

    def latest(values: Sequence[int | None]) -> int | None:
        return next((value for value in reversed(values) if value is not None), None)

    phases = {name: sum(getattr(row.phases_ns, name) or 0 for row in newest) // max(1, steps) for name in PHASES}
    last = rows[-1]
    return CurrentState(
        step=last.step + last.steps - 1,
        last_ns=last.wall_ns // max(1, last.steps),
        median_ns=per_step[len(per_step) // 2],
        mean_ns=wall_ns // max(1, steps),
        phases_ns={name: ns for name, ns in phases.items() if ns},
        steps_per_s=per_second([row.steps for row in newest]) or 0.0,
        samples_per_s=per_second([row.samples for row in newest]),
        tokens_per_s=per_second([row.tokens for row in newest]),
        memory_bytes=latest([row.memory_bytes for row in rows]),
        memory_peak_bytes=latest([row.memory_peak_bytes for row in rows]),
        rss_bytes=latest([row.rss_bytes for row in rows]),
    )


def _recorded(row: Step) -> bool:
    return row.kind != "timed"


def print_live(
    live: RunFollower, shown: RankFollower, diagnosis: Diagnosis | None, late: LateNow | None, console: Console
) -> None:
    """Print the current state of a run, with the steps of the rank ``shown``, the late rank and the findings so far."""
    now = summarize(shown.tail.rows)
    print_text(Text(f"{live.path} · {_rank_title(live, shown)} · {rank_state(shown)}", style="dim"), console)
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
    if late is not None:
        print_text(Text(late.message, style="yellow"), console)
    _window(shown, console)
    _findings(diagnosis, console)


def live_line(live: RunFollower, shown: RankFollower, late: LateNow | None) -> str:
    """The current state in one line, for a pipe."""
    now = summarize(shown.tail.rows)
    if now is None:
        return f"no step yet  {rank_state(shown)}"
    total = sum(now.phases_ns.values())
    phases = " ".join(f"{name} {percent(ns, total)}" for name, ns in now.phases_ns.items())
    parts = [_step(now, live), *_rates(now), *_memory(now), phases]
    if shown.rank is not None and shown.rank.windows:
        parts.append(f"window {shown.rank.windows[-1].index}")
    if late is not None:
        parts.append(f"late: rank {late.rank}, {ms(late.cost_ns)}/step")
    return "  ".join([*parts, rank_state(shown)])


def _rank_title(live: RunFollower, shown: RankFollower) -> str:
    ranks = live.run.world_size if live.run is not None else len(live.ranks)
    place = f" on {shown.rank.host}, process {shown.rank.pid}" if shown.rank is not None else ""
    return (f"rank {shown.index} of {ranks}" if ranks > 1 else f"rank {shown.index}") + place


def rank_state(shown: RankFollower) -> str:
    """Whether the rank is running, in a few words."""
    if shown.rank is not None and shown.rank.ending is not None:
        ended = end_unix_s(shown.rank)
        ago = f" {duration(max(0.0, time.time() - ended) * 1e9)} ago" if ended is not None else ""
        return f"ended{ago}: {shown.rank.ending}"
    if shown.died:
        return "its process ended without recording why"
    silent_s = time.time() - shown.written_unix_s
    return f"nothing written for {duration(silent_s * 1e9)}" if silent_s > SILENT_S else "running"


def _step(now: CurrentState, live: RunFollower) -> str:
    total = live.run.total_steps if live.run is not None else None
    planned = f" of {total:,}" if total is not None else ""
    text = f"step {now.step:,}{planned}  {ms(now.last_ns)}, median {ms(now.median_ns)}"
    left = total - now.step - 1 if total is not None else 0
    return text + (f", {duration(left * now.mean_ns)} left" if left > 0 else "")


def _rates(now: CurrentState) -> list[str]:
    return rates(now.steps_per_s, now.samples_per_s, now.tokens_per_s)


def _memory(now: CurrentState) -> list[str]:
    named = (("device", now.memory_bytes), ("device peak", now.memory_peak_bytes), ("process", now.rss_bytes))
    return [f"{what} {size(value)}" for what, value in named if value is not None]


def _sparkline(rows: Sequence[Step], console: Console) -> Text:
    """The newest steps, one character each, by their time; those that perfkit recorded are dim."""
    newest = list(rows)[-console.width :]
    walls = [row.wall_ns // max(1, row.steps) for row in newest]
    # The scale begins at 0: a step of twice the time is twice as high.
    top = max(walls) or 1
    blocks = _ASCII_BLOCKS if console.options.ascii_only else _BLOCKS
    line = Text()
    for row, wall in zip(newest, walls, strict=True):
        line.append(blocks[min(7, 8 * wall // top)], style="dim" if _recorded(row) else "cyan")
    return line


def _ranks(live: RunFollower) -> str:
    states = {index: now for index, one in live.ranks.items() if (now := summarize(one.tail.rows)) is not None}
    not_running = [
        f"rank {index} {state}" for index, one in live.ranks.items() if (state := rank_state(one)) != "running"
    ]
    missing = (live.run.world_size if live.run is not None else 0) - len(live.ranks)
    parts = [f"{len(live.ranks)} ranks" + (f", {missing} missing" if missing > 0 else "")]
    if states:
        slowest = max(states, key=lambda index: states[index].median_ns)
        fastest = min(states, key=lambda index: states[index].median_ns)
        at = [now.step for now in states.values()]
        parts.append(
            f"median {ms(states[fastest].median_ns)} (rank {fastest}) to "
            f"{ms(states[slowest].median_ns)} (rank {slowest}), "
            f"at steps {min(at):,} to {max(at):,}"
        )
    more = [f"{len(not_running) - _NAMED} more"] if len(not_running) > _NAMED else []
    return "; ".join([*parts, *not_running[:_NAMED], *more])


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
    causes = diagnosis.causes
    for number, (finding, _) in enumerate(causes[:_FINDINGS], 1):
        place = f"  {text}" if (text := shown_places(finding)) else ""
        cost = f"  {ms(finding.cost_ns)}/step" if finding.cost_ns is not None else ""
        print_line(Text(f"{number} {finding.rule}{place}{cost}"), console)
    if len(causes) > _FINDINGS:
        print_line(
            Text(f"{len(causes) - _FINDINGS} more: perfkit diagnose {Path(diagnosis.source)}", style="dim"), console
        )
