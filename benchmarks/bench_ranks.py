"""Whether the late rank of a job is found, and what it costs to map and to compare many ranks.

    python benchmarks/bench_ranks.py [--part found|reduced|mapped] [--trace FILE]

**Found.** Jobs that tests/ranks/planted_jobs.py generates, each with one thing planted: a rank that waits for its data,
has more work, is held up by its host or by collections, writes checkpoints, runs its kernels slower, or is late once; a
slow host, a slow link, a last pipeline stage, unequal sequences, collections on all ranks. What is planted makes the
job at least 5 % longer. Each job is diagnosed complete, and with a fifth of its ranks missing, cut, or without what
older versions do not record. A diagnosis is right if its first finding has the planted rank (of several at least half
of them, and no other) and the planted cause; where the planted rank is missing, if it says that it cannot tell. The
slowdown of a right finding is compared with that of the same job without what was planted. Nothing is planted in
healthy jobs. Numbers of perfkit were chosen on jobs with even seeds below 400 (`tuning`), nothing on those with odd
ones (`judging`).

**Reduced.** The files of 10,000 ranks of 1,000 steps, generated rows with phases, waiting, collections and work, are
read one after the other and diagnosed, in a process of its own. They are in the page cache.

**Mapped.** A trace is made into the columns of its rank, in 1, 2 and 4 processes at once, each with a copy of its own.
The trace is generated, or FILE. The time per rank is that of the slowest process, over the ranks that were mapped for
each core.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from perfkit.ranks.diagnosing import diagnose_columns  # noqa: E402 - found through the line above
from perfkit.ranks.rank_columns import RankColumns  # noqa: E402
from tests.ranks.build import MS, NCCL, rank_columns  # noqa: E402
from tests.ranks.judging_jobs import judge  # noqa: E402
from tests.ranks.planted_jobs import damaged, planted_job  # noqa: E402

#: Planted and healthy jobs of each half. Of the judging half 200 were once too few: a fifth damaged, they gave 90.5 %
#: where the next thousand gave 96.1 %.
JOBS = {"tuning": (200, 50), "judging": (1_200, 500)}
#: A slowdown is right within this share of it.
WITHIN = 0.03
RANKS, STEPS = 10_000, 1_000
LATE = 4321
#: In each step of the generated trace: an op, its launch and its kernel, 1.8 million events and 28 MB together.
TRACE_STEPS, TRACE_OPS = 50, 12_000
COPIES = (1, 2, 4)
PROJECTED_RANKS, PROJECTED_CORES = 1_000, 64


def found(half: str, hurt: bool) -> str:
    """A row of the table."""
    right, errors = 0, []
    (jobs, healthy), first = JOBS[half], int(half == "judging")
    for seed in range(first, 2 * jobs, 2):
        job = planted_job(seed)
        job = damaged(job) if hurt else job
        judged = judge(job, diagnose_columns(job.ranks))
        right += judged.right
        errors += [] if judged.error is None else [abs(judged.error)]
    blamed = 0
    for seed in range(first, 2 * healthy, 2):
        job = planted_job(seed, healthy=True)
        blamed += bool(diagnose_columns((damaged(job) if hurt else job).ranks).findings)
    within = sum(error <= WITHIN for error in errors)
    return (
        f"| {half} | {'a fifth damaged' if hurt else 'complete'} | {jobs} | {right / jobs:.1%} "
        f"| {within / len(errors):.1%} of {len(errors)} | {np.median(errors):.2%} | {blamed} of {healthy} |"
    )


def one_of_many(rank: int, longest: np.ndarray | None) -> tuple[np.ndarray, RankColumns]:
    """The own times of a rank in its steps, and its columns: it waits for the longest ones."""
    draw = np.random.default_rng(rank)
    phases = np.array([[3, 30, 55, 6, 2]]) * draw.normal(1, 0.01, (STEPS, 5)) * MS
    phases[:, 0] += 20 * MS * (rank == LATE)
    own = phases.sum(axis=1)
    waited = np.zeros(STEPS) if longest is None else longest - own
    phases[:, 2] += waited
    wall = phases.sum(axis=1)
    start = 1_760_000_000 * 10**9 + np.cumsum(wall).astype(np.int64)
    return own, rank_columns(
        rank,
        STEPS,
        0,
        world_size=RANKS,
        host=f"node{rank // 8}",
        step_start_ns=start,
        step_wall_ns=wall.astype(np.int64),
        phase_names=("data", "forward", "backward", "optimizer", "other"),
        phases_ns=phases.astype(np.int64),
        waited_ns=waited.astype(np.int64) + MS,
        gc_ns=draw.integers(0, MS, STEPS),
        work=draw.integers(4000, 4096, STEPS),
    )


def reduce_many(folder: Path) -> str:
    """Save the files of many ranks there, and diagnose them in another process."""
    longest = np.zeros(STEPS)
    for rank in range(RANKS):
        longest = np.maximum(longest, one_of_many(rank, None)[0])
    size = 0
    for rank in range(RANKS):
        data = one_of_many(rank, longest)[1].to_bytes()
        (folder / f"{rank:05}.rank").write_bytes(data)
        size += len(data)
    began = time.perf_counter()
    for file in folder.iterdir():
        file.read_bytes()
    reading = time.perf_counter() - began
    program = (
        "import re, sys, time\nfrom pathlib import Path\n"
        "from perfkit.ranks.diagnosing import diagnose_columns\nfrom perfkit.ranks.rank_columns import RankColumns\n"
        "files = sorted(Path(sys.argv[1]).iterdir()); began, busy = time.perf_counter(), time.process_time()\n"
        "loaded = 0.0\n"
        "def ranks():\n"
        "    global loaded\n"
        "    for file in files:\n"
        "        at = time.process_time(); columns = RankColumns.load(file); loaded += time.process_time() - at\n"
        "        yield columns\n"
        "found = diagnose_columns(ranks()); took = time.perf_counter() - began\n"
        # Not getrusage: its peak is inherited from the parent.
        "peak = int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) / 1024\n"
        "print(took, time.process_time() - busy, loaded, peak, *found.findings[0].ranks, found.findings[0].cause)"
    )
    done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=True, cwd=ROOT)
    took, busy, loaded, peak, answer = done.stdout.split(maxsplit=4)
    return (
        f"{RANKS:,} ranks of {STEPS:,} steps, {size / RANKS / 1e3:.0f} kB each; found: rank {answer.strip()}.\n\n"
        "| what | s | CPU, s | peak resident, MB |\n|---|---|---|---|\n"
        f"| `read_bytes` of all files | {reading:.1f} | | |\n"
        f"| loaded and diagnosed | {float(took):.1f} | {float(busy):.1f} | {float(peak):.0f} |\n"
        f"| of it loading | | {float(loaded):.1f} | |"
    )


def write_trace(path: Path) -> None:
    """A trace of one rank as torch.profiler writes it, packed."""
    chance = random.Random(0)
    args = '"Collective name": "allreduce", "In msg nelems": 262144, "dtype": "Float", "Process Group Name": "0"'
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write('{"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},\n')
        file.write('"deviceProperties": [], "baseTimeNanoseconds": 1760000000000000000, "traceEvents": [\n')

        def event(cat: str, name: str, tid: int, ts: float, dur: float, more: str) -> None:
            pid = 0 if cat == "kernel" else 100
            file.write(
                f'{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid}, "ts": {ts:.3f}, '
                f'"dur": {dur:.3f}, "args": {{{more}}}}},\n'
            )

        number = 0
        for step in range(TRACE_STEPS):
            at = step * 20.0 * TRACE_OPS
            event("user_annotation", f"ProfilerStep#{step}", 1, at, 20.0 * TRACE_OPS, "")
            for op in range(TRACE_OPS):
                number += 1
                ts, took = at + 20 * op + chance.random(), 5 + 10 * chance.random()
                event("cpu_op", f"aten::op{op % 40}", 1, ts, took, f'"External id": {number}')
                event("cuda_runtime", "cudaLaunchKernel", 1, ts + 1, 3, f'"correlation": {number}')
                kernel, facts = (NCCL, f"{args}, ") if op % 1000 == 0 else (f"void kernel_{op % 60}<float, 4>(int)", "")
                facts += f'"device": 0, "stream": {20 if facts else 7}, "correlation": {number}'
                event("kernel", kernel, 20 if facts else 7, ts + 4, took, facts)
        file.write('{"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0, "args": {"name": "python"}}]}\n')


def map_copies(trace: Path, folder: Path) -> str:
    """Map several copies of a trace at once; a table of seconds."""
    program = (
        "import sys, time\nfrom pathlib import Path\n"
        "from perfkit.ranks.mapping import map_rank\nfrom perfkit.ranks.rank_sources import find_ranks\n"
        "source = find_ranks(sys.argv[1]).traces[0]\nprint('ready', flush=True)\nsys.stdin.readline()\n"
        "began, busy = time.perf_counter(), time.process_time(); columns = map_rank(source)\n"
        "print(time.perf_counter() - began, time.process_time() - busy, len(columns.to_bytes()))"
    )
    lines, two, busy_of_two, size = [], 0.0, 0.0, 0
    for copies in COPIES:
        running = []
        for copy in range(copies):
            place = folder / f"copy{copy}"
            place.mkdir(exist_ok=True)
            shutil.copy(trace, place / "rank0.json.gz")
            command = [sys.executable, "-c", program, str(place)]
            running.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
            )
        for process in running:  # all are ready before the first begins
            assert process.stdout is not None
            process.stdout.readline()
        for process in running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        answers = [process.communicate()[0].split() for process in running]
        slowest, busy = max(float(wall) for wall, _, _ in answers), max(float(cpu) for _, cpu, _ in answers)
        size = int(answers[0][2])
        per_core = copies / min(copies, os.cpu_count() or 1)
        two, busy_of_two = (slowest, busy) if copies == 2 else (two, busy_of_two)
        lines.append(f"| {copies} | {slowest:.1f} | {slowest / per_core:.1f} | {busy:.1f} |")
    projected = PROJECTED_RANKS / PROJECTED_CORES * two
    cpu = PROJECTED_RANKS / PROJECTED_CORES * busy_of_two
    return (
        f"A trace of {trace.stat().st_size / 1e6:.0f} MB packed becomes {size / 1e3:.0f} kB of columns. Of 2 at once: "
        f"{PROJECTED_RANKS:,} ranks on {PROJECTED_CORES} cores take {projected:.0f} s (CPU: {cpu:.0f} s).\n\n"
        "| at once | slowest, s | per rank and core, s | CPU of the slowest, s |\n|---|---|---|---|\n"
        + "\n".join(lines)
    )


def main() -> None:
    """Measure and print markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("found", "reduced", "mapped"))
    parser.add_argument("--trace", type=Path, help="map this trace (.json.gz), not a generated one")
    options = parser.parse_args()
    parts = (options.part,) if options.part else ("found", "reduced", "mapped")
    if "found" in parts:
        print(
            "| half | ranks | jobs | rank and cause right | slowdown within 3 % | median error | healthy ones blamed |"
        )
        print("|---|---|---|---|---|---|---|")
        for hurt in (False, True):
            for half in JOBS:
                print(found(half, hurt), flush=True)
    with tempfile.TemporaryDirectory() as name:
        if "reduced" in parts:
            folder = Path(name, "ranks")
            folder.mkdir()
            print(f"\n{reduce_many(folder)}", flush=True)
            shutil.rmtree(folder)
        if "mapped" in parts:
            trace = options.trace or Path(name, "trace.json.gz")
            if options.trace is None:
                write_trace(trace)
            print(f"\n{map_copies(trace, Path(name))}")


if __name__ == "__main__":
    main()
