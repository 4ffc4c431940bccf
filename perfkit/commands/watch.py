"""``perfkit watch``: a running training on the terminal, read from its folder and never touched."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer

from perfkit.errors import PerfkitError, UsageError
from perfkit.run.file_names import TRACES
from perfkit.run.follower import RankFollower, RunFollower, newest_run, process_runs
from perfkit.run.reading import is_run_folder

if TYPE_CHECKING:
    from perfkit.diagnosis import Diagnosis

#: A diagnosis takes some seconds of one core, at low priority; so far apart it is a few per cent of one.
_DIAGNOSE_EVERY_S = 60.0
#: How long the diagnosis that a run writes at its end is waited for.
_PATIENCE_S = 20.0
#: Other ranks that are looked at in one refresh; of more than these a part each time.
_OTHERS = 64


def watch(
    run: str | None = typer.Argument(None, help="Folder of a run. Default: the newest one in runs/."),
    once: bool = typer.Option(False, "--once", help="Print one picture and exit."),
    wait: bool = typer.Option(False, "--wait", help="Wait for the folder, if it is not there yet."),
    rank: int | None = typer.Option(None, "--rank", help="The rank to show. Default: the lowest.", min=0),
    every: float = typer.Option(1.0, "--every", help="Seconds between two pictures.", min=0.2),
) -> int:
    """Show a running training live: step time, phases, throughput, memory, findings so far, the last window.

    Only reads, and a training does not notice. Ends with the run; q or Ctrl-C leaves it. In a pipe each refresh that
    has something new prints one line.
    """
    # Loads the rules, which `perfkit run`, for which this file is imported too, does not need.
    from perfkit.reports.console import stdout_console

    path = _find(run, wait=wait, every=every)
    live = RunFollower(path)
    findings = _Findings(path)
    console = stdout_console()
    view = _Pictures(console) if console.is_terminal and not once else None
    try:
        if once:
            _look(live, 0)
            findings.finish()
            _print_once(live, _shown(live, rank), findings.diagnosis, console)
        elif view is not None:
            with view.open(), _keys() as left:
                _follow(live, rank, every, findings, view.show, left)
        else:
            _follow(live, rank, every, findings, _line_printer(), _no_keys)
    finally:
        findings.close()
    return 0


def _find(run: str | None, *, wait: bool, every: float) -> Path:
    if run is None and not wait:
        return newest_run(Path("runs"))
    path = Path(run) if run is not None else None
    while wait and not (is_run_folder(path) if path is not None else any(map(is_run_folder, Path("runs").glob("*")))):
        time.sleep(every)
    return path or newest_run(Path("runs"))


def _look(live: RunFollower, turn: int) -> None:
    """Read what is new of the lowest rank and of a part of the others."""
    live.find_ranks()
    ranks = list(live.ranks.values())
    start = turn * _OTHERS % max(1, len(ranks))
    for one in dict.fromkeys([*ranks[:1], *ranks[start : start + _OTHERS]]):
        one.poll()


def _shown(live: RunFollower, rank: int | None) -> RankFollower | None:
    if rank is None:
        return next(iter(live.ranks.values()), None)
    if rank not in live.ranks:
        have = ", ".join(map(str, list(live.ranks)[:8])) or "none"
        raise UsageError(f"{live.path} has no rank {rank} (there are: {have}): name one of them")
    live.ranks[rank].poll()
    return live.ranks[rank]


def _follow(live: RunFollower, rank: int | None, every: float, findings: _Findings, show: Any, left: Any) -> None:
    """Show picture after picture until the run ends, or ``left(seconds)``, which also waits, says so."""
    ended_s: float | None = None
    turn = 0
    while True:
        _look(live, turn)
        shown = _shown(live, rank)
        findings.look()
        if shown is not None:
            show(live, shown, findings.diagnosis)
            if shown.gone:
                return
            if shown.rank is not None and shown.rank.ending is not None:
                ended_s = ended_s or time.monotonic()
                if findings.final or shown.index != 0 or time.monotonic() - ended_s > _PATIENCE_S or _exited(shown):
                    findings.finish()
                    show(live, shown, findings.diagnosis)
                    return
        turn += 1
        if left(every):
            return


def _exited(shown: RankFollower) -> bool:
    """Whether the process of a run that has ended is gone too: nothing more will be written."""
    return shown.rank is not None and shown.here and not process_runs(shown.rank.pid)


class _Findings:
    """What was found so far: the run's own diagnosis.json, else a diagnosis made here of its newest window.

    That is a process of its own, of low priority, which writes nothing into the run.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.diagnosis: Diagnosis | None = None
        #: Whether it is the one that the run itself has written.
        self.final = False
        self._stamp = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._began_s = -_DIAGNOSE_EVERY_S
        self._windows = 0

    def look(self) -> None:
        """Take what is new; begin a diagnosis if a window has been written, and the last one was long enough ago."""
        self._take_written()
        if self._process is not None and self._process.poll() is not None:
            self._take_output()
        traces = sum(1 for _ in self._path.glob(f"rank-*/{TRACES}"))
        due = time.monotonic() - self._began_s >= _DIAGNOSE_EVERY_S
        if not self.final and self._process is None and due and traces > self._windows:
            self._windows, self._began_s = traces, time.monotonic()
            self._begin()

    def finish(self) -> None:
        """The same, and wait for the diagnosis."""
        self.look()
        if self._process is not None and not self.final:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_DIAGNOSE_EVERY_S)
            self.look()

    def _take_written(self) -> None:
        file = self._path / "diagnosis.json"
        try:
            stamp = file.stat().st_mtime_ns
            if stamp != self._stamp:
                self._stamp = stamp
                self._take(file.read_bytes(), final=True)
        except OSError:
            return

    def _begin(self) -> None:
        command = [sys.executable, "-m", "perfkit", "diagnose", str(self._path), "--early", "--json"]
        if (nice := shutil.which("nice")) is not None:
            command = [nice, "-n", "10", *command]
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - read when the process has ended, closed then
        self._process = subprocess.Popen(
            command,
            stdout=self._output,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PERFKIT_DISABLE": "1", "OMP_NUM_THREADS": "1"},
        )

    def _take_output(self) -> None:
        process, self._process = self._process, None
        output, self._output = self._output, None
        if output is not None:
            with output:
                output.seek(0)
                if process is not None and process.returncode == 0 and not self.final:
                    self._take(output.read(), final=False)

    def _take(self, text: bytes, *, final: bool) -> None:
        from perfkit.diagnosis import Diagnosis

        # Damaged, or of a newer perfkit: the picture goes on without it.
        with suppress(PerfkitError):
            self.diagnosis, self.final = Diagnosis.from_json(text), final

    def close(self) -> None:
        """End what still works."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._output is not None:
            self._output.close()


# -- where it is shown


class _Pictures:
    """Pictures on a terminal, one over the other."""

    def __init__(self, console: Any) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def open(self) -> Any:
        return self._live

    def show(self, live: RunFollower, shown: RankFollower, diagnosis: Diagnosis | None) -> None:
        from rich.console import Console
        from rich.text import Text

        from perfkit.reports.live import print_live

        # Printed as a diagnosis is, by lines of the terminal's width, and shown as that.
        with open(os.devnull, "w", encoding=self._console.encoding) as nowhere:
            inner = Console(
                width=self._console.width,
                force_terminal=True,
                color_system=self._console.color_system,
                file=nowhere,
            )
            with inner.capture() as captured:
                print_live(live, shown, diagnosis, inner)
        self._live.update(Text.from_ansi(captured.get()), refresh=True)


def _line_printer() -> Any:
    from perfkit.reports.live import line_of, state_of

    told: tuple[object, ...] = ()

    def show(live: RunFollower, shown: RankFollower, diagnosis: Diagnosis | None) -> None:
        nonlocal told
        rows = shown.tail.rows
        news = (rows[-1].step if rows else None, state_of(shown).split(" ")[0])
        if news != told:
            told = news
            typer.echo(line_of(live, shown))
            sys.stdout.flush()

    return show


def _print_once(live: RunFollower, shown: RankFollower | None, diagnosis: Diagnosis | None, console: Any) -> None:
    from perfkit.reports.live import print_live

    if shown is None:
        typer.echo(f"{live.path}: no rank has begun yet")
    else:
        print_live(live, shown, diagnosis, console)


def _no_keys(seconds: float) -> bool:
    time.sleep(seconds)
    return False


@contextmanager
def _keys() -> Iterator[Any]:
    """Give a function that waits so many seconds and says whether q was pressed meanwhile."""
    if sys.platform == "win32" or sys.stdin is None or not sys.stdin.isatty():
        yield _no_keys  # Ctrl-C leaves
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def left(seconds: float) -> bool:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return bool(ready) and os.read(descriptor, 64).lower() in (b"q", b"")

    tty.setcbreak(descriptor)
    try:
        yield left
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
