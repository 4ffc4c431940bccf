"""What holds memory at the peak of a step, and what checkpointing would free of it."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from perfkit._location import Location
from perfkit.run.records import Holding, Phase


class StepMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One step: the maximum that was held in it, and what is held at its end. ``samples`` is its batch, if known."""

    step: int
    peak_bytes: int
    end_bytes: int
    samples: int | None = None


class MemoryPart(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a phase, a module, an op or a line of the step.

    Attributes:
        held_bytes: What it has allocated and is held at the peak; of a module also its parameters, their gradients and
            their optimizer state. ``holding`` divides that by what it is held for.
        peak_bytes: The level after the allocation of this part at which most was held; None: it allocated nothing.
        allocated_bytes, allocations: All that it allocated in the step, also what was freed again.
        at: Of a line, where it stands.
    """

    name: str
    held_bytes: int
    holding: dict[Holding, int]
    peak_bytes: int | None
    allocated_bytes: int
    allocations: int
    at: Location | None = None


class HeldPath(msgspec.Struct, frozen=True):
    """Memory held at the peak by where it was allocated: calls and ops from outside in, or the name of a parameter."""

    holding: Holding
    path: tuple[str, ...]
    bytes: int
    allocations: int


class PeakMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What one device (``cpu``, ``cuda:0``) holds at the peak of a step, from the steps recorded for memory.

    Attributes:
        step: The step that was taken apart, the last of ``steps``.
        peak_bytes: The maximum that tensors held in it; `DeviceMemory` has the maximum of its own window.
        end_bytes: What they hold at the step's end.
        phase, op, at: Where the peak was reached: the phase, the op and the user's line that allocated then.
        holding: The peak by what memory is held for; sums to it.
        phases, modules, ops, lines: The parts, by what they hold at the peak. A module contains its submodules.
        paths: The peak by call path, largest first, for a flame graph.
        outside_bytes: Memory of the process that no tensor of the host holds: Python, libraries, and what the
            allocator keeps. None on a device.
    """

    AVAILABLE_FROM: ClassVar[str] = "perfkit run --memory"

    device: str
    source: str
    step: int
    peak_bytes: int
    end_bytes: int
    phase: Phase | None
    op: str | None
    at: Location | None
    holding: dict[Holding, int]
    steps: tuple[StepMemory, ...]
    phases: tuple[MemoryPart, ...] = ()
    modules: tuple[MemoryPart, ...] = ()
    ops: tuple[MemoryPart, ...] = ()
    lines: tuple[MemoryPart, ...] = ()
    paths: tuple[HeldPath, ...] = ()
    outside_bytes: int | None = None


class CheckpointTrade(msgspec.Struct, frozen=True, kw_only=True):
    """What checkpointing some modules would free at the peak of a step, and the time that it would add.

    Attributes:
        call: The code to write: ``checkpoint_sequential(blocks, 3, x)``.
        modules: What would be computed again in the backward.
        peak_bytes, with_bytes: The peak of the recorded step, and the predicted one.
        forward_share: The recomputed part of the forward, 0 to 1, by the time of its ops.
        added_ns: Time that computing it again adds to a step, without what a call of ``checkpoint`` itself takes; None
            where no forward was timed.
    """

    AVAILABLE_FROM: ClassVar[str] = "perfkit run --memory, of a model with activations"

    device: str
    call: str
    modules: tuple[str, ...]
    peak_bytes: int
    with_bytes: int
    forward_share: float
    added_ns: int | None = None

    @property
    def freed_bytes(self) -> int:
        """By how much the peak would fall."""
        return self.peak_bytes - self.with_bytes
