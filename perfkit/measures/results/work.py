"""What the ops of a step compute and move, next to the time that they take."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from perfkit._location import Location
from perfkit.run.records import OpKind, Phase


class OpWorkTime(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one op with the same shapes at one place, on the thread that trains.

    ``ns`` is their time per step with the ops that they call, ``ops`` the number of all these per step, ``outermost``
    of those that no other op calls. ``flops`` and ``bytes`` are the minimum that one call computes and moves,
    ``precision`` what it computes in and ``kind`` what limits it; None where the work of the op does not follow from
    its arguments. ``expanded`` is the first tensor's shape in memory where it is another one: 64x1x32 for rows that
    were expanded to 64x64x32. ``depth`` is that of a convolution (`MachineLimits.op_limit_ns`), and ``channels_first``
    whether an op on images has them in the default layout.
    """

    op: str
    phase: Phase
    ns: int
    calls: float
    ops: float
    outermost: float = 0.0
    shapes: str = ""
    flops: int | None = None
    bytes: int | None = None
    precision: str | None = None
    kind: OpKind | None = None
    expanded: str = ""
    depth: int | None = None
    channels_first: bool = False
    at: Location | None = None


class StepWork(msgspec.Struct, frozen=True, kw_only=True):
    """The ops of a typical step on the host, longest first; what they leave of the step runs in no op.

    ``step_ns`` is the step that the times are parts of; they were recorded with it and not outside of a recording.
    """

    AVAILABLE_FROM: ClassVar[str] = "the step for lines of a run without a device, or a trace with --record-shapes"

    source: str
    step_ns: int
    rows: tuple[OpWorkTime, ...]


class OpShares(msgspec.Struct, frozen=True, kw_only=True):
    """The share (0 to 1) of each phase's time in which the thread that trains is in an op, in a recorded window.

    ``phases_ns`` is how long the phases take there per step: recording lengthens a step, most of all outside of ops.
    """

    shares: dict[Phase, float]
    phases_ns: dict[Phase, int] = {}

    def at_speed_of(self, phase: Phase, backward_ns: int | None) -> float:
        """Time in the ops of a phase as in the window, at the speed of a backward that takes ``backward_ns``.

        In ns; 0.0 where it is not known. The backward shows the speed, because no hooks run between its ops.
        """
        window_ns, window_backward_ns = self.phases_ns.get(phase), self.phases_ns.get("backward")
        if not window_ns or not window_backward_ns or not backward_ns:
            return 0.0
        return self.shares.get(phase, 0.0) * window_ns * backward_ns / window_backward_ns
