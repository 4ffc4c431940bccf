"""``perfkit watch``: shows a running training on the terminal; only reads its run folder."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfkit._background import BackgroundError, BackgroundProcess
from perfkit._regular_file import read_regular
from perfkit._text import printable
from perfkit._versioned_json import MAX_JSON_BYTES
from perfkit.commands._recordings import recording_or_newest
from perfkit.errors import PerfkitError
from perfkit.run.ending import runs
from perfkit.run.file_names import TRACES
from perfkit.run.folder_claim import RUNS
from perfkit.run.follower import RankFollower, RunFollower
from perfkit.run.reading import is_run_folder, matching

if TYPE_CHECKING:
    from rich.console import Console

    from perfkit.diagnosis import Diagnosis
    from perfkit.reports.live_ranks import LateNow, LateRank

    _Show = Callable[[RunFollower, RankFollower, Diagnosis | None, LateNow | None], None]
    #: Waits so many seconds; returns whether the user quits.
    _Wait = Callable[[float], bool]

#: A diagnosis takes some seconds of one core at low priority: at this interval a few per cent of it.
_DIAGNOSIS_INTERVAL_S = 60.0
#: How long to wait for the diagnosis that a run writes when it ends.
_FINAL_DIAGNOSIS_S = 20.0
#: Other ranks that are read at one refresh; where there are more, a different part each time.
_RANKS_PER_REFRESH = 64


@click.command
@click.argument("run", required=False)
@click.option("--once", is_flag=True, help="Print the current state once and exit.")
@click.option("--wait", is_flag=True, help="Wait until the run folder exists.")
@click.option("--rank", type=click.IntRange(min=0), help="Rank to show. Default: the lowest.")
@click.option(
    "--every", type=click.FloatRange(min=0.2), default=1.0, show_default=True, help="Seconds between refreshes."
)
def watch(run: str | None, once: bool, wait: bool, rank: int | None, every: float) -> int:
    """Show a running training live: step time, phases, throughput, memory, the rank that is late, findings so far.

    Only reads the run folder; training is not affected. Exits when the run ends, or on q or Ctrl-C. If the output is
    not a terminal, prints one line per refresh that has something new.

    RUN: Run folder. Default: the run in runs/ that started last.
    """
    # Imports the rules, which `perfkit run` does not need; it imports this module too.
    from perfkit.reports.console import stdout_console
    from perfkit.reports.live import print_live
    from perfkit.reports.live_ranks import LateRank

    path = _find_run(run, wait=wait, every=every)
    live = RunFollower(path)
    findings, late = _LiveFindings(path), LateRank()
    console = stdout_console()
    try:
        if once:
            for part in range(-(-len(live.ranks) // _RANKS_PER_REFRESH) or 1):
                _read_ranks(live, part)
            findings.finish()
            if (shown := _shown_rank(live, rank)) is None:
                click.echo(printable(f"{live.path}: no rank has started yet"))
            else:
                late.update(live)
                print_live(live, shown, findings.diagnosis, late.now, console)
        elif console.is_terminal:
            with _screen(console) as show, _keyboard() as quits:
                _follow(live, rank, every, findings, late, show, quits)
        else:
            _follow(live, rank, every, findings, late, _line_printer(), _sleep)
    finally:
        findings.close()
    return 0


def _find_run(run: str | None, *, wait: bool, every: float) -> Path:
    """The run folder of that name, or the run in runs/ that started last."""
    while wait and not (is_run_folder(Path(run)) if run is not None else any(map(is_run_folder, matching(RUNS, "*")))):
        time.sleep(every)
    return Path(recording_or_newest(run))


def _read_ranks(live: RunFollower, refresh: int) -> None:
    """Read what is new of the lowest rank and of a part of the others."""
    live.find_ranks()
    ranks = list(live.ranks.values())
    start = refresh * _RANKS_PER_REFRESH % max(1, len(ranks))
    for one in dict.fromkeys([*ranks[:1], *ranks[start : start + _RANKS_PER_REFRESH]]):
        one.poll()


def _shown_rank(live: RunFollower, rank: int | None) -> RankFollower | None:
    if rank is None:
        return next(iter(live.ranks.values()), None)
    shown = live.rank(rank)
    shown.poll()
    return shown


def _follow(
    live: RunFollower,
    rank: int | None,
    every: float,
    findings: _LiveFindings,
    late: LateRank,
    show: _Show,
    quits: _Wait,
) -> None:
    """Refresh until the run ends or the user quits."""
    ended_s: float | None = None
    refresh = 0
    while True:
        _read_ranks(live, refresh)
        shown = _shown_rank(live, rank)
        findings.update()
        late.update(live)
        if shown is not None:
            show(live, shown, findings.diagnosis, late.now)
            if shown.died:
                return
            if shown.rank is not None and shown.rank.ending is not None:
                ended_s = ended_s or time.monotonic()
                overdue = time.monotonic() - ended_s > _FINAL_DIAGNOSIS_S
                exited = shown.is_local and not runs(shown.rank)  # then nothing more will be written
                # Only rank 0 writes a diagnosis.
                if findings.final or shown.index != 0 or overdue or exited:
                    findings.finish()
                    show(live, shown, findings.diagnosis, late.now)
                    return
        refresh += 1
        if quits(every):
            return


class _LiveFindings:
    """What was found so far: the run's own diagnosis.json, or else a diagnosis of its newest window.

    The latter is made by a background process, which writes nothing into the run folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.diagnosis: Diagnosis | None = None
        #: Whether it is the one that the run itself has written.
        self.final = False
        self._modified_ns = 0
        self._process: BackgroundProcess | None = None
        self._started_s = -_DIAGNOSIS_INTERVAL_S
        self._traces = 0

    def update(self) -> None:
        """Read a new diagnosis; start one if there is a new window and the last one is long enough ago."""
        self._read_written()
        if self._process is not None and not self._process.running:
            self._read_output()
        traces = len(matching(self._path, f"rank-*/{TRACES}"))
        due = time.monotonic() - self._started_s >= _DIAGNOSIS_INTERVAL_S
        if not self.final and self._process is None and due and traces > self._traces:
            self._traces, self._started_s = traces, time.monotonic()
            arguments = ("diagnose", str(self._path), "--early", "--json")
            self._process = BackgroundProcess("perfkit", *arguments, timeout_s=_DIAGNOSIS_INTERVAL_S, folder=Path.cwd())

    def finish(self) -> None:
        """`update`, and wait for the diagnosis that is being made."""
        self.update()
        if self._process is not None and not self.final:
            self._read_output()

    def _read_written(self) -> None:
        file = self._path / "diagnosis.json"
        with suppress(OSError):
            modified_ns = file.stat().st_mtime_ns
            if modified_ns != self._modified_ns:
                self._modified_ns = modified_ns
                self._read(read_regular(file, MAX_JSON_BYTES, inside=self._path), final=True)

    def _read_output(self) -> None:
        process, self._process = self._process, None
        # Without a diagnosis the rest is shown as before.
        with suppress(BackgroundError):
            if process is not None and not self.final:
                self._read(process.output(), final=False)

    def _read(self, text: bytes, *, final: bool) -> None:
        # Imports the rules; see `watch`.
        from perfkit.diagnosis import Diagnosis

        try:
            self.diagnosis, self.final = Diagnosis.from_json(text), final
        except PerfkitError:
            # It is damaged, or of another version of perfkit: the run is diagnosed again, also without a window.
            if final:
                self._traces = -1

    def close(self) -> None:
        """End a diagnosis that is being made."""
        if self._process is not None:
            self._process.kill()
            self._read_output()


# -- output and keys


@contextmanager
def _screen(console: Console) -> Iterator[_Show]:
    """A function that replaces what it showed before on a terminal."""
    # rich is loaded only where a terminal is drawn on; see `watch` for the rest.
    from rich.console import Console as InnerConsole
    from rich.live import Live
    from rich.text import Text

    from perfkit.reports.live import print_live  # imports the rules

    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as screen:

        def show(live: RunFollower, shown: RankFollower, diagnosis: Diagnosis | None, late: LateNow | None) -> None:
            # print_live prints lines of the terminal's width; Live wants something to render.
            with open(os.devnull, "w", encoding=console.encoding) as nowhere:
                system: Any = console.color_system
                inner = InnerConsole(width=console.width, force_terminal=True, color_system=system, file=nowhere)
                with inner.capture() as captured:
                    print_live(live, shown, diagnosis, late, inner)
            screen.update(Text.from_ansi(captured.get()), refresh=True)

        yield show


def _line_printer() -> _Show:
    """A function that prints one line where there is a new step or another state."""
    # See `watch`.
    from perfkit.reports.live import live_line, rank_state

    printed: tuple[object, ...] = ()

    def show(live: RunFollower, shown: RankFollower, diagnosis: Diagnosis | None, late: LateNow | None) -> None:
        nonlocal printed
        rows = shown.tail.rows
        current = (rows[-1].step if rows else None, rank_state(shown).split(" ")[0])
        if current != printed:
            printed = current
            click.echo(printable(live_line(live, shown, late)))
            sys.stdout.flush()

    return show


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


@contextmanager
def _keyboard() -> Iterator[_Wait]:
    """A function that waits so many seconds, and returns whether q was pressed meanwhile."""
    if sys.platform == "win32" or sys.stdin is None or not sys.stdin.isatty():
        yield _sleep  # only Ctrl-C quits
        return
    # Not there on Windows.
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def wait(seconds: float) -> bool:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return bool(ready) and os.read(descriptor, 64).lower() in (b"q", b"")

    tty.setcbreak(descriptor)
    try:
        yield wait
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
