"""torch computes on more threads than there are CPUs.

Problem: each parallel operation waits for its last thread. With more threads than CPUs that one has to wait for a
turn, and switching between threads, waking them and letting them spin takes processor time that computes nothing.
Loader workers and other ranks on the machine count too.

How it shows: `torch.get_num_threads()` is above the CPUs that the process may use, while the step computes on the
CPU.

Causes: `torch.set_num_threads(64)` from a larger machine; a container that sees all CPUs and may use two; several
ranks, each with the threads of a whole machine.

Fix: as many as the CPUs of this process, or fewer beside other ranks and loader workers.

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    OMP_NUM_THREADS=$((CPUS / RANKS)) torchrun --nproc-per-node=$RANKS train.py

Gain: not known without another number of threads. What a parallel operation takes beyond the same work on the
CPUs there are was measured between steps of this run (the median of eight), with the run's own threads; times the
operations of the trace that are long enough to have been split. The range is 0.7 to 1.4 times that: on a busy machine
it is no better known. It is null where it was not measured.

Source: OpenMP's guided oversubscription is undefined by the standard; torch's tuning guide ("avoid
oversubscription"). The operation measured adds to 2**15 numbers per thread, which is torch's grain: the least
that each thread gets.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._settings import first_call, number
from perfkit.rules._step_budget import severity_of, trace_scale, whole_of

ID = "thread-counts"

#: Times the grain cost of one parallel operation that the true one may be less or more (see above).
_LOW, _HIGH = 0.7, 1.4
#: Operations below this were not split: less than the grain computes in it.
_SPLIT_NS = 10_000


def check(measured: Measured) -> Iterator[Finding]:
    """Find more threads than CPUs where the step computes on the CPU, and what they cost."""
    rank = measured.rank
    if rank is None or rank.devices:
        return
    threads = number(rank, "torch.num_threads")
    cpus = number(rank, "cpu_affinity") or number(rank, "cpu_count")
    ranks = number(rank, "LOCAL_WORLD_SIZE") or 1
    if threads is None or cpus is None or threads == 1 or threads * ranks <= cpus:
        return
    whole, ops = whole_of(measured), measured.ops
    beyond = rank.settings.get("threads.beyond_ns", "")
    evidence = [
        Evidence("threads of torch", threads, "", "torch.get_num_threads()"),
        Evidence("CPUs of the process", cpus, "", "its affinity"),
    ]
    if ranks > 1:
        evidence.append(Evidence("ranks on the machine", ranks, "", "LOCAL_WORLD_SIZE"))
    price = None
    if whole is not None and ops is not None and ops.steps and beyond.isdigit():
        split = sum(row.count for row in ops.rows if row.count and row.self_ns / row.count >= _SPLIT_NS) / ops.steps
        middle_ns = split * int(beyond) * trace_scale(measured)
        price = tuple(min(whole.wall_ns, round(factor * middle_ns)) for factor in (_LOW, _HIGH))
        evidence += [
            Evidence("a parallel operation beyond its work", int(beyond) / 1e3, "us", "measured between two steps"),
            Evidence("operations that may be split", round(split), "", f"trace, {ops.steps} steps"),
        ]
    else:
        evidence.append(Evidence("lost", None, "ms", "what waking the threads costs was not measured"))
    costs = f": about {ms(price[1])} of the {ms(whole.wall_ns)} step at most" if price and whole else ""
    at = first_call(rank, "set_num_threads")
    of = f" in each of {ranks} ranks" if ranks > 1 else ""
    yield Finding(
        rule=ID,
        severity=severity_of(price[1], whole) if price and whole else "warning",
        message=f"torch computes on {threads} threads{of}, and there are {cpus} CPUs{costs}.",
        advice=f"torch.set_num_threads({max(1, cpus // ranks)}), or OMP_NUM_THREADS={max(1, cpus // ranks)}.",
        confidence="medium",
        evidence=tuple(evidence),
        file=at.file if at else None,
        line=at.line if at else None,
        function=at.function if at else None,
        cost_ns=price[1] if price else None,
        saving_low_ns=price[0] if price else None,
        saving_high_ns=price[1] if price else None,
    )
