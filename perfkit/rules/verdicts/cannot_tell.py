"""What was recorded does not show where the time goes.

Problem: no verdict is possible, and a guess would be worse than none.

How it shows: the recording is incomplete (launches without kernels, collectives or ops of a device without device
events, a cut file, missing steps, device events without launches); or nothing has a length; or there are neither steps
nor device events.

Causes: a trace without `ProfilerStep` ranges and without a device; a loop whose phases perfkit could not see (no
DataLoader, no optimizer, no `steps()`); a recording cut short or damaged; a profiler that dropped events or may not use
CUPTI; CUDA graphs whose kernels were not recorded.

Fix: record the loop itself.

    with perfkit.profile("runs/train") as prof:
        for batch in prof.steps(loader):
            train_step(batch)

    prof.step()             # with torch.profiler alone: marks the steps that times are counted by

Saving: unknown.

Source: complete recordings lack the device event of 0 to 0.5% of their launches (perfkit.measures.completeness).
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.completeness import Completeness
from perfkit.measures.results.host import Ops
from perfkit.measures.results.measurements import TraceFacts

ID = "cannot-tell"
OUTCOME = "cannot-tell"


def check(
    step: StepBudget | None = None,
    facts: TraceFacts | None = None,
    ops: Ops | None = None,
    completeness: Completeness | None = None,
) -> Iterator[Finding]:
    """Report why there is no verdict; run where no problem could be quantified, or the recording is incomplete."""
    if completeness is not None and completeness.fatal:
        yield _incomplete(completeness)
        return
    reason = _reason(step)
    if reason is None:
        return
    on_device = step is not None and step.device is not None
    yield Finding(
        severity="info",
        message=f"Cannot tell: {reason}",
        advice=(
            "Record more steps, with prof.step() after each."
            if on_device
            else "Record the loop: perfkit run train.py, or perfkit.profile() with prof.steps(loader)."
        ),
        confidence="high",
        evidence=tuple(_evidence(step, facts, ops)),
    )


def _incomplete(completeness: Completeness) -> Finding:
    """What is missing. A warning: what else is found rests on a part of what happened."""
    problems = completeness.named
    return Finding(
        severity="warning",
        message=f"Cannot tell: the recording is incomplete. {' '.join(problem.sentence for problem in problems)}",
        advice=" ".join(dict.fromkeys(problem.advice for problem in problems)),
        confidence="high",
        evidence=(
            Evidence("launches of device work", completeness.launches, "", "trace"),
            Evidence("of those without a device event", completeness.launches_lost, "", "trace"),
            Evidence.percent("device events without a launch", completeness.unlinked_share, 1, "trace"),
        ),
    )


def _reason(step: StepBudget | None) -> str | None:
    """Why the step has no verdict, None where it has one."""
    if step is None:
        return "nothing recorded here has a length: no step and no event."
    if step.device is None and step.typical is None and step.traced is None and step.per != "program":
        return "the trace marks no steps and holds no device events, so no time can be counted per step."
    return None


def _evidence(step: StepBudget | None, facts: TraceFacts | None, ops: Ops | None) -> Iterator[Evidence]:
    if facts is not None:
        yield Evidence("events", facts.events, "", facts.format)
        yield Evidence("device events", facts.device_events, "", facts.format)
        yield Evidence("steps marked", facts.steps, "", facts.format)
    for row in sorted(ops.rows if ops is not None else (), key=lambda row: -row.self_ns)[:3]:
        yield Evidence.ms(f"op {row.name}", row.self_ns, f"own time of {row.count} calls")
    for cause, ns in step.device.causes.items() if step is not None and step.device is not None else ():
        if ns:
            yield Evidence.ms(f"idle, {cause}", ns, "the whole window")
