"""Runs a program with one batch size after the other, or with several numbers of workers, and compares them.

Each value has a process of its own, so that one which runs out of memory takes nothing with it. The values are measured
upwards, and once more downwards where the budget has time: a machine that becomes slower meanwhile does so to all.
"""

from __future__ import annotations

import math
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import msgspec

from perfkit._format import size
from perfkit.errors import RunError, UsageError, check_whole_number
from perfkit.measures.memory.batch_line import RESERVE, fit_line
from perfkit.run.atomic import write_atomically
from perfkit.run.reading import RankFolder, is_run_folder, rank_folders
from perfkit.run.records import Step, Sweep, SweepPoint, Swept, SweptOutcome
from perfkit.trial.catalog import find_changes, parse_change
from perfkit.trial.reruns import (
    CannotTry,
    Rerun,
    RerunPlan,
    RerunResult,
    TriedProgram,
    check_baseline,
    start_rerun,
)
from perfkit.trial.sweep_results import (
    LEAST_STEPS,
    NEAR,
    MeasuredValue,
    accumulation,
    batch_of,
    elements_per_sample,
    halves_of,
    memory_of,
    noise_of,
    peaks_of,
    recommend,
    verdict_of,
)
from perfkit.trial.trying import new_run_folder

#: Time of the steps of a rerun that is enough: short steps are repeated until they fill it.
_MEASURED_NS = 3e9
#: A rerun has no more steps than this, which a training of tiny steps does in a second.
_MOST_STEPS = 2000
#: Share of the budget that one rerun may take: with steps of seconds there is still one of each neighbour.
_SHARE = 0.3
#: Share that one rerun is planned with: five values twice, each with the start of its process.
_PLANNED = 0.05
#: Steps of a rerun whose steps are long: the warm-up, and two halves of five.
_FEWEST = 12
#: A batch that holds less than this share of what it should is not full: samples of different sizes vary by less.
_FULL = 0.8
#: Batches that each worker has loaded before it is asked (prefetch_factor's default): no measure of its speed.
_PREFETCHED = 2

Progress = Callable[[str, float], None]
StartRerun = Callable[[TriedProgram, RerunPlan, Path], Rerun]


class SweepValues(NamedTuple):
    """What ``--sweep`` names: ``batch-size``, ``workers=0,2,4``. Without values they follow from the program."""

    swept: Swept
    values: tuple[int, ...] = ()


def parse_sweep(text: str) -> SweepValues:
    """What ``text`` asks for.

    Raises:
        UsageError: it names nothing that can be swept, or values that it cannot have.
    """
    name, equals, values = text.strip().partition("=")
    known: tuple[Swept, ...] = get_args(Swept)
    found = next((each for each in known if each == name), None)
    if found is None:
        raise UsageError(f"--sweep must name batch-size or workers, as in batch-size=16,32,64; got {text!r}")
    chosen = [parse_change(f"{name}={value.strip()}").value for value in values.split(",")] if equals else []
    return SweepValues(found, tuple(sorted(dict.fromkeys(chosen))))


class Sweeping:
    """One sweep of one program.

    Args:
        workspace: The folder of the reruns.
        steps: Steps of a rerun; more where they are short.
        budget_s: Time for all of it.
        progress: Called with what is run now, and the seconds that are left.
        start: Starts a rerun.
        clock: Seconds.
    """

    def __init__(
        self,
        program: TriedProgram,
        workspace: Path,
        *,
        steps: int,
        budget_s: float,
        progress: Progress = lambda what, left_s: None,
        start: StartRerun = start_rerun,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_whole_number("steps", steps, minimum=LEAST_STEPS)
        self._program = program
        self._workspace = workspace
        self._steps = steps
        self._progress = progress
        self._start = start
        self._clock = clock
        self._began = clock()
        self._budget_s = budget_s
        self._longest_s = 0.0
        self._swept: Swept = "batch-size"
        self._own = 0
        self._values: dict[int, MeasuredValue] = {}
        self._total: dict[str, int] = {}
        self._unit_is_samples = True
        self._notes: list[str] = []

    def run(self, wanted: SweepValues) -> Sweep:
        """Measure, and recommend a value.

        Raises:
            CannotTry: the program cannot be swept: it fails, takes no steps, or does not follow the value.
        """
        self._swept = wanted.swept
        self._measure_own()
        for value in self._upwards(wanted.values):
            if self._may_try(value):
                self._measure(value)
        for value in sorted(self._values, reverse=True):
            if self._values[value].halves and self._has_time():
                self._measure(value)
        return self._result()

    @property
    def own_folder(self) -> Path:
        """The run folder of the unchanged program."""
        return self._values[self._own].results[0].folder

    # -- which values

    def _upwards(self, given: Sequence[int]) -> Iterator[int]:
        """The values after the program's own, smallest first; sizes are doubled until that is no longer faster."""
        if given or self._swept == "workers":
            yield from (value for value in sorted(given or self._suggested()) if value != self._own)
            return
        if self._own > 1:
            yield self._own // 2
        value = 2 * self._own
        while True:
            yield value
            now, before = self._values[value].per_s, self._values.get(value // 4)
            if self._values[value].failure is not None or now is None:
                return
            # Two doublings that gain so little leave about a third of that for all further ones, where a step has a
            # fixed part and one that grows with its batch.
            if before is not None and now < (1 + 2 * NEAR) * (before.per_s or 0.0):
                return
            value *= 2

    def _suggested(self) -> list[int]:
        return list(find_changes()[self._swept].suggested())

    def _may_try(self, value: int) -> bool:
        """Whether a value is worth a rerun; if not, its reason is kept."""
        failed = [one for one in self._values.values() if one.failure is not None and self._own < one.value < value]
        reason = ""
        if not self._has_time():
            reason = "the budget had no time for it"
        elif self._swept == "batch-size":
            reason = f"{failed[0].value} cannot be measured" if failed else self._too_large(value)
        if reason:
            self._fail(value, "not-tried", reason)
        return not reason

    def _too_large(self, value: int) -> str:
        """Why a batch would not fit into the machine's memory: a device reports that, a machine begins to swap."""
        measured = list(self._values.values())
        memory, total = memory_of(measured), self._total.get("resident")
        line = fit_line(peaks_of(measured, memory), points=2)
        if memory != "resident" or total is None or line is None or value < self._own:
            return ""
        needed = line.at(value)
        return f"it would need about {size(needed)} of {size(total)}" if needed > (1 - RESERVE) * total else ""

    def _has_time(self) -> bool:
        return self._left_s >= self._longest_s

    @property
    def _left_s(self) -> float:
        return max(0.0, self._began + self._budget_s - self._clock())

    # -- one value

    def _measure_own(self) -> None:
        """Run the unchanged program, whose value the others are compared with."""
        self._progress("the unchanged program", self._left_s)
        result = self._rerun((), self._steps)
        rank = _rank(result)
        if result.ending != "timed-out":
            check_baseline(result)
        facts = rank.rank
        if self._swept == "batch-size":
            own = batch_of(rank.steps)
        else:
            loaders = [one for one in facts.loaders if one.role == "train"] if facts is not None else []
            own = loaders[0].num_workers if loaders else None
        if own is None:
            raise CannotTry(self._no_effect())
        settings = facts.settings if facts is not None else {}
        self._total = {
            memory: int(settings[name])
            for memory, name in (("device", "cuda:0.total_bytes"), ("resident", "memory_bytes"))
            if name in settings
        }
        self._own = own
        self._unit_is_samples = batch_of(rank.steps) is not None
        self._values[own] = MeasuredValue(own)
        self._add(self._values[own], result, rank.steps)
        if (failure := self._values[own].failure) is not None:
            raise CannotTry(f"the unchanged program must take at least {LEAST_STEPS + 2} steps: {failure.note}")

    def _measure(self, value: int) -> None:
        self._progress(f"{self._swept}={value}", self._left_s)
        one = self._values.setdefault(value, MeasuredValue(value))
        changes = () if value == self._own else (f"{self._swept}={value}",)
        result = self._rerun(changes, self._steps_of(value))
        rows = _rank(result).steps
        if changes and result.steps:
            self._check_effect(value, result, rows)
        self._add(one, result, rows)

    def _steps_of(self, value: int) -> int:
        """Steps that take long enough and not too long, by those of the nearest smaller value."""
        known = [(one.value, one.step_ns) for one in self._values.values() if one.step_ns and one.value <= value]
        own_ns = self._values[self._own].step_ns or math.inf
        nearest, step_ns = max(known, default=(value, own_ns))
        if self._swept == "workers":
            return max(self._steps, _steps_in(_MEASURED_NS, step_ns), 3 * _PREFETCHED * value + LEAST_STEPS)
        # At most, a step's time grows as its batch does.
        most = max(_FEWEST, _steps_in(_PLANNED * self._budget_s * 1e9, step_ns * value / nearest))
        return min(most, max(self._steps, _steps_in(_MEASURED_NS, step_ns)))

    def _rerun(self, changes: tuple[str, ...], steps: int) -> RerunResult:
        began = self._clock()
        plan = RerunPlan(changes=changes, steps=steps, log_loss=False)
        with self._start(self._program, plan, self._workspace) as rerun:
            result = rerun.wait(min(self._left_s, _SHARE * self._budget_s))
        self._longest_s = max(self._longest_s, self._clock() - began)
        return result

    def _check_effect(self, value: int, result: RerunResult, rows: Sequence[Step]) -> None:
        """Check that the program follows the value.

        Raises:
            CannotTry: it does not.
        """
        # A program that was killed has written nothing about its changes.
        unused = bool(result.applied) and all(each.count == 0 for each in result.applied)
        if unused or (self._swept == "batch-size" and batch_of(rows) != value):
            raise CannotTry(self._no_effect())

    def _no_effect(self) -> str:
        if self._swept == "workers":
            return (
                "the program must read its batches from a DataLoader whose data several workers can share, and none "
                "was seen, so workers=N has no effect; perfkit explain workers says what it applies to"
            )
        return (
            "the program must read its batches from a DataLoader with a batch_size, and none was seen, so batch-size=N "
            "has no effect: it builds them by hand or with a sampler of its own; set the size in the program, and "
            "compare a run of each with perfkit compare"
        )

    def _add(self, one: MeasuredValue, result: RerunResult, rows: Sequence[Step]) -> None:
        """Keep what a rerun has shown."""
        one.results.append(result)
        if result.ending == "out-of-memory":
            return self._fail(one.value, "out-of-memory", result.message)
        if result.ending in ("failed", "refused"):
            return self._fail(one.value, "failed", result.message)
        prefetched = _PREFETCHED * one.value if self._swept == "workers" else 0
        halves = halves_of(rows, skip=prefetched)
        if not halves and one.halves:
            return None  # the budget was over in its second rerun
        if not halves:
            return self._fail(one.value, "too-short", f"too few steps: {result.message}")
        if self._swept == "batch-size":
            one.elements = elements_per_sample(rows)
            smallest = min((each for each in self._values.values() if each.elements), key=lambda each: each.value)
            if one.elements is not None and smallest.elements and one.elements < _FULL * smallest.elements:
                return self._fail(one.value, "not-full", "the program's data has fewer samples than one batch")
        one.halves += halves
        return None

    def _fail(self, value: int, outcome: SweptOutcome, note: str) -> None:
        one = self._values.setdefault(value, MeasuredValue(value))
        one.failure = one.failure or SweepPoint(value=value, outcome=outcome, note=note)

    def _result(self) -> Sweep:
        by_batch = self._swept == "batch-size"
        measured = [one for one in self._values.values() if one.failure is None]
        if any(len(one.results) < 2 for one in measured):
            self._notes.append("The budget had no time to measure each value twice.")
        memory = memory_of(measured)
        # The memory of workers is not in the peak, so it decides nothing where they are varied.
        total = self._total.get(memory or "") if by_batch else None
        points = tuple(one.point(memory, total) for _, one in sorted(self._values.items()))
        if (noise := noise_of(points)) > NEAR:
            self._notes.append(
                f"The throughput of one value varied by {noise:.0%}, so that {NEAR:.0%} may be chance: "
                "repeat it on a quieter machine, or with more --steps."
            )
        best = recommend(points, total)
        sweep = Sweep(
            program=_command(self._program),
            verdict="",
            swept=self._swept,
            own=self._own,
            unit="samples" if self._unit_is_samples else "steps",
            points=points,
            memory=memory,
            total_bytes=total,
            reserve=RESERVE,
            line=fit_line(peaks_of(measured, memory)) if by_batch else None,
            recommended=best.value if best is not None else None,
            accumulate=accumulation(self._own, best.value) if by_batch and best is not None else None,
            notes=tuple(self._notes),
            seconds=self._clock() - self._began,
        )
        return msgspec.structs.replace(sweep, verdict=verdict_of(sweep))


def sweep_program(
    program: TriedProgram,
    wanted: SweepValues,
    *,
    folder: Path | None,
    steps: int,
    budget_s: float,
    progress: Progress = lambda what, left_s: None,
) -> Sweep:
    """Sweep a program, and keep the result as ``sweep.json`` in a run folder of the program.

    Args:
        program: What is run.
        wanted: What is varied.
        folder: The run folder; None: a new one in ``runs/``, with the steps of the unchanged program.
        progress: Called with what is run now, and the seconds that are left.
        steps: Steps of a rerun; more where they are short.
        budget_s: Seconds for all of it.

    Raises:
        RunError: the folder holds no run.
        CannotTry: see `Sweeping.run`.
    """
    if folder is not None and not is_run_folder(folder):
        raise RunError(f"{folder} holds no run: pass a folder that perfkit run wrote, or leave it out")
    with tempfile.TemporaryDirectory(prefix="perfkit-sweep-") as name:
        sweeping = Sweeping(program, Path(name), steps=steps, budget_s=budget_s, progress=progress)
        sweep = sweeping.run(wanted)
        if folder is None:
            folder = new_run_folder(program)
            shutil.copytree(sweeping.own_folder, folder)
    write_atomically(folder / "sweep.json", sweep.to_json().encode())
    return sweep


def _steps_in(ns: float, step_ns: float) -> int:
    return min(_MOST_STEPS, math.ceil(ns / step_ns))


def _rank(result: RerunResult) -> RankFolder:
    """What rank 0 of a rerun has recorded."""
    return RankFolder(rank_folders(result.folder).get(0, result.folder / "rank-0"), 0)


def _command(program: TriedProgram) -> str:
    words = ["-m"] if program.module else []
    return shlex.join([*program.launcher, *words, program.script, *program.arguments])
