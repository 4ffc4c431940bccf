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
from typing import Any, NamedTuple

from suite import Program

import perfkit
from perfkit.run.reading import RankFolder
from perfkit.run.records import Step

#: The first steps include what is made once: thread pools, caches of torch, compiled code, workers.
_WARMUP_STEPS = 3
#: Seconds after which a program counts as hanging: the longest takes 15 on an idle machine.
TIMEOUT_S = 180
_MARK = re.compile(r"# (?:spent|change): ([a-z0-9-]+)")


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
    """A broken program's first finding, compared with the label. The right line of a wrong cause does not count."""

    first: str | None = None
    right_cause: bool = False
    right_line: bool = False
    at: str | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    cost_ns: int | None = None


def marked_lines(program: Program) -> set[int]:
    """The lines of the statements marked as planted; only the header of a compound statement."""
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
    """Compare the first finding of a broken program with its label."""
    findings = got.diagnosis["findings"] if got.diagnosis else []
    if not findings:
        return Answer()
    first = findings[0]
    spent = first["spent"]
    right_cause = first["rule"] in program.accepted
    on_marked_line = (
        spent is not None and Path(spent["file"]).name == program.path.name and spent["line"] in marked_lines(program)
    )
    return Answer(
        first["rule"],
        right_cause,
        right_cause and on_marked_line,
        _place(first),
        first["saving_low_ns"],
        first["saving_high_ns"],
        first["cost_ns"],
    )


def alarms(got: Run) -> list[str]:
    """The problems that a healthy program's diagnosis reports: rule and place."""
    findings = got.diagnosis["findings"] if got.diagnosis else []
    return [
        f"{finding['rule']} at {place}" if (place := _place(finding)) else finding["rule"]
        for finding in findings
        if finding["severity"] != "info"
    ]


def _place(finding: dict[str, Any]) -> str | None:
    spent = finding["spent"]
    return f"{Path(spent['file']).name}:{spent['line']}" if spent is not None else None
