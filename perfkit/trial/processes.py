"""The processes of a rerun: the program, its ranks, its workers, and what they have left behind.

A launcher puts its ranks into sessions of their own, and a daemon leaves its parent. So a rerun is given a variable
that all it starts inherits. Run as a script, this file ends them all once perfkit has gone, also where it was killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

#: Set in a rerun's environment to the path of its plan.json.
PLAN_VARIABLE = "PERFKIT_RERUN"

_PROC = Path("/proc")
#: How long killed processes are waited for.
_END_S = 10.0
#: Looks in a row, 20 ms apart, in which nothing is found before all are taken for gone (chosen).
_EMPTY_LOOKS = 3


def family_of(process: int) -> list[int]:
    """A process and all below it, parents first; empty where it has ended."""
    if _kernel_lists_children():
        found = [process] if _parent_of(process) is not None else []
        for each in found:
            found.extend(_listed_children(each))
        return found
    parents = _parents_of_all()
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    found = [process] if process in parents else []
    for each in found:
        found.extend(children.get(each, ()))
    return found


@cache
def _kernel_lists_children() -> bool:
    """Whether Linux lists the children of a process (an option of the kernel), so that not all need to be looked at."""
    return (_PROC / "self" / "task" / str(os.getpid()) / "children").exists()


def _listed_children(process: int) -> list[int]:
    """The children that still run. One may be missing while another one ends (proc_pid_task_children(5))."""
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{process}/task"):
            # Plain files: this is done at each change of turns, and pathlib takes ten times as long.
            with suppress(OSError), open(f"/proc/{process}/task/{task}/children", encoding="ascii") as children:
                found += [child for child in map(int, children.read().split()) if _parent_of(child) is not None]
    return found


def _parent_of(process: int) -> int | None:
    """The parent of a process, on Linux; None where the process has ended, also where its exit code waits."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as stat:
            # "PID (NAME) STATE PARENT ...": a name may contain anything.
            state, parent = stat.read().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state == "Z" else int(parent)


def started_for(plan: Path) -> list[int]:
    """The processes that were started for a plan, whatever has become of their parents; Linux only."""
    variable = f"{PLAN_VARIABLE}={plan}\0".encode()
    found = []
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or it is another user's
            if variable in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def watch(plan: Path) -> subprocess.Popen[bytes]:
    """Start a process that ends those of a plan when its standard input is closed, by `end_watched` or by our death."""
    # Neither this environment nor site-packages: it shall cost nothing, and not be found as one of those.
    command = [sys.executable, "-I", "-S", __file__, str(plan)]
    environment = {name: value for name, value in os.environ.items() if name != PLAN_VARIABLE}
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, start_new_session=True
    )


def end_watched(watcher: subprocess.Popen[bytes]) -> None:
    """End the processes that a watcher watches; returns when all have gone, and at once from the second time on."""
    watcher.communicate()


def _end_all(plan: Path) -> None:
    # Again until none is found, since each may have started another; one that waits for a device dies later. And once
    # more, several times: a process that is just replaced by a program (exec) has no environment for a moment.
    until, missed = time.monotonic() + _END_S, 0
    while missed < _EMPTY_LOOKS and time.monotonic() < until:
        found = started_for(plan)
        missed = 0 if found else missed + 1
        send(found, signal.SIGKILL)
        time.sleep(0.02)


def send(processes: list[int], number: signal.Signals) -> None:
    """Send a signal to those that still run."""
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def _parents_of_all() -> dict[int, int]:
    """The parent of each process of this machine that still runs."""
    found = {}
    if not (_PROC / "self" / "stat").exists():
        command = ["ps", "-axo", "pid=,ppid=,stat="]
        for line in subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines():
            process, parent, state = line.split()[:3]
            if not state.startswith("Z"):
                found[int(process)] = int(parent)
        return found
    for folder in _PROC.glob("[0-9]*"):
        if (known := _parent_of(int(folder.name))) is not None:
            found[int(folder.name)] = known
    return found


if __name__ == "__main__":
    sys.stdin.buffer.read()
    _end_all(Path(sys.argv[1]))
