"""Runs a program of the suite under ``perfkit run`` and holds the answer against its label."""

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
from typing import Any, NamedTuple

from suite import HERE, Program

import perfkit

#: The first steps pay for what is made once: thread pools, caches of torch, compiled code, workers.
_WARM = 3
#: Seconds after which a program hangs: the longest takes 15 on a free machine.
TIMEOUT = 180
_MARK = re.compile(r"# planted: ([a-z0-9-]+)")


class Run(NamedTuple):
    """One run of a program: its exit code, its diagnosis (None where there is none) and its steps.

    ``step_ns`` is the mean of the steps outside windows and dry steps where the program's cost comes in bursts,
    else their median; None where no step was seen.
    """

    code: int
    diagnosis: dict[str, Any] | None
    step_ns: float | None
    steps: int
    stderr: str


class Answer(NamedTuple):
    """What was found first in a broken program. A right line of a wrong cause does not count."""

    first: str | None
    right_cause: bool
    right_line: bool
    at: str | None
    low_ns: int | None
    high_ns: int | None
    cost_ns: int | None


def marked_lines(program: Program) -> set[int]:
    """The lines of the statements marked as planted: of a compound statement, its header alone."""
    text = program.path.read_text()
    marks = {number for number, line in enumerate(text.splitlines(), start=1) if _MARK.search(line)}
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


def marked_rules(program: Program) -> set[str]:
    """The rule ids that the marks in the program name."""
    return set(_MARK.findall(program.path.read_text()))


def environment() -> dict[str, str]:
    """One thread per process: OpenMP threads that spin against a neighbour slow a step many times over."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def start(
    program: Program, folder: Path, *options: str, fixed: bool, stderr: int = subprocess.DEVNULL
) -> subprocess.Popen[str]:
    """Start the program, or its twin, under ``perfkit run`` with these options of its own."""
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
        cwd=HERE,
        # A group of its own: ranks and loader workers end with it.
        start_new_session=True,
    )


def run(program: Program, folder: Path, *, fixed: bool) -> Run:
    """Run the program once and read what perfkit left in ``folder``."""
    child = start(program, folder, "--syncs=auto", fixed=fixed, stderr=subprocess.PIPE)
    try:
        _, stderr = child.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return Run(124, None, None, 0, f"{program.name} ran for more than {TIMEOUT} s")
    path = folder / "diagnosis.json"
    diagnosis = json.loads(path.read_text()) if path.is_file() else None
    return _with_steps(program, folder, child.returncode, diagnosis, stderr)


def reread(program: Program, folder: Path) -> Run:
    """What a run left, diagnosed anew; its exit code is not kept."""
    return _with_steps(program, folder, 0, json.loads(perfkit.diagnose(folder).to_json()), "")


def _with_steps(program: Program, folder: Path, code: int, diagnosis: dict[str, Any] | None, stderr: str) -> Run:
    times = [row["wall_ns"] for row in rows_of(folder)]
    return Run(code, diagnosis, typical(program, times), len(times), stderr)


def typical(program: Program, times: Sequence[float]) -> float | None:
    """The program's step: the median, or the mean where its cost comes in some steps only."""
    if not times:
        return None
    return statistics.fmean(times) if program.bursts else float(statistics.median(times))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Rank 0's steps as they are without a window or a dry run, and without the first."""
    path = folder / "rank-0" / "steps.jsonl"
    if not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if row.get("window") is None and not row.get("dry") and row["step"] >= _WARM]


def answer(program: Program, got: Run) -> Answer:
    """Hold the first finding of a broken program against its label."""
    findings = got.diagnosis["findings"] if got.diagnosis else []
    if not findings:
        return Answer(None, False, False, None, None, None, None)
    first = findings[0]
    right_cause = first["rule"] in program.accepted
    lines = marked_lines(program)
    here = first["file"] is not None and Path(first["file"]).name == program.path.name and first["line"] in lines
    at = f"{Path(first['file']).name}:{first['line']}" if first["file"] else None
    return Answer(
        first["rule"],
        right_cause,
        right_cause and here,
        at,
        first["saving_low_ns"],
        first["saving_high_ns"],
        first["cost_ns"],
    )


def alarms(got: Run) -> list[str]:
    """Findings that tell a healthy program of a problem: rule and place."""
    findings = got.diagnosis["findings"] if got.diagnosis else []
    return [
        f"{one['rule']}" + (f" at {Path(one['file']).name}:{one['line']}" if one["file"] else "")
        for one in findings
        if one["severity"] != "info"
    ]
