"""How a run ended that did not write so itself: its process was killed, or still runs."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from perfkit.run.records import Rank

#: A run writes rows once a second and rank.json every 30 s. A run without writes for so long is inside one very long
#: step, or dead.
SILENT_S = 120
#: Maximum difference between the two clocks by which the start of a process and that of its run are known.
_CLOCKS_S = 2.0


def unwritten_end(rank: Rank, folder: Path) -> str | None:
    """A sentence about a run of ``folder``, a rank's, that wrote no end; None where it wrote one, or still runs."""
    if rank.ending is not None or runs(rank):
        return None
    written = written_unix_s(folder)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(written)) if written else "an unknown time"
    if is_local(rank):
        return (
            f"the run wrote no end, and its process {rank.pid} is gone: it was killed (SIGTERM, SIGKILL, out of "
            f"memory), called os._exit, or the disk was full; the last file is of {when}, and up to 64 steps or 2 s "
            "after it are missing"
        )
    if time.time() - written > SILENT_S:
        return (
            f"the run wrote no end, and nothing since {when}: on {rank.host}, its process {rank.pid} is in a very "
            "long step, or was killed"
        )
    return None


def is_local(rank: Rank) -> bool:
    """Whether the rank runs, or ran, on this machine."""
    return rank.host == socket.gethostname()


def runs(rank: Rank) -> bool:
    """Whether the rank's process runs on this machine."""
    if not is_local(rank) or not process_runs(rank.pid):
        return False
    started_s = _started_unix_s(rank.pid)
    # The system gives the number of a process that has ended to another one.
    return started_s is None or not rank.clock_pairs or started_s < rank.clock_pairs[0].unix_ns / 1e9 + _CLOCKS_S


def process_runs(pid: int) -> bool:
    """Whether a process with this id runs on this machine."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # no system has such a number
        return False
    except OSError:
        return True  # another user's
    return _stat_fields(pid)[:1] not in (["Z"], ["X"])  # it has ended, and its parent has not asked for its exit code


def _started_unix_s(pid: int) -> float | None:
    """When a process started, in unix seconds; None where the system does not say."""
    fields = _stat_fields(pid)
    if len(fields) < 20:
        return None
    # proc(5): field 22, the first of these is field 3; in ticks since the machine was started.
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _stat_fields(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # not on this system
        return []
    return text.rpartition(")")[2].split()  # the name before it may hold anything


def written_unix_s(folder: Path) -> float:
    """When anything was written last into a rank's folder, in unix seconds; 0: nothing yet."""
    return max(modified_unix_s(folder / name) for name in ("rank.json", "steps.jsonl"))


def modified_unix_s(path: Path) -> float:
    """When a file was written last, in unix seconds; 0: there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
