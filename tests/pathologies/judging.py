"""Runs a program of the suite under ``perfkit run`` and compares the answer with its label."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from suite import Program

import perfkit
from perfkit.findings import Outcome
from perfkit.run.reading import RankFolder
from perfkit.run.records import Step

#: The first steps include what is made once: thread pools, caches of torch, compiled code, workers.
_WARMUP_STEPS = 3
#: Seconds after which a program counts as hanging: the longest takes 15 on an idle machine.
TIMEOUT_S = 180
_MARK = re.compile(r"# (spent|change): ([a-z0-9-]+)")

Target = Literal["spent", "change"]


class Run(NamedTuple):
    """One run of a program: its exit code, its diagnosis (None: it wrote none) and its steps.

    ``step_ns`` is the mean of the timed steps if the program's cost comes in bursts, else their median; None if no step
    was recorded.
    """

    code: int
    diagnosis: dict[str, Any] | None
    step_ns: float | None
    steps: int
    stderr: str


class Answer(NamedTuple):
    """What a broken program's diagnosis says, compared with the label.

    ``right_cause`` is about the first finding, ``in_three`` about the first three. ``right_spent`` and ``right_change``
    are about the first finding's places; None where the label says that the place is outside the program. The right
    place of a wrong cause does not count.
    """

    first: str | None = None
    right_cause: bool = False
    in_three: bool = False
    right_spent: bool | None = False
    right_change: bool | None = False
    spent: str | None = None
    change: str | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    cost_ns: int | None = None


def marked_lines(program: Program, target: Target) -> set[int]:
    """The lines of the statements marked with ``# TARGET: RULE``; only the header of a compound statement."""
    text = program.path.read_text()
    marks = {
        number
        for number, line in enumerate(text.splitlines(), start=1)
        if any(kind == target for kind, _ in _MARK.findall(line))
    }
    lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.stmt):
            continue
        body = getattr(node, "body", None)
        last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
        span = set(range(node.lineno, last + 1)) or {node.lineno}
        if span & marks:
            lines |= span
    return lines | marks


def marked_rules(program: Program, target: Target) -> set[str]:
    """The rule ids that the marks in the program name."""
    return {rule for kind, rule in _MARK.findall(program.path.read_text()) if kind == target}


def environment() -> dict[str, str]:
    """The environment with one thread per process: spinning OpenMP threads of two processes slow each other a lot."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def start(
    program: Program, folder: Path, *options: str, fixed: bool, stderr: int = subprocess.DEVNULL
) -> subprocess.Popen[str]:
    """Start the program, or its corrected twin, under ``perfkit run`` with ``options``."""
    launcher = [sys.executable]
    if program.ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={program.ranks}"]
    recorder = ["-m", "perfkit", "run", "--overwrite", "--out", str(folder.resolve()), *options]
    return subprocess.Popen(
        [*launcher, *recorder, str(program.path), *(["--fixed"] if fixed else [])],
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        text=True,
        env=environment(),
        cwd=program.folder,
        # A process group of its own, so that ranks and loader workers can be killed with it.
        start_new_session=True,
    )


def run(program: Program, folder: Path, *, fixed: bool) -> Run:
    """Run the program once and read what perfkit wrote into ``folder``."""
    child = start(program, folder, "--syncs=auto", fixed=fixed, stderr=subprocess.PIPE)
    try:
        _, stderr = child.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return Run(124, None, None, 0, f"{program.name} ran for more than {TIMEOUT_S} s")
    path = folder / "diagnosis.json"
    diagnosis = json.loads(path.read_text()) if path.is_file() else None
    return _with_steps(program, folder, child.returncode, diagnosis, stderr)


def reread(program: Program, folder: Path) -> Run:
    """An earlier run, diagnosed again; its exit code is not stored, so it is 0."""
    return _with_steps(program, folder, 0, json.loads(perfkit.diagnose(folder).to_json()), "")


def _with_steps(program: Program, folder: Path, code: int, diagnosis: dict[str, Any] | None, stderr: str) -> Run:
    times = [row.wall_ns for row in timed_steps(folder)]
    return Run(code, diagnosis, typical(program, times), len(times), stderr)


def typical(program: Program, times: Sequence[float]) -> float | None:
    """The program's step: the median, or the mean if its cost comes in some steps only."""
    if not times:
        return None
    return statistics.fmean(times) if program.bursts else float(statistics.median(times))


def timed_steps(folder: Path) -> list[Step]:
    """Rank 0's ordinary steps, without the first ones."""
    steps = RankFolder(folder / "rank-0", 0).steps
    return [row for row in steps if row.kind == "timed" and row.step >= _WARMUP_STEPS]


def answer(program: Program, got: Run) -> Answer:
    """Compare the diagnosis of a broken program with its label."""
    findings = got.diagnosis["findings"] if got.diagnosis else []
    if not findings:
        return Answer()
    first = findings[0]
    spent = first["spent"]
    # A change that would repeat the place where time is spent is not written down.
    change = first["change"] or spent
    right_cause = first["rule"] in program.accepted
    return Answer(
        first["rule"],
        right_cause,
        any(finding["rule"] in program.accepted for finding in findings[:3]),
        _is_marked(program, "spent", spent) if right_cause else False,
        _is_marked(program, "change", change) if right_cause else False,
        _place(spent),
        _place(change),
        first["saving_low_ns"],
        first["saving_high_ns"],
        first["cost_ns"],
    )


def _is_marked(program: Program, target: Target, place: dict[str, Any] | None) -> bool | None:
    if target in program.outside:
        return None
    if place is None or Path(place["file"]).name != program.path.name:
        return False
    return place["line"] in marked_lines(program, target)


def outcome(got: Run) -> Outcome:
    """The verdict in a word; a program without a diagnosis has got none."""
    said: Outcome = got.diagnosis["outcome"] if got.diagnosis else "cannot-tell"
    return said


def alarms(got: Run) -> list[str]:
    """The problems that a healthy program's diagnosis reports: rule and place."""
    findings = got.diagnosis["findings"] if got.diagnosis else []
    return [
        f"{finding['rule']} at {place}" if (place := _place(finding["spent"])) else finding["rule"]
        for finding in findings
        if finding["severity"] != "info"
    ]


def _place(place: dict[str, Any] | None) -> str | None:
    return f"{Path(place['file']).name}:{place['line']}" if place is not None else None
