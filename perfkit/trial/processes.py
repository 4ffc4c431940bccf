"""The processes of a rerun: the program, its ranks, its workers, and what they have left behind.

A launcher puts its ranks into sessions of their own, and a daemon leaves its parent. So a rerun is given a variable
that all it starts inherits.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

#: Set in a rerun's environment to the path of its plan.json.
PLAN_VARIABLE = "PERFKIT_RERUN"

_PROC = Path("/proc")


def family_of(process: int) -> list[int]:
    """A process and all below it, parents first; empty where it has ended."""
    parents = _parents_of_all()
    if process not in parents:
        return []
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    found = [process]
    for each in found:
        found.extend(children.get(each, ()))
    return found


def started_for(plan: Path) -> list[int]:
    """The processes that were started for a plan, whatever has become of their parents; Linux only."""
    variable = f"{PLAN_VARIABLE}={plan}\0".encode()
    found = []
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or it is another user's
            if variable in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


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
        with suppress(OSError):
            # "PID (NAME) STATE PARENT ...": a name may contain anything.
            state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z":
                found[int(folder.name)] = int(parent)
    return found
