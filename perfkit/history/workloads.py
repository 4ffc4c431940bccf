"""What makes runs comparable: the same program with the same arguments, on the same kind of machine."""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import NamedTuple

from perfkit.history.recorded_runs import RecordedRun
from perfkit.run.records import Run

#: Options that name or number a run, or say where its files are: they do not change the work of a step.
_OF_ONE_RUN = re.compile(
    r"-+(?:.*[-_.])?(?:"
    r"(?:out|output|log|logs|logging|save|ckpt|checkpoint|runs?|results?|tensorboard|tb|root|work)"
    r"(?:[-_]?(?:dir|directory|path|folder|file|to))?"
    r"|(?:run|exp|experiment|job|project|trial)[-_]?(?:name|id)|seed|resume(?:[-_]from(?:[-_]checkpoint)?)?|port|notes?"
    r")|-+(?:name|tag|o)",
    re.IGNORECASE,
)
#: Dates and times in names, as 20261124-091509 or 2026-11-24T09:15.
_TIMESTAMP = re.compile(r"(?<!\d)20\d\d([-_.]?)[01]\d\1[0-3]\d(?:[-_T. ]?[0-2]\d([-_:.]?)[0-5]\d(?:\2[0-5]\d)?)?(?!\d)")
#: What stands for a value that is not compared.
_ANY = "…"
#: The name that Docker gives to a container is random: it says nothing of the machine.
_CONTAINER = re.compile(r"[0-9a-f]{12}")


class Workload(NamedTuple):
    """What runs that are compared have in common."""

    command: str
    machine: str


def workload_of(recorded: RecordedRun, *, any_host: bool = False) -> Workload:
    """The workload of a run; with ``any_host`` the name of its machine does not count."""
    changes = recorded.files.changes
    applied = (
        f" (with {', '.join(one.change for one in changes.changes if one.count)})"
        if changes and any(one.count for one in changes.changes)
        else ""
    )
    return Workload(command_name(recorded.run) + applied, _machine(recorded, any_host=any_host))


def command_name(run: Run | None) -> str:
    """A command without what differs from run to run: folders around, options of one run, their order, timestamps."""
    if run is None or not run.command:
        return "unknown program"
    options: list[str] = []
    others = [_value(run.command[0], run.folder)]
    words = list(run.command[1:])
    while words:
        word = words.pop(0)
        if not re.match(r"--?[A-Za-z]", word):
            others.append(_value(word, run.folder))
            continue
        name, has_value, value = word.partition("=")
        if not has_value and words and not re.match(r"--?[A-Za-z]", words[0]):
            has_value, value = "=", words.pop(0)
        if has_value:
            value = _ANY if _OF_ONE_RUN.fullmatch(name) else _value(value, run.folder)
        options.append(f"{name} {value}" if has_value else name)
    return " ".join((*others, *sorted(options)))


def _value(word: str, folder: str) -> str:
    """A word of a command: a path relative to the program's folder, else without the folders around it."""
    if os.path.isabs(word):
        inside = folder and word.startswith(folder.rstrip("/") + "/")
        word = word[len(folder.rstrip("/")) + 1 :] if inside else os.path.basename(word.rstrip("/"))
    return _TIMESTAMP.sub(_ANY, word)


def _machine(recorded: RecordedRun, *, any_host: bool) -> str:
    """``host gpu-7, 2 x NVIDIA H100, 2 ranks``; of a CPU the cores that the program could use."""
    rank = recorded.rank
    devices = Counter(rank.devices)
    parts = [f"{count} x {name}" if count > 1 else name for name, count in devices.items()]
    if not parts:
        cores = rank.settings.get("cpu_affinity") or rank.settings.get("cpu_count")
        parts = [f"CPU with {cores} core{'s' if cores != '1' else ''}" if cores else "CPU"]
    if not any_host:
        parts.insert(0, "a container" if _CONTAINER.fullmatch(rank.host) else f"host {rank.host}")
    ranks = recorded.run.world_size if recorded.run is not None else 1
    return ", ".join([*parts, f"{ranks} ranks"] if ranks > 1 else parts)
