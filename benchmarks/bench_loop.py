"""What the step clock costs a plain loop, beside the floor of any timer and beside torch's own profiler waiting.

    python benchmarks/bench_loop.py

One process, one thread. The loop is the smallest that has all phases (a DataLoader of ready tensors, one weight,
SGD); its variants run interleaved, round by round, in reversed order every other round.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import perfkit

ROUNDS = 9
STEPS = 1000


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

    def torchs() -> int:
        schedule = torch.profiler.schedule(wait=10**9, warmup=1, active=1)
        with torch.profiler.profile(schedule=schedule) as profiler:
            return loop(profiler.step)

    return {
        "plain loop": loop,
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


def main() -> None:
    """Measure and print the table."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rounds: dict[str, list[float]] = {}
        todo: list[tuple[str, Any]] = list(variants(Path(folder)).items())
        for number in range(ROUNDS):
            for name, run in todo if number % 2 else reversed(todo):
                gc.collect()
                gc.disable()
                rounds.setdefault(name, []).append(run() / STEPS)
                gc.enable()
    floor = pair()
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


if __name__ == "__main__":
    main()
