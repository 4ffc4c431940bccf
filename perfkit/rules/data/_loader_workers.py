"""What work that makes batches costs a step, and what remains of it when processes beside training do it."""

from __future__ import annotations

from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import on_device

#: What a batch costs that comes from a worker process: 1.3 ms was measured for a two-tensor batch between processes
#: on two shared cores.
HANDOVER_NS = 1_300_000
#: What a worker slows training that computes on the same processor, by shared caches, memory and often a shared core:
#: with one worker that was at work two thirds of the time, forward and backward took 24 and 33 % longer on two CPUs.
_CONTENTION = 0.25
#: More workers than this are a matter of measuring, not of a first advice: each holds a copy of the dataset.
MOST_WORKERS = 4


def processor(measured: Measured) -> tuple[int | None, int | None]:
    """CPUs this process may use, None where unknown; threads a step computes on, None where a device computes."""
    settings = measured.rank.settings if measured.rank is not None else {}

    def number(name: str) -> int | None:
        text = settings.get(name, "")
        return int(text) if text.isdigit() and int(text) > 0 else None

    cpus = number("cpu_affinity") or number("cpu_count")
    return cpus, None if on_device(measured) else min(number("torch.num_threads") or 1, cpus or 1)


def workers_for(measured: Measured) -> int:
    """How many workers to begin with: one CPU is left to the training process."""
    cpus, _ = processor(measured)
    return max(1, min(cpus - 1, MOST_WORKERS)) if cpus is not None else MOST_WORKERS


def slowed_by_workers(measured: Measured, rest_ns: int) -> int:
    """What workers slow the rest of the step where it computes on the processor that they share."""
    return 0 if on_device(measured) else round(_CONTENTION * rest_ns)


def hidden_by_workers(measured: Measured, wall_ns: int, work_ns: int) -> tuple[int, str]:
    """How much of ``work_ns`` of a step background workers hide for certain, and the sentence that says why."""
    cpus, threads = processor(measured)
    # One background process is the least that any machine can run.
    workers = workers_for(measured) if cpus is not None else 1
    rest_ns = wall_ns - work_ns
    step_ns = max(rest_ns, work_ns / workers)
    assumption = f"{workers} background worker{'s' if workers > 1 else ''}, the same work per sample"
    if cpus is not None:
        step_ns = max(step_ns, (work_ns + rest_ns * (threads or 1)) / cpus)
        assumption += f", {cpus} CPUs shared with {threads or 1} thread{'s' if (threads or 1) > 1 else ''} of training"
    slowed_ns = slowed_by_workers(measured, rest_ns)
    return max(0, round(wall_ns - step_ns - slowed_ns - HANDOVER_NS)), assumption
