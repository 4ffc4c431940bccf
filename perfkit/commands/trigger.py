"""``perfkit trigger``: requests a window from a running training, in any shell that can write into its run folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import click

from perfkit._stderr import print_message
from perfkit._text import printable
from perfkit.commands._recordings import recording_or_newest
from perfkit.errors import RunError, UsageError
from perfkit.record.triggers.trigger_watch import FILE
from perfkit.run.atomic import write_atomically
from perfkit.run.ending import SILENT_S
from perfkit.run.file_names import memory_name, spans_name, trace_name
from perfkit.run.follower import RankFollower, RunFollower, end_unix_s

#: The kind of trigger that this command uses.
_KIND = "file"
#: Notes by which a run says that it opens no more windows for a file (`perfkit.record.triggers.trigger_watch`).
_REFUSALS = ("the trigger 'file' opened", "no window for 'file'")
#: The file of a window, by its recorder: the first of these recorders that a run uses counts.
_NAMES: dict[str, Callable[[int], str]] = {"kineto": trace_name, "ranges": spans_name, "memory": memory_name}
#: Seconds between two checks of what the run has written; the window itself takes longer.
_POLL_S = 0.2


@click.command
@click.argument("run", required=False)
@click.option("--rank", type=click.IntRange(min=0), help="Rank that records. Default: 0.")
@click.option("--all", "every", is_flag=True, help="Record on all ranks.")
@click.option("--wait", is_flag=True, help="Wait until the window is written, and print the path of its trace.")
def trigger(run: str | None, rank: int | None, every: bool, wait: bool) -> int:
    """Record a window of a running training. It starts with the next step, within about a second.

    The training needs the trigger "file", which is on by default. A signal does the same if triggers= has "signal".

    RUN: Folder of the running training. Default: the run in runs/ that started last.
    """
    if every and rank is not None:
        raise UsageError("--rank N and --all exclude each other: use one of them")
    live = RunFollower(Path(recording_or_newest(run)))
    for one in live.ranks.values():
        one.poll()
    _check_triggers(live)
    chosen = list(live.ranks.values()) if every else [live.rank(rank or 0)]
    running = [one for one in chosen if _refusal(one) is None]
    if not running:
        raise RunError((_refusal(chosen[0]) if chosen else None) or f"{live.path} has no rank that has started")
    known = {one.index: _last_window(one) for one in running}
    _touch(live.path if every else running[0].folder, live.path, running[0])
    for one in running:
        _warn(one)
    names = ", ".join(str(one.index) for one in running[:8]) + (", ..." if len(running) > 8 else "")
    print_message(f"requested a window from rank {names} of {live.path}; it starts with the next step")
    recorders = (live.run.options.get("recorders", "kineto") if live.run is not None else "kineto").split(",")
    name_of = next((_NAMES[name] for name in _NAMES if name in recorders), None)
    return _wait(running, known, name_of) if wait else 0


def _check_triggers(live: RunFollower) -> None:
    # If run.json cannot be read, the run is assumed to have the default.
    triggers = live.run.options.get("triggers") if live.run is not None else _KIND
    if triggers is None:
        raise RunError(f"{live.path} was recorded by a version of perfkit without triggers")
    kinds = triggers.split(",") if triggers else []
    if _KIND not in kinds:
        raise RunError(
            f"{live.path} was started with triggers={tuple(kinds)!r}, without 'file': add it for the next run"
        )


def _refusal(one: RankFollower) -> str | None:
    """Why a rank cannot record a window any more; None if it runs, as far as is known."""
    rank = one.rank
    if rank is None:
        return None  # it has started, and written nothing yet
    name = f"rank {one.index} of {one.folder.parent}"
    if rank.ending is not None:
        ended = end_unix_s(rank)
        when = f" at {datetime.fromtimestamp(ended):%Y-%m-%d %H:%M:%S}" if ended is not None else ""
        return f"{name} has ended{when}: {rank.ending}; there is no step to record"
    if one.died:
        return f"{name} has ended: its process {rank.pid} does not exist any more, and did not write why (killed?)"
    return next((note for note in rank.notes if note.startswith(_REFUSALS)), None)


def _warn(one: RankFollower) -> None:
    """Print what may keep a rank from recording."""
    silent_s = time.time() - one.written_unix_s
    if silent_s > SILENT_S:
        print_message(f"rank {one.index} has written nothing for {silent_s:.0f} s: it is in a very long step, or dead")
    if one.rank is not None and not one.is_local:
        print_message(f"rank {one.index} runs on {one.rank.host}: it starts when it sees the file in the shared folder")


def _touch(folder: Path, run: Path, one: RankFollower) -> None:
    """Touch the file that the run checks; it is replaced, because another user's file cannot be touched."""
    try:
        write_atomically(folder / FILE, b"")
    except OSError as error:
        try:
            owner = folder.owner()
        except (KeyError, OSError):
            owner = "its owner"
        pid = f", or run kill -USR2 {one.rank.pid} if triggers= has 'signal'" if one.rank is not None else ""
        raise UsageError(
            f"{folder} cannot be written ({error.strerror}); it belongs to {owner}: ask {owner} to "
            f"run `perfkit trigger {run}`, or to allow you to write (chmod g+w){pid}"
        ) from error


def _last_window(one: RankFollower) -> int:
    """The index of the newest window, -1 where there is none; older ones may be gone by the next look."""
    return one.rank.windows[-1].index if one.rank is not None and one.rank.windows else -1


def _wait(ranks: list[RankFollower], known: dict[int, int], name_of: Callable[[int], str] | None) -> int:
    """Print the path of each rank's file as soon as it is there; returns 1 if a window did not come."""
    waiting = {one.index: one for one in ranks}
    failed = 0
    while waiting:
        for index, one in list(waiting.items()):
            one.poll()
            result = _result(one, known[index], name_of)
            if result is None:
                continue
            del waiting[index]
            if isinstance(result, Path):
                # A program that reads this opens the file; a terminal would act on the name of a folder.
                print(printable(str(result)) if sys.stdout.isatty() else result, flush=True)
            else:
                print_message(result)
                failed = 1
        if waiting:
            time.sleep(_POLL_S)
    return failed


def _result(one: RankFollower, known: int, name_of: Callable[[int], str] | None) -> Path | str | None:
    """The file of the requested window, or why there will be none; None while that is open."""
    rank = one.rank
    if rank is None:
        return None
    for window in rank.windows:
        if window.index > known and (window.reason or "").startswith(f"trigger: {_KIND}"):
            path = one.folder / name_of(window.index) if name_of is not None else one.folder
            if path.exists():
                return path
            if window.problem is not None or rank.ending is not None:
                return f"window {window.index} of rank {one.index} has no trace: {window.problem or 'see its folder'}"
            return None
    return _refusal(one)
