"""Numbers of steps: phases, throughput, utilization, ranks, batches and compilation."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from perfkit._location import Location
from perfkit.run.records import LineRow, NodeHealth, Phase, Phases, Waits, total_ns


class StepBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Where a step's host time goes.

    ``wall_ns`` and ``phases_ns`` are means per step over the same ``steps`` steps, so the phases sum to
    the wall time (to rounding). ``excluded`` counts the steps left out, by reason. ``window_ns`` is the
    mean step inside windows: compared with ``wall_ns`` it shows how much recording slowed the step.
    ``memory_peak_bytes`` is the maximum that was allocated on the device; ``alloc_retries`` and ``device_allocs``
    are totals after the warm-up of 50 steps. ``waited_phases_ns`` are the parts of the phases in which the host was
    blocked in collectives, None where no step has them.
    """

    steps: int
    wall_ns: int
    median_ns: int
    p10_ns: int
    p90_ns: int
    phases_ns: Phases
    source: str
    excluded: dict[str, int] = {}
    window_ns: int | None = None
    samples_per_step: float | None = None
    gc_ns: int | None = None
    recompiles: int | None = None
    memory_peak_bytes: int | None = None
    alloc_retries: int | None = None
    device_allocs: int | None = None
    waited_phases_ns: Waits | None = None

    @property
    def waited_ns(self) -> int | None:
        """Time in which the host was blocked in collectives, over all phases; None: not measured."""
        return total_ns(self.waited_phases_ns)


class TypicalStep(StepBreakdown, frozen=True, kw_only=True):
    """The timed steps of a run without the outliers at both ends: what an ordinary step costs."""

    AVAILABLE_FROM: ClassVar[str] = "steps recorded by perfkit run or perfkit.profile"


class MeanStep(StepBreakdown, frozen=True, kw_only=True):
    """All timed steps of a run, with those in which something rare happens (a checkpoint, an epoch's end)."""

    AVAILABLE_FROM: ClassVar[str] = "steps recorded by perfkit run or perfkit.profile"


class TracedStep(StepBreakdown, frozen=True, kw_only=True):
    """The steps of one trace, as they were recorded."""


class SlowStep(msgspec.Struct, frozen=True, kw_only=True):
    """One slow step; ``phase`` exceeded its median the most, by ``beyond_ns``, and is None where none did."""

    step: int
    wall_ns: int
    phase: Phase | None
    beyond_ns: int
    gc_ns: int | None = None
    recompiles: int | None = None


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of training per second without validation, percentiles of the step, the slowest steps.

    ``samples_per_s`` and ``tokens_per_s`` are None unless every step has them; ``p90_ns`` needs 10 steps, ``p99_ns``
    100. ``excluded`` counts the steps left out, by reason. All of one rank.
    """

    steps: int
    steps_per_s: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    p50_ns: int
    p90_ns: int | None
    p99_ns: int | None
    slowest: tuple[SlowStep, ...]
    source: str
    excluded: dict[str, int] = {}


class Utilization(msgspec.Struct, frozen=True, kw_only=True):
    """Model FLOPs utilization of one device: ``mfu`` is 0 to 1.

    ``flops`` is the model's operations per step and ``recomputed`` what checkpointing adds to them. ``precision``
    is the one that most of them are computed in, ``peak_flops_per_s`` the device's dense peak for it.
    """

    mfu: float
    flops: int
    recomputed: int
    flops_per_s: float
    precision: str
    peak_flops_per_s: float
    device: str
    source: str


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One rank compared with the others; times are means per step.

    Attributes:
        own_ns: Time in which it waits for no other rank: the step without its waits in collectives, or where these are
            not known, the phases in which no rank waits for another.
        phases_ns: Its phases, without the waits where they are known.
        waited_ns: Time in collectives on the host: transfer, and waiting for others. None: not known of all ranks.
        caused_share: The share (0 to 1) of the others' waiting that it caused: in the steps in which it came last.
        late_steps: The number of steps in which it came last, and the others waited for 5% of the step or longer.
        late_ns: By how much steps would be shorter if it came together with the last of the others.
        size_per_step: The size of its data (tokens, elements of a batch or samples).
        cpu_ns: Processor time of its process: more of it means more work, not a busier machine.
        thread_ns: Processor time of the thread that trains.
        core_wait_ns: Time in which that thread could have run and had no core; where the waits are known, no more than
            what it did not run of its own time.
        line: The user's line with most samples in its own time.
        lines: The same by phase. Like ``collected``, where most of its full garbage collections began, and ``node``,
            the health of its GPU, kept only of the rank that caused most: for thousands it would be too much.
    """

    rank: int
    own_ns: int
    phases_ns: Phases
    caused_share: float
    late_steps: int
    late_ns: int
    waited_ns: int | None = None
    gc_ns: int | None = None
    size_per_step: float | None = None
    cpu_ns: int | None = None
    thread_ns: int | None = None
    core_wait_ns: int | None = None
    line: LineRow | None = None
    lines: dict[Phase, LineRow] = {}
    collected: Location | None = None
    host: str | None = None
    node: NodeHealth | None = None


#: The share of the waiting, and of the steps with waiting, that a rank must cause to be the one that the others wait
#: for; and the minimum of such steps. With two ranks of equal work, one causes 80% of 8 or more steps in 7% of all runs
#: at most (binomial, 7 or 8 of 8, either rank), and at the same time 80% of a waiting that is worth a report in fewer.
_OFTEN, _MIN_LATE = 0.8, 8


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of a run over the ``steps`` that were ordinary on all of them; times are means per step.

    ``waiting_ns`` is how long the mean rank waits for the one that comes last, step by step; what single steps have
    beyond the eighth longest is left out. ``blocked_ns`` is how long the mean rank is in collectives on the host, and
    ``transfer_ns`` the part in which no rank waits for a later one: None where collectives do not block the host of
    every rank. ``follows_size`` is the correlation of a rank's own time with the size of its data, both beyond the
    others' of the step; None where sizes are not known or equal.
    """

    AVAILABLE_FROM: ClassVar[str] = "two or more ranks"

    steps: int
    wall_ns: int
    waiting_ns: int
    ranks: tuple[RankSummary, ...]
    blocked_ns: int | None = None
    transfer_ns: int | None = None
    follows_size: float | None = None

    @property
    def waited_for(self) -> RankSummary | None:
        """The rank that causes at least 80% of the waiting, in 8 steps or more; None where there is none."""
        worst = max(self.ranks, key=lambda rank: rank.caused_share, default=None)
        if worst is None or worst.caused_share < _OFTEN:
            return None
        often = worst.late_steps >= max(_MIN_LATE, _OFTEN * sum(rank.late_steps for rank in self.ranks))
        return worst if often else None


class BatchTime(msgspec.Struct, frozen=True, kw_only=True):
    """How a step's time, without the wait for data, follows the elements of its batch.

    ``spread`` is the deviation of the sizes over their mean, ``follows`` the rank correlation of size and time.
    ``padded_share`` (0 to 1) is of the batches that were examined, None where none could be.
    """

    steps: int
    elements_per_step: float
    spread: float
    ns_per_element: float
    follows: float
    padded_share: float | None
    batches_inspected: int


class GrowingInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a model, each with one position more than the call before it: ``calls`` of them, ``share`` of all.

    ``positions`` is the mean length, and ``by_position`` the share (0 to 1) of a call's time that follows it: what all
    positions but one take.
    """

    AVAILABLE_FROM: ClassVar[str] = "a program whose steps are calls of a model, recorded by perfkit run"

    calls: int
    share: float
    positions: float
    by_position: float


class CompileCost(msgspec.Struct, frozen=True, kw_only=True):
    """Graphs that torch.compile compiled in all ``steps``, and in the ``late_steps``: the timed ones' second half."""

    AVAILABLE_FROM: ClassVar[str] = "steps of a program that uses torch.compile"

    graphs: int
    total_ns: int
    steps: int
    late_steps: int
    late_graphs: int
    late_ns: int
    late_wall_ns: int
