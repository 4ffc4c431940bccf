"""Columns of a rank, traces and run folders from a few numbers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfkit.ranks.clocks import HostClock
from perfkit.ranks.diagnosing import RankLateness, RanksDiagnosis
from perfkit.ranks.late_ranks import LateFinding
from perfkit.ranks.rank_columns import RankColumns
from perfkit.run.records import ClockPair, Phases, Rank, Run, Step, Waits

MS = 1_000_000


def rank_columns(rank: int = 0, steps: int = 4, collectives: int = 3, **changed: Any) -> RankColumns:
    """A rank whose steps of 100 ms have ``collectives`` each, with the fields of ``changed`` replaced."""
    number, m = np.arange(steps), steps * collectives
    start = 1_760_000_000 * 10**9 + number * 100 * MS
    arrive = (start[:, None] + 10 * MS * np.arange(1, collectives + 1)).reshape(-1)
    unknown = np.full(steps, -1)
    fields: dict[str, Any] = {
        "rank": rank,
        "world_size": 2,
        "host": "node0",
        "launch": "",
        "source": f"rank-{rank}",
        "origin": "rows",
        "digest": "0123",
        "lost": (),
        "step_number": number,
        "step_start_ns": start,
        "step_wall_ns": np.full(steps, 100 * MS),
        "phase_names": ("data", "backward"),
        "phases_ns": np.tile(np.array([20 * MS, 80 * MS]), (steps, 1)),
        "gc_ns": unknown,
        "waited_ns": unknown,
        "work": unknown,
        "group_names": ("all",),
        "kind_names": ("allreduce",),
        "collective_group": np.zeros(m, np.int32),
        "collective_kind": np.zeros(m, np.int32),
        "collective_sequence": np.arange(m),
        "collective_bytes": np.full(m, 1024),
        "collective_step": np.repeat(number, collectives),
        "collective_arrive_ns": arrive,
        "collective_start_ns": arrive + MS,
        "collective_end_ns": arrive + 5 * MS,
        "collective_busy_ns": np.full(m, -1),
        "kernel_classes": (),
        "kernel_ns": np.zeros((steps, 0), np.int64),
        "kernel_count": np.zeros((steps, 0), np.int64),
    }
    return RankColumns(**(fields | changed))


def kineto_trace(
    path: Path,
    rank: int | None,
    world_size: int = 2,
    *,
    steps: range = range(10, 13),
    backend: str = "nccl",
    sequence: bool = True,
    data_ms: int = 10,
    late_ms: int = 0,
    end_ms: int = 0,
    clock_ms: int = 0,
) -> Path:
    """A small trace as torch.profiler writes it: steps of 100 ms, in each a matmul and an all-reduce of 1 MB.

    The launch of the all-reduce is ``late_ms`` later than 50 ms, and its kernel takes 20 ms, or until ``end_ms``; with
    gloo the host runs it. The rank's clock is ``clock_ms`` ahead.
    """
    events: list[dict[str, Any]] = []

    def event(cat: str, name: str, tid: int, ts_ms: float, dur_ms: float, **args: Any) -> None:
        pid = 0 if cat == "kernel" else 100
        events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts_ms * 1000, "dur": dur_ms * 1000}
            | {"args": args}
        )

    facts = {"Collective name": "allreduce", "In msg nelems": 262144, "Out msg nelems": 262144, "dtype": "Float"}
    facts |= {"Group size": world_size, "Process Group Name": "0", "Process Group Ranks": str([*range(world_size)])}
    for i, step in enumerate(steps):
        at, call = 100 * i, 100 * i + 50 + late_ms
        takes = at + end_ms - call - 1 if end_ms else 20
        event("user_annotation", f"ProfilerStep#{step}", 1, at, 100)
        event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1, at, data_ms)
        event("cpu_op", "c10d::allreduce_", 1, call, 1)
        if backend == "gloo":
            event("user_annotation", "gloo:all_reduce", 7, call + 1, takes, **SHAPES)
            continue
        seq = {"Seq": 30 + step} if sequence else {}
        event("cuda_runtime", "cudaLaunchKernel", 1, at + 20, 0.01, correlation=10 * i + 1)
        event("kernel", "ampere_sgemm_128x64_nn", 7, at + 21, 20, device=0, stream=7, correlation=10 * i + 1)
        event("cuda_runtime", "cudaLaunchKernel", 1, call, 0.01, correlation=10 * i + 2)
        event("kernel", NCCL, 20, call + 1, takes, device=0, stream=20, correlation=10 * i + 2, **facts, **seq)
    info = {"backend": backend, "rank": rank, "world_size": world_size}
    head = {"schemaVersion": 1, "deviceProperties": [], "host_name": f"node{(rank or 0) // 8}"}
    head |= {"distributedInfo": info} if rank is not None else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    base = 1_760_000_000 * 10**9 + clock_ms * MS
    text = json.dumps(head | {"traceEvents": events, "baseTimeNanoseconds": base}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def late_rank_traces(folder: Path, ranks: int = 4, late: int = 2, steps: range = range(10, 20)) -> Path:
    """Traces of ranks of which one waits 20 ms longer for its data; the others wait for it in the all-reduce."""
    for rank in range(ranks):
        more = 20 if rank == late else 0
        kineto_trace(
            folder / f"rank-{rank}.json.gz", rank, ranks, steps=steps, data_ms=10 + more, late_ms=more, end_ms=91
        )
    return folder


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SHAPES = {"Input Dims": [[262144]], "Input type": ["float"]}


def run_folder(
    path: Path,
    ranks: int = 2,
    steps: int = 12,
    *,
    world_size: int | None = None,
    launch: str = "a",
    late: int | None = -1,
    waits: bool = False,
) -> Path:
    """A run of several ranks, as perfkit writes it; the data of one (the last) takes 30 of 100 ms, the others' 10.

    With ``waits`` they are blocked in collectives of their backward, that one for 5 ms, the others for 25.
    """
    path.mkdir(parents=True, exist_ok=True)
    size = world_size or ranks
    run = Run(launch_id=launch, command=("train.py",), folder="", world_size=size)
    (path / "run.json").write_bytes(msgspec.json.encode(run))
    for rank in range(ranks):
        folder = path / f"rank-{rank}"
        folder.mkdir(exist_ok=True)
        pairs = (ClockPair(0, 1_760_000_000 * 10**9), ClockPair(10**10, 1_760_000_010 * 10**9 + 1000))
        facts = Rank(rank=rank, launch_id=launch, host="node0", pid=7, start_ns=0, end_ns=1, clock_pairs=pairs)
        (folder / "rank.json").write_bytes(msgspec.json.encode(facts))
        data = 30 * MS if late is not None and rank == late % ranks else 10 * MS
        blocked = Waits(backward=35 * MS - data) if waits else None
        rows = [
            Step(
                step=i,
                kind="window" if i in (4, 5) else "timed",
                start_ns=i * 100 * MS,
                wall_ns=100 * MS,
                phases_ns=Phases(data=data, backward=100 * MS - data),
                waited_phases_ns=blocked,
                tokens=512,
            )
            for i in range(steps)
        ]
        (folder / "steps.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(rows))
    return path


def ranks_diagnosis(count: int = 8, *, host: str = "", **changed: Any) -> RanksDiagnosis:
    """A job with steps of 100 ms, in which rank 3 is 30 ms late for its data, and rank 5 once for a checkpoint."""
    rows = tuple(
        RankLateness(
            rank=rank,
            host=host or f"node{rank // 8}",
            own_ns=(80 if rank == 3 else 50) * MS,
            waiting_ns=0 if rank == 3 else 30 * MS,
            given_ns=210 * MS if rank == 3 else 0,
            last_share=float(rank == 3),
        )
        for rank in range(count)
    )
    first = LateFinding(
        subject="rank",
        ranks=(3,),
        hosts=(host or "node0",),
        cause="data",
        shape="persistent",
        saving_ns=30 * MS,
        slowdown=1.4,
        late_ns=31 * MS,
        step_share=0.98,
    )
    second = msgspec.structs.replace(first, ranks=(5,), cause="checkpoint", shape="once", saving_ns=4 * MS)
    fields: dict[str, Any] = {
        "source": "runs/x",
        "verdict": "Rank 3 (node0) waits for its data in most steps.",
        "outcome": "late",
        "world_size": count,
        "wall_ns": 100 * MS,
        "waiting_ns": 26 * MS,
        "transfer_ns": 4 * MS,
        "steps": 1000,
        "first_step": 0,
        "last_step": 999,
        "measured_by": "waited",
        "findings": (first, second),
        "ranks": rows,
        "clocks": (
            HostClock(host="node0", ranks=8, offset_ns=0, drift_ppm=0, residual_ns=5_000),
            HostClock(host="node1", ranks=8, offset_ns=-2 * 3600 * 10**9, drift_ppm=9, residual_ns=12_000),
        ),
    }
    return RanksDiagnosis(**(fields | changed))
