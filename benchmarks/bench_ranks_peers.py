"""Which rank is late: perfkit, HTA and TraceLens on the same eight traces.

    python benchmarks/bench_ranks_peers.py [--hta PYTHON] [--tracelens FOLDER]

Eight ranks of two hosts are generated as torch.profiler writes them, some 120,000 events each. In each step rank 5
waits 30 ms longer for its data, and all ranks wait for it in the step's first all-reduce. The clocks of the second host
are exact, or 20 ms ahead, as the clocks of two hosts may be. Each reader runs in a process of its own, in turns; its
imports are not counted. HTA is asked for `get_potential_stragglers`, which names two, TraceLens
for `build_df_straggler_summary`.

HTA is asked where it is installed, as by `make bench`, or in PYTHON. TraceLens is not on the package index: FOLDER is a
checkout of github.com/AMD-AGI/TraceLens; without one it is left out.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RANKS, LATE, LATE_MS, SKEW_MS = 8, 5, 30, 20
STEPS, OPS, EVERY = 10, 4_000, 500
#: Times that each reader runs.
ROUNDS = 3
#: An op of the generated step, µs; its kernel takes somewhat less.
OP_US, KERNEL_US = 20, 14
#: As NCCL named it until 2.17: HTA 0.5 finds no communication in kernels of the names since.
NCCL = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"

#: Begins and ends each program, which prints seconds, those of processors, and the late rank that it names.
BEGIN = """
import contextlib, io, resource, sys, time
from pathlib import Path
def busy():
    used = [resource.getrusage(one) for one in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
"""
PROGRAMS = {
    "perfkit": """
import perfkit
perfkit.diagnose_ranks
began, before = time.perf_counter(), busy()
found = perfkit.diagnose_ranks(sys.argv[1])
first = found.findings[0] if found.findings else None
print(time.perf_counter() - began, busy() - before, *(first.ranks if first else ["none"]), first.cause if first else "")
""",
    "HTA": """
from hta.trace_analysis import TraceAnalysis
files = {int(one.name[4]): str(one) for one in Path(sys.argv[1]).iterdir()}
began, before = time.perf_counter(), busy()
with contextlib.redirect_stdout(io.StringIO()):
    ranks = TraceAnalysis(trace_files=files).get_potential_stragglers()
print(time.perf_counter() - began, busy() - before, *ranks)
""",
    "TraceLens": """
sys.path.insert(0, sys.argv[2])
from TraceLens.NcclAnalyser.nccl_analyser import NcclAnalyser
files = sorted(str(one) for one in Path(sys.argv[1]).iterdir())
began, before = time.perf_counter(), busy()
with contextlib.redirect_stdout(io.StringIO()):
    table = NcclAnalyser(files, len(files)).build_df_straggler_summary()
print(time.perf_counter() - began, busy() - before, int(table["rank"][0]))
""",
}


def write_trace(path: Path, rank: int, skew_ms: float) -> None:
    """The trace of a rank; what all wait for takes until the late rank has come."""
    chance, events = random.Random(rank), []

    def event(cat: str, name: str, tid: int, ts: float, dur: float, **args: Any) -> None:
        pid = 0 if cat == "kernel" else 100
        events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args})

    group = {"Process Group Name": "0", "Process Group Ranks": str([*range(RANKS)]), "Group size": RANKS}
    message = {"Collective name": "allreduce", "In msg nelems": 262144, "Out msg nelems": 262144, "dtype": "Float"}
    step_us, late_us = OP_US * OPS + 1000 * (LATE_MS + 5), 1000 * LATE_MS
    number = 0
    for step in range(STEPS):
        at = step * step_us
        own_us = 1000 + (late_us if rank == LATE else 0)
        event("user_annotation", f"ProfilerStep#{step}", 1, at, step_us)
        event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1, at, own_us)
        # All but the first all-reduce of a step find all ranks there: the first one has made them wait.
        began = at + own_us
        for op in range(OPS):
            number += 1
            ts = began + OP_US * op + chance.random()
            event("cpu_op", f"aten::op{op % 40}", 1, ts, 15, **{"External id": number})
            event("cuda_runtime", "cudaLaunchKernel", 1, ts + 1, 3, correlation=number)
            where = {"device": rank % 4, "correlation": number}
            if op % EVERY != EVERY - 1:
                takes = KERNEL_US + chance.random()
                event("kernel", f"void kernel_{op % 60}<float, 4>(int)", 7, ts + 4, takes, stream=7, **where)
                continue
            ends = at + 1000 + late_us + OP_US * (op + 1) + 400
            first = op < EVERY
            seq = {"Seq": step * (OPS // EVERY) + op // EVERY}
            takes = ends - (ts + 4) if first else 400 + chance.random()
            event("kernel", NCCL, 20, ts + 4, takes, stream=20, **where, **group, **message, **seq)
            if first:
                began = at + 1000 + late_us
    info = {"backend": "nccl", "rank": rank, "world_size": RANKS}
    head = {"schemaVersion": 1, "deviceProperties": [], "host_name": f"node{rank // 4}", "distributedInfo": info}
    head["baseTimeNanoseconds"] = 1_760_000_000 * 10**9
    for one in events:
        one["ts"] = round(one["ts"] + 1000 * skew_ms, 3)
    path.write_bytes(gzip.compress(json.dumps(head | {"traceEvents": events}).encode(), compresslevel=1))


def main() -> None:
    """Measure and print a markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = sys.executable if importlib.util.find_spec("hta") else ""
    parser.add_argument("--hta", default=here, metavar="PYTHON", help="ask the HTA of this Python")
    parser.add_argument("--tracelens", default="", metavar="FOLDER", help="ask TraceLens, of this checkout")
    options = parser.parse_args()
    of_peers = options.hta or sys.executable
    pythons = {"perfkit": sys.executable, "HTA": options.hta, "TraceLens": options.tracelens and of_peers}
    print(f"Rank {LATE} is late, by {LATE_MS} ms of data in each step.\n")
    print("| clocks of the hosts | reader | min s | median s | CPU, min s | ratio of CPU | names |")
    print("|---|---|---|---|---|---|---|")
    for clocks, skew_ms in (("equal", 0), (f"{SKEW_MS} ms apart", SKEW_MS)):
        with tempfile.TemporaryDirectory() as name:
            for rank in range(RANKS):
                write_trace(Path(name, f"rank{rank}.json.gz"), rank, skew_ms if rank >= RANKS // 2 else 0)
            taken: dict[str, list[float]] = {}
            used: dict[str, list[float]] = {}
            names: dict[str, str] = {}
            for _ in range(ROUNDS):
                for reader, python in pythons.items():
                    if not python:
                        continue
                    command = [python, "-c", BEGIN + PROGRAMS[reader], name, options.tracelens]
                    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
                    seconds, busy, *answer = done.stdout.split()
                    taken.setdefault(reader, []).append(float(seconds))
                    used.setdefault(reader, []).append(float(busy))
                    names[reader] = " ".join(answer)
        for reader, times in taken.items():
            busy = min(used[reader])
            row = (
                f"{min(times):.2f}",
                f"{statistics.median(times):.2f}",
                f"{busy:.2f}",
                f"{busy / min(used['perfkit']):.1f}",
            )
            print(f"| {clocks} | {reader} | {' | '.join(row)} | {names[reader]} |", flush=True)


if __name__ == "__main__":
    main()
