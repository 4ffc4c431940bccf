"""The backward computes activations again although there is memory to keep them.

Problem: activation checkpointing drops what a forward computes and repeats that forward in the backward. It saves
memory for time: up to one more forward per step.

How it shows: on a CPU samples of the backward lie in `torch.utils.checkpoint`, which calls the forward again; on a GPU
nodes of the backward run ops that make new nodes, where the forward has checkpoints. That takes 5% of the step or more,
and at most half of the memory is in use, the machine's or the GPU's.

Causes: `gradient_checkpointing=True` copied from a recipe for a larger model; a `checkpoint(...)` that was needed with
a larger batch, or on a smaller machine.

Fix: keep the activations, or checkpoint only as many blocks as the memory asks for.

    x = block(x)                                     # not: checkpoint(block, x, use_reentrant=False)

    TrainingArguments(gradient_checkpointing=False)

    for i, block in enumerate(self.blocks):          # half of the blocks: half of the time, half of the memory
        x = checkpoint(block, x, use_reentrant=False) if i % 2 else block(x)

Saving: the time of the repeated forward, with the error of sampling, and three quarters of it at least. On a GPU it is
the device's time for it, or the host's, whichever is longer: a device waits for a host that is slower. How much memory
the activations take is not known: `perfkit run --memory` of the corrected program shows the new peak.

Source: on a CPU time is sampled every 10 ms outside windows. Half of the memory and three quarters were chosen. On an
H200 a step of 29.2 ms whose blocks were all checkpointed took 15.1 ms without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from perfkit._format import percent, size
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import LATE, ON_DEVICE, Selector
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.patterns import Patterns
from perfkit.measures.sample_counts import MIN_SAMPLES
from perfkit.rules._settings import first_call, number
from perfkit.run.records import CallPaths, Lines, Rank

ID = "recomputed-activations"
CLAIMS = (Selector(phase="backward"), LATE, ON_DEVICE)

#: Of the machine's memory the process uses no more than this share: what is not kept may well fit (chosen).
_FITS = 0.5
#: The share of the repeated forward that is saved at least (chosen): activations that are kept have to be allocated.
_SAVED = 0.75
_CHECKPOINT = "torch.utils.checkpoint"


class _Repeated(NamedTuple):
    """What the repeated forwards cost, at most (``high``), and where; the memory in use and all of it, in bytes."""

    cost: int
    high: int
    line: Location | None
    evidence: Evidence
    used: float | None
    total: float | None


def check(
    step: StepBudget, rank: Rank, lines: Lines | None = None, patterns: Patterns | None = None
) -> Iterator[Finding]:
    """Find the time of repeated forwards in the backward, where memory is left."""
    found = _on_device(step, patterns, rank) if step.on_device else _sampled(step, lines, rank)
    if found is None or step.is_negligible(found.cost):
        return
    used, total = found.used, found.total
    whose = "the device's memory" if step.on_device else "memory"
    change = _called_at(lines.paths) if lines is not None and lines.paths is not None else None
    change = change or first_call(rank, "gradient_checkpointing", "gradient_checkpointing_enable")
    finding = step.finding(
        cost=found.cost,
        saving=(_SAVED * found.cost, found.high),
        spent=found.line or change,
        change=change,
        message=(
            f"The backward repeats forwards of checkpointed modules: {step.shown(found.cost)}"
            + (f"; the process uses {size(used)} of {size(total)} of {whose} at most." if used and total else ".")
        ),
        advice="Keep the activations, or checkpoint fewer modules: as many as the memory asks for.",
        evidence=(
            found.evidence,
            Evidence("memory in use", used, "bytes", "at its peak"),
            Evidence(
                "memory of the device" if step.on_device else "memory of the machine",
                total,
                "bytes",
                f"{percent(used, total)} in use" if used and total else "settings of the run",
            ),
        ),
    )
    fits = used is not None and total is not None and used <= _FITS * total
    # Where the memory is needed, or may be, the time is its cost and no mistake.
    yield finding if fits else msgspec.structs.replace(finding, severity="info")


def _sampled(step: StepBudget, lines: Lines | None, rank: Rank) -> _Repeated | None:
    paths, backward = lines.paths if lines is not None else None, step.phase("backward")
    if paths is None or backward is None:
        return None
    repeated = _repeated(paths)
    whole = sum(count for phase, count in zip(paths.phase, paths.samples, strict=True) if phase == "backward")
    samples = repeated.total()
    if samples < MIN_SAMPLES:
        return None
    cost = round(backward.ns * samples / max(1, whole))
    return _Repeated(
        cost,
        step.maximum_saving(cost, samples=samples),
        max(repeated, key=lambda line: repeated[line]),
        Evidence.ms("repeated forwards", cost, f"{samples} of {whole} samples of the backward"),
        number(rank, "peak_resident_bytes"),
        number(rank, "memory_bytes"),
    )


def _on_device(step: StepBudget, patterns: Patterns | None, rank: Rank) -> _Repeated | None:
    repeated, backward = patterns.repeated if patterns is not None else None, step.phase("backward")
    if patterns is None or repeated is None:
        return None
    device_ns = step.of_pattern(repeated.ns, patterns)
    host_ns = round(repeated.backward_share * backward.ns) if backward is not None else 0
    cost = max(device_ns, host_ns)
    typical = step.typical
    return _Repeated(
        cost,
        step.maximum_saving(cost),
        None,
        Evidence.ms(
            "repeated forwards", cost, f"{patterns.source}, {'the device' if device_ns >= host_ns else 'the host'}"
        ),
        typical.memory_peak_bytes if typical is not None else None,
        number(rank, "cuda:0.total_bytes"),
    )


def _repeated(paths: CallPaths) -> Counter[Location]:
    """Samples of the backward in a repeated forward, by the user's innermost line; the one around where it has none."""
    found: Counter[Location] = Counter()
    #: Node -> whether it is in a repeated forward, and the user's line nearest to it.
    known: list[tuple[bool, Location | None]] = []
    for at, above, phase, samples in zip(paths.frame, paths.parent, paths.phase, paths.samples, strict=True):
        frame = paths.frames[at]
        inside, line = known[above] if above >= 0 else (False, None)
        if frame.line is not None:
            line = frame
        elif frame.file == _CHECKPOINT:
            inside = phase == "backward"
        elif frame.file == "torch.autograd":
            inside = False  # the reentrant form runs the backward of what it repeated inside of its own
        known.append((inside, line))
        if inside and samples and line is not None:
            found[line] += samples
    return found


def _called_at(paths: CallPaths) -> Location | None:
    """The user's line that calls a checkpointed function in the forward, most often; None: a library's does."""
    found: Counter[Location] = Counter()
    #: Node -> the user's line that it, or libraries of torch's alone, were called from.
    callers: list[Location | None] = []
    #: Samples of a node with all below it.
    below = list(paths.samples)
    for node in range(len(below) - 1, -1, -1):
        if paths.parent[node] >= 0:
            below[paths.parent[node]] += below[node]
    for node, (at, above, phase) in enumerate(zip(paths.frame, paths.parent, paths.phase, strict=True)):
        frame = paths.frames[at]
        caller = frame if frame.line is not None else callers[above] if above >= 0 else None
        if frame.line is None and frame.file == _CHECKPOINT and phase != "backward" and caller is not None:
            found[caller] += below[node]
            caller = None
        elif frame.line is None and not frame.file.startswith(("torch._compile", "torch._dynamo")):
            caller = None
        callers.append(caller)
    return max(found, key=lambda line: found[line], default=None)
