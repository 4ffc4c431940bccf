"""Numbers of steps: phases, throughput, utilization, ranks, batches and compilation."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from perfkit.run.records import LineRow, NodeHealth, Phase, Phases


class StepBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Where a step's host time goes.

    ``wall_ns`` and ``phases_ns`` are means per step over the same ``steps`` steps, so the phases sum to
    the wall time (to rounding). ``excluded`` counts the steps left out, by reason. ``window_ns`` is the
    mean step inside windows: compared with ``wall_ns`` it shows how much recording slowed the step.
    ``memory_peak_bytes`` is the maximum that was allocated on the device; ``alloc_retries`` and ``device_allocs``
    are totals after the warm-up of 50 steps.
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
    """One rank compared with the others.

    ``own_ns`` is the mean time per step in phases in which it waits for no other rank.
    ``cpu_ns`` is the processor time of its process per step: more of it means more work, not a busier machine.
    ``slowest_share`` (0 to 1) is how often its own time was the longest. ``size_per_step`` is the size of its data
    (tokens, elements of a batch or samples); ``line`` the user's line with most samples in its own time. ``node`` is
    the health of its GPU, kept only of the rank that is slowest most often: for thousands it would be too much.
    """

    rank: int
    own_ns: int
    phases_ns: Phases
    slowest_share: float
    size_per_step: float | None = None
    cpu_ns: int | None = None
    line: LineRow | None = None
    host: str | None = None
    node: NodeHealth | None = None


#: The share of steps in which a rank must be the slowest to be the one that the others wait for: with at least 8
#: steps that is not chance (with two ranks less than 2%).
_OFTEN = 0.8


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of a run over the ``steps`` that were ordinary on all of them; times are means per step.

    ``waiting_ns`` is how much longer the slowest rank of a step works by itself than the mean one. ``follows_size`` is
    the correlation of that with the size of its data, None where sizes are not known or equal.
    """

    AVAILABLE_FROM: ClassVar[str] = "two or more ranks"

    steps: int
    wall_ns: int
    waiting_ns: int
    ranks: tuple[RankSummary, ...]
    follows_size: float | None = None

    @property
    def waited_for(self) -> RankSummary | None:
        """The rank that is the slowest in at least 80% of the steps; None where there is none."""
        slowest = max(self.ranks, key=lambda rank: rank.slowest_share, default=None)
        return slowest if slowest is not None and slowest.slowest_share >= _OFTEN else None


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
