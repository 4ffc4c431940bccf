"""Whether `perfkit try` claims savings where there are none, and whether its intervals hold a saving that is known.

    python benchmarks/bench_try.py [--runs 50] [--known 20] [--minutes M] [--only PROGRAM] [--json OUT]

A run compares a program of try_program.py with itself, as `perfkit try` does: at most three looks, until something is
decided. In turns, both processes are the same; the program's first comparison gives its floor, and is not counted. In
one process, what is switched is `gradients-to-none`, which changes nothing in these programs. "faster" and "slower" are
both false. A known saving is a sleep of 10 ms less in a step of 40 ms, in turns. Runs of all programs and both methods
take turns until --runs are done, or --minutes are over; with --json, the blocks are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from perfkit.trial.catalog import parse_changes
from perfkit.trial.comparing import Comparer
from perfkit.trial.reruns import RerunPlan, TriedProgram, start_rerun
from perfkit.trial.shift import Blocks, Decision, Shift, decided, floor_of, shift_of
from perfkit.trial.turns import blocks_of_turns, run_in_turns

PROGRAMS = ("tiny", "convolutions", "loader", "python", "optimizer")
#: One look that takes longer is ended; on an idle machine it takes 15 s.
LIMIT_S = 150.0


class Outcome(NamedTuple):
    """What became of one run."""

    program: str
    switched: bool
    looks: list[Blocks]
    floor: float
    decision: Decision
    shift: Shift | None
    step_ms: float | None


class Tried:
    """One program, compared by one method, again and again."""

    def __init__(self, program: str, workspace: Path, *, switched: bool) -> None:
        self.program, self.switched = program, switched
        self._comparer = Comparer(
            TriedProgram("try_program.py", (program,)), workspace, steps=40, progress=lambda what, seconds: None
        )
        self._floor = floor_of([])
        if not switched:
            self._floor = floor_of([self._look()])

    def _look(self) -> Blocks:
        changes = parse_changes(["gradients-to-none"]) if self.switched else []
        return self._comparer.compare([], changes, limit_s=LIMIT_S).blocks

    def run(self) -> Outcome:
        """Look until something is decided."""
        looks: list[Blocks] = []
        decision: Decision = "undecided"
        shift = None
        while decision == "undecided":
            looks.append(self._look())
            shift = shift_of(looks, floor=0.0 if self.switched else self._floor)
            decision = decided(shift, self._floor, len(looks), switched=self.switched)
        times = [time for look in looks for time in look.first]
        step_ms = statistics.median(times) / 1e6 if times else None
        return Outcome(self.program, self.switched, looks, self._floor, decision, shift, step_ms)


def known_saving(workspace: Path) -> Shift | None:
    """The shift between a program and the same with a shorter sleep."""
    plan = RerunPlan(steps=130, log_loss=False)
    programs = [TriedProgram("try_program.py", ("sleeps", *more)) for more in ((), ("--short",))]
    with start_rerun(programs[0], plan, workspace) as first, start_rerun(programs[1], plan, workspace) as second:
        files = [rerun.folder / "run" / "rank-0" / "steps.jsonl" for rerun in (first, second)]
        turns = run_in_turns(
            [first.process, second.process],
            limit_s=LIMIT_S,
            is_ready=lambda which: files[which].exists() and files[which].stat().st_size > 0,
        )
        results = [first.result(), second.result()]
    return shift_of([blocks_of_turns([result.folder for result in results], turns)], floor=floor_of([]))


def table(outcomes: list[Outcome]) -> None:
    """Print what became of the runs, by program and method."""
    print("| program | method | step, ms | runs | looks | false savings | false costs | floor | median width |")
    print("|---|---|---|---|---|---|---|---|---|")
    groups: dict[tuple[str, bool], list[Outcome]] = {}
    for one in outcomes:
        groups.setdefault((one.program, one.switched), []).append(one)
    for (program, switched), group in sorted(groups.items(), key=lambda item: item[0][1]):
        print(_row(program, "switched" if switched else "in turns", group))
    print(_row("all", "", outcomes))


def _row(program: str, method: str, group: list[Outcome]) -> str:
    def median(values: list[float]) -> str:
        return f"{statistics.median(values):.3g}" if values else ""

    cells = (
        program,
        method,
        median([one.step_ms for one in group if one.step_ms is not None]) if method else "",
        len(group),
        sum(len(one.looks) for one in group),
        sum(one.decision == "faster" for one in group),
        sum(one.decision == "slower" for one in group),
        median([one.floor for one in group]) if method else "",
        median([one.shift.high - one.shift.low for one in group if one.shift is not None]),
    )
    return f"| {' | '.join(map(str, cells))} |"


def until(minutes: float, runs: int, do: Callable[[], None]) -> None:
    """Call ``do`` so often, or until the time is over."""
    began = time.monotonic()
    for _ in range(runs):
        if time.monotonic() - began > 60 * minutes:
            break
        do()


def main() -> None:
    """Compare and print the tables."""
    options = argparse.ArgumentParser()
    options.add_argument("--runs", type=int, default=50)
    options.add_argument("--known", type=int, default=20)
    options.add_argument("--minutes", type=float, default=1000.0)
    options.add_argument("--only", choices=PROGRAMS, action="append")
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    kept = given.json.resolve() if given.json is not None else None
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.chdir(Path(__file__).parent)
    outcomes: list[Outcome] = []
    shifts: list[Shift] = []
    with tempfile.TemporaryDirectory() as workspace:
        pairs = [(program, switched) for program in given.only or PROGRAMS for switched in (False, True)]
        tried: dict[tuple[str, bool], Tried] = {}
        order = cycle(pairs)

        def compare() -> None:
            pair = next(order)
            if pair not in tried:
                tried[pair] = Tried(pair[0], Path(workspace), switched=pair[1])
            outcomes.append(tried[pair].run())
            print(*pair, outcomes[-1].decision, outcomes[-1].shift, file=sys.stderr, flush=True)
            if kept is not None:
                kept.write_text(json.dumps([one._asdict() for one in outcomes]))

        def measure_known() -> None:
            shift = known_saving(Path(workspace))
            print("known", shift, file=sys.stderr, flush=True)
            if shift is not None:
                shifts.append(shift)

        until(given.minutes, given.runs, compare)
        until(given.minutes / 3, given.known, measure_known)
    if outcomes:
        table(outcomes)
    if shifts:
        held = sum(one.low <= 0.25 <= one.high for one in shifts)
        width = statistics.median(one.high - one.low for one in shifts)
        print(
            f"\nA known saving of 0.25 was inside {held} of {len(shifts)} intervals of one look, of a median width of "
            f"{width:.2g}."
        )


if __name__ == "__main__":
    main()
