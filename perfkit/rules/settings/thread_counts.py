"""torch computes on more threads than there are CPUs.

Problem: each parallel operation waits for its last thread. With more threads than CPUs, that thread waits for its turn,
and switching, waking and spinning threads takes processor time that computes nothing. Loader workers and other ranks on
the machine count too.

How it shows: `torch.get_num_threads()` exceeds the CPUs that the process may use, while the step computes on the CPU.

Causes: `torch.set_num_threads(64)` from a larger machine; a container that sees all CPUs and may use two; several
ranks, each with the threads of a whole machine.

Fix: use as many threads as the process has CPUs, or fewer with other ranks and loader workers on the machine.

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    OMP_NUM_THREADS=$((CPUS / RANKS)) torchrun --nproc-per-node=$RANKS train.py

Saving: the extra time of one parallel operation, measured between steps of this run with its own threads, times the
operations of the trace that are long enough to have been split. The range is 0.7 to 1.4 times that: on a busy machine
it is no more certain. Unknown where it was not measured.

Source: torch's tuning guide ("avoid oversubscription"). The measured operation adds 2**15 numbers per thread: torch's
grain, the minimum for each thread. The range was chosen.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding, Severity
from perfkit.rules._settings import first_call, number
from perfkit.rules.settings._ops_in_step import OpsInStep
from perfkit.run.records import Rank

ID = "thread-counts"

#: The range around the measured cost of the parallel operations: chosen.
_LOW, _HIGH = 0.7, 1.4
#: Operations shorter than this were not split: the grain takes longer to compute.
_SPLIT_NS = 10_000


def check(rank: Rank, ops: OpsInStep | None = None) -> Iterator[Finding]:
    """Find more threads than CPUs where the step computes on the CPU, and what they cost."""
    threads = number(rank, "torch.num_threads")
    cpus = number(rank, "cpu_affinity") or number(rank, "cpu_count")
    ranks = number(rank, "LOCAL_WORLD_SIZE") or 1
    if rank.devices or threads is None or cpus is None or threads == 1 or threads * ranks <= cpus:
        return
    evidence = [
        Evidence("threads of torch", threads, "", "torch.get_num_threads()"),
        Evidence("CPUs of the process", cpus, "", "its affinity"),
    ]
    if ranks > 1:
        evidence.append(Evidence("ranks on the machine", ranks, "", "LOCAL_WORLD_SIZE"))
    severity: Severity = "warning"
    low = high = None
    costs = ""
    extra_ns = rank.settings.get("threads.beyond_ns", "")
    if ops is not None and extra_ns.isdigit():
        split = ops.count(row.count for row in ops.rows if row.count and row.self_ns / row.count >= _SPLIT_NS)
        estimate = split * int(extra_ns) * ops.step.trace_scale
        low, high = (min(ops.step.wall_ns, round(factor * estimate)) for factor in (_LOW, _HIGH))
        severity = ops.step.severity((low + high) / 2)
        costs = f": at most about {ms(high)} of the {ms(ops.step.wall_ns)} step"
        evidence += [
            Evidence("extra time of a parallel operation", int(extra_ns) / 1e3, "µs", "measured between two steps"),
            Evidence("operations that may be split", round(split), "", ops.source),
        ]
    else:
        evidence.append(Evidence.ms("cost", None, "what waking the threads costs was not measured"))
    of_ranks = f" in each of {ranks} ranks" if ranks > 1 else ""
    advised = max(1, cpus // ranks)
    yield Finding(
        severity=severity,
        message=f"torch computes on {threads} threads{of_ranks}, and there are {cpus} CPUs{costs}.",
        advice=f"torch.set_num_threads({advised}), or OMP_NUM_THREADS={advised}.",
        evidence=tuple(evidence),
        spent=first_call(rank, "set_num_threads"),
        cost_ns=high,
        saving_low_ns=low,
        saving_high_ns=high,
    )
