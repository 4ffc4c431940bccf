"""sweep.json: what `perfkit try --sweep` has measured, in the folder of a run of the program."""

from __future__ import annotations

from typing import Literal

import msgspec

from perfkit._versioned_json import json_text

#: Version of sweep.json.
SWEEP_SCHEMA = 1

#: What is varied.
Swept = Literal["batch-size", "workers"]
#: What became of a value: it was measured; it ran out of memory; the program was over before enough steps; its data has
#: fewer samples than one batch; the program failed; it was not tried.
SweptOutcome = Literal["measured", "out-of-memory", "too-short", "not-full", "failed", "not-tried"]

#: What a peak is of: the memory of the device, or the process's resident memory.
Memory = Literal["device", "resident"]


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One value.

    Attributes:
        reruns: How often it was measured; ``steps`` are the timed steps of all of them.
        step_ns: Mean step.
        per_s: Samples per second on rank 0 (steps per second where `Sweep.unit` is "steps"); ``low`` and ``high`` are
            the slowest and the fastest half of a rerun.
        peak_bytes: The largest memory of rank 0: of its device, or resident; ``left_bytes`` of the device's or the
            machine's memory remained.
        note: Why it was not measured, or what limits it; one sentence.
    """

    value: int
    outcome: SweptOutcome = "measured"
    reruns: int = 0
    steps: int = 0
    step_ns: int | None = None
    per_s: float | None = None
    low: float | None = None
    high: float | None = None
    peak_bytes: int | None = None
    left_bytes: int | None = None
    note: str = ""


class MemoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """Peak memory as ``fixed_bytes + bytes_per_sample * batch``, fitted by least squares over ``points`` batch sizes.

    ``deviation`` is the largest distance of a measured peak from the line, as a share of that peak.
    """

    fixed_bytes: int
    bytes_per_sample: int
    deviation: float
    points: int

    def at(self, batch: int) -> int:
        """The peak of this batch size."""
        return self.fixed_bytes + self.bytes_per_sample * batch


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """A program's throughput and memory by batch size, or by the number of workers.

    Attributes:
        program: The command that was run.
        verdict: The result in one sentence.
        own: The program's own value.
        points: By value.
        memory: What `SweepPoint.peak_bytes` is of; None where no peak is known.
        total_bytes: The memory of the device or the machine.
        reserve: The share of it that a recommended value leaves.
        line: How the peak follows the batch size; None where there are too few points, or workers are varied.
        recommended: The smallest value within 5 % of the best throughput that leaves the reserve; None: there is none.
        accumulate: The steps over which to accumulate gradients so that the effective batch stays the program's own;
            None where the recommended batch is larger, or divides it not.
        notes: What limits this result.
        seconds: How long all of it took.
    """

    schema: int = SWEEP_SCHEMA
    program: str
    verdict: str
    swept: Swept = "batch-size"
    own: int | None = None
    unit: Literal["samples", "steps"] = "samples"
    points: tuple[SweepPoint, ...] = ()
    memory: Memory | None = None
    total_bytes: int | None = None
    reserve: float
    line: MemoryLine | None = None
    recommended: int | None = None
    accumulate: int | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> str:
        """The text of sweep.json."""
        return json_text(self)

    def __repr__(self) -> str:
        return f"<sweep of {self.program}: {self.verdict}>"
