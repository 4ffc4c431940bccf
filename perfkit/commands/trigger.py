"""``perfkit trigger``: asks a running training for a window, from any shell that can write into its run folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import typer

from perfkit._stderr import print_message
from perfkit.errors import RunError, UsageError
from perfkit.record.triggers.trigger_watch import FILE
from perfkit.run.atomic import write_atomically
from perfkit.run.file_names import memory_name, spans_name, trace_name
from perfkit.run.follower import SILENT_S, RankFollower, RunFollower, end_unix_s

#: How a run says that it opens no window for a file any more (`perfkit.record.triggers.trigger_watch`).
_REFUSALS = ("the trigger 'file' opened", "no window for 'file'")
#: What a window leaves, by what records it: the first that a run uses is waited for.
_NAMES: dict[str, Callable[[int], str]] = {"kineto": trace_name, "ranges": spans_name, "memory": memory_name}
#: Between two looks at what the run has written; the window itself takes longer.
_POLL_S = 0.2


def trigger(
    run: str = typer.Argument(..., help="Folder of the running training."),
    rank: int | None = typer.Option(None, "--rank", help="The rank that is to record. Default: 0.", min=0),
    every: bool = typer.Option(False, "--all", help="All ranks."),
    wait: bool = typer.Option(False, "--wait", help="Wait until the window is written, and print its trace's path."),
) -> int:
    """Ask a running training for a window: it begins with the next step, within about a second.

    The training needs the trigger "file", which is on unless its triggers= say otherwise. A signal does the same
    where triggers= has "signal".
    """
    if every and rank is not None:
        raise UsageError("--rank N and --all exclude each other: leave one out")
    live = RunFollower(Path(run))
    for one in live.ranks.values():
        one.poll()
    _check_listens(live)
    asked = list(live.ranks.values()) if every else [_chosen(live, 0 if rank is None else rank)]
    running = [one for one in asked if _why_not(one) is None]
    if not running:
        raise RunError(_why_not(asked[0]) or f"{run} has no rank that has begun")
    known = {one.index: _windows(one) for one in running}
    _touch(live.path if every else running[0].folder, live.path, running[0])
    for one in running:
        _doubts(one)
    names = ", ".join(str(one.index) for one in running[:8]) + (", ..." if len(running) > 8 else "")
    print_message(f"asked rank {names} of {run} for a window; it begins with the next step")
    recorders = (live.run.options.get("recorders", "kineto") if live.run is not None else "kineto").split(",")
    name_of = next((_NAMES[name] for name in _NAMES if name in recorders), None)
    return _wait(running, known, name_of) if wait else 0


def _check_listens(live: RunFollower) -> None:
    # Where run.json cannot be read, the default is supposed.
    said = live.run.options.get("triggers") if live.run is not None else "file"
    if said is None:
        raise RunError(f"{live.path} was recorded by a perfkit that has no triggers")
    if "file" not in said.split(","):
        on = f"triggers={tuple(said.split(','))!r}" if said else "triggers=()"
        raise RunError(
            f"{live.path} does not listen for this: it was started with {on}; add 'file' there for the next run"
        )


def _chosen(live: RunFollower, index: int) -> RankFollower:
    if index not in live.ranks:
        have = ", ".join(map(str, list(live.ranks)[:8])) or "none"
        raise UsageError(f"{live.path} has no rank {index} (there are: {have}): name one of them, or --all")
    return live.ranks[index]


def _why_not(one: RankFollower) -> str | None:
    """Why a rank can record no window any more; None where it runs, as far as can be seen."""
    rank = one.rank
    if rank is None:
        return None  # it has begun, and not written yet
    if rank.ending is not None:
        ended = end_unix_s(rank)
        when = f" at {datetime.fromtimestamp(ended):%Y-%m-%d %H:%M:%S}" if ended is not None else ""
        return f"rank {one.index} of {one.folder.parent} has ended{when}: {rank.ending}; there is no step to record"
    if one.died:
        return (
            f"rank {one.index} of {one.folder.parent} has ended: its process {rank.pid} is gone, and has not written "
            "how (it was killed)"
        )
    # Told once for the whole run, because it stays so.
    return next((note for note in rank.notes if note.startswith(_REFUSALS)), None)


def _doubts(one: RankFollower) -> None:
    """Say what may keep a rank from answering."""
    silent_s = time.time() - one.written_unix_s
    if silent_s > SILENT_S:
        print_message(f"rank {one.index} has written nothing for {silent_s:.0f} s: it is in a very long step, or dead")
    if one.rank is not None and not one.is_local:
        print_message(
            f"rank {one.index} runs on {one.rank.host}: it answers as soon as it sees the file in the shared folder"
        )


def _touch(folder: Path, run: Path, one: RankFollower) -> None:
    """Touch the file that the run looks at; replaced, because one that another user made cannot be touched."""
    try:
        write_atomically(folder / FILE, b"")
    except OSError as error:
        try:
            owner = folder.owner()
        except (KeyError, OSError):
            owner = "its owner"
        pid = f", or kill -USR2 {one.rank.pid} if it listens for signals" if one.rank is not None else ""
        raise UsageError(
            f"{folder} cannot be written to ({error.strerror}); it belongs to {owner}: ask {owner} to "
            f"run `perfkit trigger {run}`, or to let you write there (chmod g+w){pid}"
        ) from error


def _windows(one: RankFollower) -> int:
    return len(one.rank.windows) if one.rank is not None else 0


def _wait(ranks: list[RankFollower], known: dict[int, int], name_of: Callable[[int], str] | None) -> int:
    """Print the path of what each rank's window left as soon as it is there; 1 where a window did not come."""
    waiting = {one.index: one for one in ranks}
    failed = 0
    while waiting:
        for index, one in list(waiting.items()):
            one.poll()
            answer = _answer(one, known[index], name_of)
            if answer is None:
                continue
            del waiting[index]
            if isinstance(answer, Path):
                typer.echo(str(answer))
            else:
                print_message(answer)
                failed = 1
        if waiting:
            time.sleep(_POLL_S)
    return failed


def _answer(one: RankFollower, known: int, name_of: Callable[[int], str] | None) -> Path | str | None:
    """What the window that was asked for left, or why there will be none; None as long as that is open."""
    rank = one.rank
    if rank is None:
        return None
    for window in rank.windows[known:]:
        if (window.reason or "").startswith("trigger: file"):
            path = one.folder / name_of(window.index) if name_of is not None else one.folder
            if path.exists():
                return path
            if window.problem is not None or rank.ending is not None:
                return f"window {window.index} of rank {one.index} has no trace: {window.problem or 'see its folder'}"
            return None
    return _why_not(one)
