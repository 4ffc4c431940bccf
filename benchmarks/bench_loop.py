"""What the step clock and windows cost a plain loop, and whether anything of them stays behind.

    python benchmarks/bench_loop.py

One process, one thread. For the clock, the loop is the smallest that has all phases (a DataLoader of ready tensors,
one weight, SGD); its variants, torch's own profiler waiting among them, run interleaved, round by round, in reversed
order every other round, and what is told is the difference of the fastest rounds, in pairs of clock readings: on
a machine with other work the time of a single round says little. For windows, steps inside and outside are of the
same run, in turns. What stays behind is looked for in runs of 100,000 steps with 20 windows, from 10 % of it on.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import perfkit
from perfkit.record.clock.step_clock import StepClock
from perfkit.record.hooks.torch_hooks import LoopHooks
from perfkit.record.watchers.step_memory import OVER, resident_bytes
from perfkit.run.reading import RankFolder, read_run

#: Rounds are short, so that some of them meet no other work of the machine.
ROUNDS = 25
#: Enough that what comes once, in the first steps, does not count for the steps.
STEPS = 600
#: Windows in the comparison of steps inside and outside, of so many steps each.
WINDOWS, WINDOW_STEPS = 8, 5
LONG_STEPS, LONG_WINDOWS = 100_000, 20


def loop(step: Callable[[], None] | None = None) -> int:
    """Train ``STEPS`` steps; ns taken by the steps alone."""
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    loader = iter(DataLoader([torch.ones(4)] * (STEPS + 20), batch_size=None))
    for number in range(STEPS + 20):
        if number == 20:
            began = time.perf_counter_ns()
        batch = next(loader)
        optimizer.zero_grad()
        (weight * batch).sum().backward()
        optimizer.step()
        if step is not None:
            step()
    return time.perf_counter_ns() - began


def variants(folder: Path) -> dict[str, Callable[[], int]]:
    """name -> one round of it, in ns."""
    never = perfkit.schedule(wait=10**9, warmup=0, active=1)
    numbers = iter(range(10**6))

    def clocked() -> int:
        with perfkit.profile(folder / str(next(numbers)), schedule=never, quiet=True):
            return loop()

    def clock_alone() -> int:
        clock = StepClock(lambda closed: None, batch=OVER)
        hooks = LoopHooks(clock)
        hooks.attach()
        clock.start()
        try:
            return loop()
        finally:
            hooks.detach()

    def torchs() -> int:
        schedule = torch.profiler.schedule(wait=10**9, warmup=1, active=1)
        with torch.profiler.profile(schedule=schedule) as profiler:
            return loop(profiler.step)

    return {
        "plain loop": loop,
        "the clock alone": clock_alone,
        "perfkit.profile, between windows": clocked,
        "torch.profiler, waiting": torchs,
    }


def pair() -> float:
    """A ``perf_counter_ns`` pair: the floor of any timer, ns."""
    best = 10**9
    for _ in range(50):
        began = time.perf_counter_ns()
        for _ in range(1000):
            time.perf_counter_ns()
            time.perf_counter_ns()
        best = min(best, time.perf_counter_ns() - began)
    return best / 1000


def layers(width: int, batch: int, depth: int) -> Callable[[], None]:
    """A training step of ``depth`` linear layers."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(depth)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = torch.randn(batch, width)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return step


def recorded(folder: Path, step: Callable[[], None], *, steps: int, windows: int, each: Any = None) -> RankFolder:
    """Train ``steps`` steps with windows spread over them; ``each(number)`` is called before every step."""
    wait = steps // windows - 2 - WINDOW_STEPS
    schedule = perfkit.schedule(wait=wait, warmup=2, active=WINDOW_STEPS, repeat=windows)
    with perfkit.profile(folder, schedule=schedule, quiet=True) as profile:
        for number in profile.steps(range(steps)):
            if each is not None:
                each(number)
            step()
    return read_run(folder).ranks[0]


def windows_table(folder: Path) -> None:
    """Steps inside light windows against steps outside, for a small and a large model."""
    print("\n| model on the CPU | outside, median µs/step | inside a light window, median µs/step | slowed |")
    print("|---|---|---|---|")
    for name, width, batch, depth in (
        ("4 layers of 16, batch 8", 16, 8, 4),
        ("4 layers of 256, batch 64", 256, 64, 4),
        ("4 layers of 512, batch 128", 512, 128, 4),
    ):
        rank = recorded(folder / f"width-{width}", layers(width, batch, depth), steps=WINDOWS * 25, windows=WINDOWS)
        assert rank.rank is not None
        spans = [range(window.first_step, window.last_step + 1) for window in rank.rank.windows]
        assert len(spans) == WINDOWS, rank.rank
        inside = [row.wall_ns for row in rank.steps if any(row.step in span for span in spans)]
        # The first steps, and the step after a window, pay for what happens once.
        after = {span.stop for span in spans}
        outside = [r.wall_ns for r in rank.steps if r.kind == "timed" and r.step > 5 and r.step not in after]
        slow, fast = statistics.median(inside) / 1e3, statistics.median(outside) / 1e3
        print(f"| {name} | {fast:.0f} | {slow:.0f} | {slow / fast:.2f} x |")


def one_weight() -> Callable[[], None]:
    """The smallest training step: what a hundred thousand steps are affordable with."""
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    return step


def stays_behind(folder: Path) -> None:
    """Memory and step time before and after many windows."""
    step = one_weight()
    at = {LONG_STEPS // 10: 0, LONG_STEPS // 2: 0, LONG_STEPS - 1: 0}

    def resident(number: int) -> None:
        if number in at:
            gc.collect()
            at[number] = resident_bytes() or 0

    def traced(number: int) -> None:
        if number in at:
            gc.collect()
            if not tracemalloc.is_tracing():
                tracemalloc.start()  # from here on: what was allocated before is not what grows
            at[number] = tracemalloc.get_traced_memory()[0]

    began = time.perf_counter()
    rank = recorded(folder / "long", step, steps=LONG_STEPS, windows=LONG_WINDOWS, each=resident)
    took_s = time.perf_counter() - began
    in_ram = list(at.values())
    assert rank.rank is not None
    assert len(rank.rank.windows) == LONG_WINDOWS, rank.rank
    # Rows of the first half are merged by the end: of the last half, the steps before and those after each window.
    spans = [range(window.first_step - 2, window.last_step + 6) for window in rank.rank.windows]
    timed = [row for row in rank.steps if row.kind == "timed" and row.steps == 1]
    ratios = []
    for span in spans:
        before = [row.wall_ns for row in timed if span.start - 500 <= row.step < span.start]
        after = [row.wall_ns for row in timed if span.stop <= row.step < span.stop + 500]
        if before and after:
            ratios.append(statistics.median(after) / statistics.median(before))
    assert rank.rank.overhead_ns is not None
    recorded(folder / "traced", step, steps=LONG_STEPS, windows=LONG_WINDOWS, each=traced)
    tracemalloc.stop()
    python = list(at.values())
    print(f"\n{LONG_STEPS:,} steps with {LONG_WINDOWS} windows took {took_s:.0f} s.\n")
    print("| | after 10 % | half way | at the end |")
    print("|---|---|---|---|")
    print("| resident, MiB | " + " | ".join(f"{value / 2**20:.1f}" for value in in_ram) + " |")
    print("| allocated by Python since (a second run), MiB | " + " | ".join(f"{v / 2**20:.2f}" for v in python) + " |")
    print(
        f"\nThe median of 500 steps after a window is {statistics.median(ratios):.2f} x that of the 500 before it "
        f"(over {len(ratios)} windows; {min(ratios):.2f} to {max(ratios):.2f}). perfkit says of itself: "
        f"{rank.rank.overhead_ns / LONG_STEPS / 1e3:.1f} µs a step, "
        f"{(rank.rank.overhead_bytes or 0) / 2**20:.2f} MiB held."
    )


def main() -> None:
    """Measure and print the tables."""
    torch.set_num_threads(1)
    floor = min(pair() for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        rounds: dict[str, list[float]] = {}
        todo: list[tuple[str, Any]] = list(variants(Path(folder)).items())
        for number in range(ROUNDS):
            for name, run in todo if number % 2 else reversed(todo):
                gc.collect()
                gc.disable()
                rounds.setdefault(name, []).append(run() / STEPS)
                gc.enable()
    base = min(rounds["plain loop"])
    print(f"A `perf_counter_ns` pair takes {floor:.0f} ns.\n")
    print("| loop of 4 numbers | min µs/step | median µs/step | added, min µs | in clock pairs |")
    print("|---|---|---|---|---|")
    for name, times in rounds.items():
        added = min(times) - base
        print(
            f"| {name} | {min(times) / 1e3:.1f} | {statistics.median(times) / 1e3:.1f} | "
            f"{added / 1e3:.1f} | {added / floor:.0f} |"
        )
    with tempfile.TemporaryDirectory() as folder:
        windows_table(Path(folder))
        stays_behind(Path(folder))


if __name__ == "__main__":
    main()
