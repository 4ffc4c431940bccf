"""What recording costs whole programs, beside torch.profiler with the same schedule, and what perfkit says it costs.

    python benchmarks/bench_cost.py [--rounds 5] [--only PROGRAM] [--json OUT]

Six programs of the labelled suite and the demo's training run plain, under torch.profiler and under `perfkit run`, one
after the other, in reversed order every other round; each run is a process of its own with one thread. Processor time
is that of the process and of every process that it waited for (rusage), so helpers and workers count; resident memory
is the largest that one of them reached. Both profilers record one window, after 10 steps and 2 of warm-up, of 3 steps.

What is added is the median of the differences within a round. Beside it stands what perfkit reports of itself in
rank.json: what came once, and what each step took.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SUITE = ROOT / "tests" / "pathologies"
#: name -> script and its arguments: steps of 1 ms and of 100, frameworks, workers of a loader, a small agent.
PROGRAMS: dict[str, tuple[Path, ...] | tuple[Path, str]] = {
    "healthy_small_batches": (SUITE / "tuning" / "healthy_small_batches.py",),
    "healthy_policy_gradient": (SUITE / "tuning" / "healthy_policy_gradient.py",),
    "healthy_dqn_ring": (SUITE / "tuning" / "healthy_dqn_ring.py",),
    "remote_store_one_worker": (SUITE / "tuning" / "remote_store_one_worker.py",),
    "lightning_without_workers": (SUITE / "tuning" / "lightning_without_workers.py",),
    "healthy_hf_trainer": (SUITE / "tuning" / "healthy_hf_trainer.py",),
    "demo": (ROOT / "perfkit" / "demo" / "train.py", "--steps=120"),
}
VARIANTS = ("plain", "torch.profiler", "perfkit")
#: wait, warmup, active, repeat.
SCHEDULE = (10, 2, 3, 1)


class Cost(NamedTuple):
    """One run: processor time, wall time, the largest resident memory of a process, and what perfkit reports."""

    cpu_s: float
    wall_s: float
    peak_mib: float
    #: What came once, and what the steps took together; None: not perfkit's run.
    fixed_s: float | None = None
    steady_s: float | None = None
    steps: int | None = None


def under_torch(script: str, arguments: Sequence[str], trace: str) -> None:
    """Run the program with a window of torch.profiler in it; a step ends where an optimizer's step does."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    wait, warmup, active, repeat = SCHEDULE
    schedule = torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    with torch.profiler.profile(
        schedule=schedule, on_trace_ready=lambda profiler: profiler.export_chrome_trace(trace)
    ) as profiler:
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: profiler.step())
        runpy.run_path(script, run_name="__main__")


def command_of(variant: str, program: Sequence[str], folder: Path) -> list[str]:
    """The command line of one run; it writes into ``folder``."""
    if variant == "plain":
        return [sys.executable, *program]
    if variant == "torch.profiler":
        return [sys.executable, __file__, "--under-torch", str(folder / "trace.json"), *program]
    schedule = ",".join(map(str, SCHEDULE))
    return [sys.executable, "-m", "perfkit", "run", "--schedule", schedule, "--out", str(folder / "run"), *program]


def measure(variant: str, program: Sequence[str], cache: Path) -> Cost:
    """Run the program once.

    Raises:
        RuntimeError: it failed; the text ends with its stderr.
    """
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryFile() as stderr:
        folder = Path(name)
        environment = {
            # As where perfkit is installed: its modules are compiled once.
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "OMP_NUM_THREADS": "1",
            "PERFKIT_CACHE_DIR": str(cache),
            "PYTHONPATH": str(ROOT),
        }
        began = time.perf_counter()
        process = subprocess.Popen(
            command_of(variant, program, folder), cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=stderr
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            stderr.seek(0)
            raise RuntimeError(f"{variant} of {program[0]} failed:\n{stderr.read().decode()[-2000:]}")
        rank_file = folder / "run" / "rank-0" / "rank.json"
        rank = json.loads(rank_file.read_text()) if rank_file.exists() else {}
        once = rank.get("fixed_overhead_ns")
        return Cost(
            cpu_s=usage.ru_utime + usage.ru_stime,
            wall_s=wall_s,
            peak_mib=usage.ru_maxrss / 1024,
            fixed_s=sum(once.values()) / 1e9 if once is not None else None,
            steady_s=rank["overhead_ns"] / 1e9 if once is not None else None,
            steps=rank.get("steps"),
        )


def rows_of(name: str, runs: dict[str, list[Cost]]) -> list[str]:
    """The rows of one program."""
    rows = []
    plain = runs["plain"]
    for variant in VARIANTS:
        costs = runs[variant]
        cells = [
            name if variant == "plain" else "",
            variant,
            f"{statistics.median(cost.cpu_s for cost in costs):.2f}",
            "",
            f"{statistics.median(cost.wall_s for cost in costs):.1f}",
            f"{statistics.median(cost.peak_mib for cost in costs):.0f}",
            *[""] * 5,
        ]
        if variant != "plain":
            differences = [cost.cpu_s - base.cpu_s for cost, base in zip(costs, plain, strict=True)]
            added_s = statistics.median(differences)
            cells[3] = f"{added_s:+.2f} ({min(differences):+.2f} to {max(differences):+.2f})"
            more = [cost.peak_mib - base.peak_mib for cost, base in zip(costs, plain, strict=True)]
            cells[6] = f"{statistics.median(more):+.0f}"
            told = [cost for cost in costs if cost.fixed_s is not None and cost.steady_s is not None and cost.steps]
            if told:
                fixed_s = statistics.median(cost.fixed_s or 0.0 for cost in told)
                steady_s = statistics.median(cost.steady_s or 0.0 for cost in told)
                step_us = statistics.median((cost.steady_s or 0.0) / (cost.steps or 1) * 1e6 for cost in told)
                cells[7:] = [
                    f"{fixed_s:.2f}",
                    f"{step_us:.0f}",
                    f"{fixed_s + steady_s:.2f}",
                    f"{(fixed_s + steady_s) / added_s:.2f}" if added_s > 0 else "",
                ]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=PROGRAMS, action="append", help="measure this program; may be repeated")
    parser.add_argument("--json", type=Path, help="also write every run to this file")
    chosen = parser.parse_args()
    names = chosen.only or list(PROGRAMS)
    with tempfile.TemporaryDirectory() as name:
        cache = Path(name)
        # The limits of the machine are measured once per machine, by the first run that ends.
        measure("perfkit", [str(part) for part in PROGRAMS["demo"]], cache)
        runs: dict[str, dict[str, list[Cost]]] = {name: {variant: [] for variant in VARIANTS} for name in names}
        for number in range(chosen.rounds):
            for name in names:
                program = [str(part) for part in PROGRAMS[name]]
                for variant in VARIANTS if number % 2 else reversed(VARIANTS):
                    runs[name][variant].append(measure(variant, program, cache))
                    print(f"round {number + 1}: {name}, {variant}: {runs[name][variant][-1]}", file=sys.stderr)
                if chosen.json is not None:
                    chosen.json.write_text(json.dumps(runs))
    print(f"{chosen.rounds} rounds; the range is that of the differences within a round.\n")
    print(
        "| program | run | CPU, s | added, s | wall, s | resident, MiB | added | reported: once, s | per step, µs | "
        "together, s | reported / added |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name in names:
        print("\n".join(rows_of(name, runs[name])))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--under-torch"]:
        under_torch(sys.argv[3], sys.argv[4:], sys.argv[2])
    else:
        main()
