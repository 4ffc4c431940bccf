"""On a GPU: what perfkit costs, and whether savings and what-ifs are what the correction of a mistake saves.

    python benchmarks/bench_gpu.py record FOLDER [PAIR ...]    on a machine with a GPU, some minutes
    python benchmarks/bench_gpu.py FOLDER                      anywhere: diagnoses what was recorded, prints tables
    python benchmarks/bench_gpu.py                             both, in a folder that is removed

**Cost.** A step of three small layers on the GPU, plain and with perfkit and torch's profiler beside it, interleaved
round by round in one process; the host's time, with the device waited for at the end of a round. The first second of
steps is not in it: what it takes longer than later ones is what starting costs once.

**Pairs.** Each step of `_gpu_pairs` is recorded with its mistake by `perfkit.profile`, in the loop that a user has.
Then the step with and without it is timed in turns, each between two waits for the device.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from _gpu_pairs import PAIRS, Made  # noqa: E402 - found through the line above

import perfkit  # noqa: E402

#: Steps of the recorded run at least, and how long it takes at least, in s: the lines are sampled, behind the window.
RECORDED, RECORDED_S = 60, 2.0
#: The steps.
SOURCE = ROOT / "benchmarks" / "_gpu_pairs.py"
#: Turns of each of the two, and how long one is in s: a turn has at least `FEWEST` steps.
TURNS, TURN_S, FEWEST = 5, 0.15, 4
ROUNDS, ROUND_STEPS = 5, 300
#: The steps before those of a round, in s: threads start, the lines are sampled at twice the rate, tensors are scanned.
SETTLES_S = 1.0


# -- on the GPU

#: Seconds per step, and seconds that starting took.
Round = tuple[float, float]


def record(make: Callable[[bool], Made], folder: Path) -> None:
    """Record the step with its mistake, as `perfkit run` would."""
    made = make(False)
    prof = perfkit.profile(folder, quiet=True, overwrite=True, detect_syncs="auto")
    prof.diagnoses = False
    began = time.perf_counter()
    with prof:
        for number, batch in enumerate(made.batches):
            if number >= RECORDED and time.perf_counter() - began > RECORDED_S:
                break
            made.step(batch)
            prof.step()
    torch.cuda.synchronize()


def timed(step: Callable[[], object], count: int) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / count


def stepper(made: Made) -> Callable[[], object]:
    """One step, with its batch; loaders begin again when they are exhausted."""

    def batches() -> Iterator[Any]:
        while True:
            yield from made.batches

    batch = batches()
    return lambda: made.step(next(batch))


def in_turns(make: Callable[[bool], Made]) -> dict[str, list[float]]:
    """Seconds per step of each turn with the mistake and without it."""
    steps = {name: stepper(make(fixed)) for name, fixed in (("before", False), ("after", True))}
    counts = {}
    for name, step in steps.items():
        timed(step, 5)
        counts[name] = max(FEWEST, round(TURN_S / timed(step, 3)))
    found: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(TURNS):
        for name in (*steps,) if turn % 2 else (*reversed(steps),):
            found[name].append(timed(steps[name], counts[name]))
    return found


def small_training() -> Callable[[], None]:
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(64, 64, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def costs() -> dict[str, dict[str, list[float]]]:
    """Of each round by what runs beside the step: seconds per step, and seconds that starting took."""
    step = small_training()
    folder = Path(tempfile.mkdtemp())
    never = perfkit.schedule(wait=10**9, warmup=0, active=1)
    names = iter(range(10**6))

    def rounds(began: float, work: Callable[[], object] = step, each: Callable[[], object] = lambda: None) -> Round:
        count = 0
        while time.perf_counter() - began < SETTLES_S:
            work()
            each()
            count += 1
        torch.cuda.synchronize()
        settled = time.perf_counter()
        for _ in range(ROUND_STEPS):
            work()
            each()
        torch.cuda.synchronize()
        step_s = (time.perf_counter() - settled) / ROUND_STEPS
        return step_s, settled - began - count * step_s

    def perfkits(**options: Any) -> Round:
        began = time.perf_counter()
        prof = perfkit.profile(folder / str(next(names)), quiet=True, **options)
        prof.diagnoses = False
        with prof:
            return rounds(began, each=prof.step)

    def torchs(schedule: Any) -> Round:
        began = time.perf_counter()
        with torch.profiler.profile(schedule=schedule, on_trace_ready=lambda one: None) as profiler:
            return rounds(began, each=profiler.step)

    def armed() -> Round:
        began = time.perf_counter()
        with perfkit.detect_syncs("cuda"):
            return rounds(began)

    def ranged() -> Round:
        began = time.perf_counter()
        timer = perfkit.range("timed step", device_time=True)
        recorder = perfkit.ranges.start_recorder()

        def timed_step() -> None:
            with timer:
                step()

        took = rounds(began, timed_step)
        recorder.stop()
        return took

    repeating = {"wait": 10, "warmup": 1, "active": 3}
    variants: dict[str, Callable[[], Round]] = {
        "plain": lambda: rounds(time.perf_counter()),
        "perfkit.profile, between windows": lambda: perfkits(schedule=never),
        "perfkit.profile, between windows, syncs found": lambda: perfkits(schedule=never, detect_syncs="cuda"),
        "torch.profiler, waiting": lambda: torchs(torch.profiler.schedule(wait=10**9, warmup=1, active=1)),
        "detect_syncs": armed,
        "a range with device_time around the step": ranged,
        "perfkit.profile, a window every 14 steps": lambda: perfkits(schedule=perfkit.schedule(**repeating)),
        "torch.profiler, a window every 14 steps": lambda: torchs(torch.profiler.schedule(**repeating)),
    }
    for variant in variants.values():
        variant()
    found: dict[str, dict[str, list[float]]] = {name: {"step": [], "start": []} for name in variants}
    for number in range(ROUNDS):
        for name in (*variants,) if number % 2 else (*reversed(variants),):
            step_s, start_s = variants[name]()
            found[name]["step"].append(step_s)
            found[name]["start"].append(start_s)
    shutil.rmtree(folder)
    return found


def record_all(folder: Path, names: list[str]) -> None:
    """Record and time everything; one pair that fails does not end the others."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(SOURCE, folder)  # the lines that findings name
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "pairs": {},
    }
    began = time.perf_counter()
    for name in names or PAIRS:
        one: dict[str, Any] = {}
        try:
            torch.set_float32_matmul_precision("highest")
            record(PAIRS[name].make, folder / name)
            gc.collect()
            torch.cuda.empty_cache()
            one = dict(in_turns(PAIRS[name].make))
        except Exception:  # noqa: BLE001 - see above
            one["error"] = traceback.format_exc()
        gc.collect()
        torch.cuda.empty_cache()
        found["pairs"][name] = one
        shown = [statistics.median(one[key]) * 1e3 for key in ("before", "after") if key in one]
        took = [f"{ms:.2f} ms" for ms in shown]
        print(f"{time.perf_counter() - began:5.0f} s {name}", *took, one.get("error", ""), flush=True)
        (folder / "measured.json").write_text(json.dumps(found, indent=1))
    if not names:
        found["costs"] = costs()
        for name, rounds in found["costs"].items():
            print(_cost_line(name, rounds, 0.0), flush=True)
        (folder / "measured.json").write_text(json.dumps(found, indent=1))


# -- anywhere


class PairRow(NamedTuple):
    """A pair as measured, as the verdict had it, and as it was predicted; shares are of the step."""

    name: str
    before_s: float
    after_s: float
    spread: float
    first: str
    rank: int | None
    on_line: bool | None
    saving: tuple[float, float] | None
    predicted: tuple[float, float, float] | None

    @property
    def saved(self) -> float:
        return 1 - self.after_s / self.before_s


def marked_line(name: str, folder: Path) -> int | None:
    """The line of the pair's mark, in the steps as they were recorded."""
    lines = (folder / SOURCE.name).read_text().splitlines()
    return next((at for at, line in enumerate(lines, 1) if line.endswith(f"# spent: {name}")), None)


def pair_row(name: str, folder: Path, measured: dict[str, list[float]]) -> PairRow:
    """What perfkit says of the recording, against what was measured."""
    pair = PAIRS[name]
    before, after = (statistics.median(measured[key]) for key in ("before", "after"))
    found = perfkit.diagnose(folder / name)
    step_ns = found.ledger.ledger.wall_ns if found.ledger is not None else 1
    problems = [one for one in found.findings if one.severity != "info" and one.follows is None]
    right = [one for one in problems if one.rule in pair.rules]
    line = marked_line(name, folder)
    places = [one.spent.line for one in right if one.spent is not None]
    nearest = min(right, key=lambda one: pair.rules.index(one.rule), default=None)
    saving = predicted = None
    if nearest is not None and nearest.saving_high_ns is not None:
        saving = (nearest.saving_low_ns or 0) / step_ns, nearest.saving_high_ns / step_ns
    if pair.what_if is not None:
        then = perfkit.what_if(folder / name, **pair.what_if)
        predicted = then.low_ns / then.step_ns, then.expected_ns / then.step_ns, then.high_ns / then.step_ns
    return PairRow(
        name=name,
        before_s=before,
        after_s=after,
        spread=max(max(one) / min(one) - 1 for one in measured.values()),
        first=problems[0].rule if problems else found.outcome,
        rank=problems.index(right[0]) + 1 if right else None,
        on_line=line in places if line is not None and right else None,
        saving=saving,
        predicted=predicted,
    )


PAIR_HEADING = (
    "pair|before, ms|after, ms|turns differ by|saved|first finding|the planted one is|at its line|its saving|"
    "what-if: the step becomes|measured"
)


def tables(folder: Path) -> Iterator[str]:
    """The lines of the tables, from what was recorded."""
    measured = json.loads((folder / "measured.json").read_text())
    yield f"{measured['device']}, torch {measured['torch']}, Python {measured['python']}, {measured['cores']} cores."
    pairs = {name: one for name, one in measured["pairs"].items() if {"before", "after"} <= one.keys()}
    rows = [pair_row(name, folder, one) for name, one in pairs.items() if (folder / name).is_dir()]
    yield from ("", *_table_head(PAIR_HEADING), *map(_pair_line, rows), "", _summary(rows))
    if costs := measured.get("costs"):
        plain = statistics.median(costs["plain"]["step"])
        yield from ("", *_table_head("step with|min, µs|median, µs|added, median µs|starting takes, median ms"))
        yield from (_cost_line(name, rounds, plain) for name, rounds in costs.items())


def _cost_line(name: str, rounds: dict[str, list[float]], plain_s: float) -> str:
    usual = statistics.median(rounds["step"])
    micros = (f"{one * 1e6:.1f}" for one in (min(rounds["step"]), usual, usual - plain_s))
    return f"| {name} | {' | '.join(micros)} | {statistics.median(rounds['start']) * 1e3:.1f} |"


def _table_head(heading: str) -> tuple[str, str]:
    names = heading.split("|")
    return f"| {' | '.join(names)} |", "|---" * len(names) + "|"


def _pair_line(row: PairRow) -> str:
    cells = [
        row.name,
        f"{row.before_s * 1e3:.2f}",
        f"{row.after_s * 1e3:.2f}",
        f"{row.spread:.0%}",
        f"{row.saved:.0%}",
        row.first,
        _ordinal(row.rank) if PAIRS[row.name].rules else "none",
        "" if row.on_line is None else "yes" if row.on_line else "no",
        "" if row.saving is None else f"{row.saving[0]:.0%} to {row.saving[1]:.0%}",
        "" if row.predicted is None else f"{row.predicted[1]:.0%} ({row.predicted[0]:.0%} to {row.predicted[2]:.0%})",
        "" if row.predicted is None else f"{1 - row.saved:.0%}",
    ]
    return f"| {' | '.join(cells)} |"


def _summary(rows: list[PairRow]) -> str:
    planted = [row for row in rows if PAIRS[row.name].rules]
    within = [row.saving[0] <= row.saved <= row.saving[1] for row in planted if row.saving is not None]
    said = (
        f"A right answer first: {sum(row.rank == 1 for row in planted)} of {len(planted)}, at all: "
        f"{sum(row.rank is not None for row in planted)}. Its saving holds what was measured: {sum(within)} of "
        f"{len(within)}."
    )
    then = [(row.predicted, 1 - row.saved) for row in planted if row.predicted is not None]
    if not then:
        return said
    errors = [abs(expected / measured - 1) for (_, expected, _), measured in then]
    held = sum(low <= measured <= high for (low, _, high), measured in then)
    return (
        f"{said} What-if: median error of the step {statistics.median(errors):.1%}, largest {max(errors):.1%}, the "
        f"interval holds {held} of {len(then)}."
    )


def _ordinal(rank: int | None) -> str:
    return "missing" if rank is None else {1: "1st", 2: "2nd", 3: "3rd"}.get(rank, f"{rank}th")


def main(arguments: list[str]) -> int:
    """Record, print the tables, or both."""
    records = not arguments or (arguments[0] == "record" and len(arguments) > 1)
    if not records and len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    if (unknown := [name for name in arguments[2:] if name not in PAIRS]) and records:
        print(f"there is no pair {unknown[0]!r}; choose from {', '.join(PAIRS)}", file=sys.stderr)
        return 2
    if not records and not (Path(arguments[0]) / "measured.json").is_file():
        print(f"{arguments[0]} has no measured.json: bench_gpu.py record FOLDER makes it", file=sys.stderr)
        return 2
    if records and not torch.cuda.is_available():
        print("bench_gpu.py records on a machine with a GPU, and torch finds none here", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments[-1] if len(arguments) == 1 else arguments[1] if arguments else temporary)
        if records:
            record_all(folder, arguments[2:])
        if len(arguments) < 2:
            print("\n".join(tables(folder)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
