"""run.json, rank.json and failure.json: the run, one rank of it, and the exception that ended it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from perfkit._location import Location
from perfkit.run.records.energy import EnergyUse
from perfkit.run.records.gpu import NodeHealth
from perfkit.run.records.program import (
    Compilation,
    GraphBreak,
    KeptTensors,
    Loader,
    OptimizerFacts,
    Padding,
    ProcessGroup,
    StepBoundary,
    StepFlops,
    UnusedGradients,
    WholeProgram,
)
from perfkit.run.records.steps import Count, Phase
from perfkit.run.records.version import SCHEMA

#: In `Rank.calls`: the lines that take a rank's part of something, as ``rows[rank::ranks]``.
RANK_SLICE = "[rank:]"
#: In `Rank.calls`: the lines that pad rows, the most likely first.
PADDING = "[padding]"
#: In `Rank.calls`: the lines that make the models that are trained.
MODELS = "[models]"
#: In `Rank.calls`: the lines that take numpy's doubles into tensors which the program has while it trains.
DOUBLES = "[float64]"
#: Functions of torch that often cost more than what their result is wanted for, whose lines are in `Rank.calls`; not
#: ``sort``, which lists have as well.
EXPENSIVE_CALLS = (
    "argsort",
    "unique",
    "randperm",
    "multinomial",
    "svd",
    "svdvals",
    "eigh",
    "eigvalsh",
    "pinv",
)

#: Functions of torch that give a module a parametrization, whose lines are in `Rank.calls`.
PARAMETRIZATIONS = ("weight_norm", "spectral_norm", "orthogonal", "register_parametrization")

#: Ranks that a launch may have; the largest trainings have a tenth as many. More are damage: each missing one is
#: listed.
MAX_RANKS = 1_000_000

#: What a user writes to record a run.
StartedBy = Literal["perfkit run", "perfkit.profile"]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """run.json, which rank 0 writes."""

    schema: int = SCHEMA
    launch_id: str
    command: tuple[str, ...]
    folder: str
    world_size: Annotated[int, msgspec.Meta(ge=0, le=MAX_RANKS)]
    schedule: dict[str, float | None] | None = None
    options: dict[str, str] = {}
    total_steps: Count | None = None


class ClockPair(msgspec.Struct, frozen=True):
    """The same instant on the run's clock and as unix time, both in ns."""

    perf_ns: Count
    unix_ns: Count


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One window: the steps [first_step, last_step] recorded into ``file`` (relative to the rank's folder).

    ``reason`` is why it opened: "schedule", or "trigger: " and what happened; None in runs older than triggers.
    """

    index: Count
    first_step: Count
    last_step: Count
    file: str | None
    complete: bool
    problem: str | None = None
    reason: str | None = None


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """rank.json, one per rank.

    Attributes:
        git_commit: The commit of the program's folder, with ``-dirty`` where files differ from it and ``-unchecked``
            where that is not known; None: it lies in no git repository.
        ending: How the run ended, None while it goes on.
        errors: perfkit's own errors, each reported once.
        overhead_ns: perfkit's own time in and between the steps, summed.
        fixed_overhead_ns: perfkit's own processor time that comes once, by what it was for: "start" (loading perfkit
            and attaching it), "windows" (opening and writing them, and what their steps took beyond ordinary ones),
            "checks" (searches of all objects for tensors that stay), "helpers" (processes that measure or diagnose),
            "end" (from the end of the program on). None: not measured, as in older runs.
        overhead_bytes: The largest memory use seen of its buffers, tables and rows.
        started_by: What the user wrote to record the run.
        step_boundary: What the steps were counted by.
        program: The program as a whole, where no step was seen.
        cpu_ns_per_step: Processor time of the process, all its threads, in an ordinary step.
        thread_ns_per_step: Processor time of the thread that trains, in an ordinary step.
        core_wait_share: The share of ordinary steps in which that thread could run and had no core (0 to 1).
        process_group: The processes that this one trains with; None: it trains alone, or in an older run.
        graph_breaks: Why torch.compile broke graphs, and how often.
        calls: The user's lines that call a function which changes a setting, by the function's name,
            `RANK_SLICE`, `PADDING`, `MODELS` and `DOUBLES`.
        energy: Energy of devices and of the processor during the steps; empty where nothing counts it.
        unused_gradients: Models whose gradients nothing uses.
        evaluated_with_grad: The line of an evaluation whose result carried a graph, or whose call of a module made one.
    """

    AVAILABLE_FROM: ClassVar[str] = "a run folder: perfkit run, or perfkit.profile"

    schema: int = SCHEMA
    rank: Count
    launch_id: str
    host: str
    pid: Count
    start_ns: Count
    end_ns: Count | None = None
    ending: str | None = None
    versions: dict[str, str] = {}
    devices: tuple[str, ...] = ()
    settings: dict[str, str] = {}
    loaders: tuple[Loader, ...] = ()
    git_commit: str | None = None
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    steps: Count = 0
    started_by: StartedBy | None = None
    step_boundary: StepBoundary | None = None
    program: WholeProgram | None = None
    overhead_ns: Count | None = None
    fixed_overhead_ns: dict[str, Count] | None = None
    overhead_bytes: Count | None = None
    cpu_ns_per_step: Count | None = None
    thread_ns_per_step: Count | None = None
    core_wait_share: float | None = None
    process_group: ProcessGroup | None = None
    graph_breaks: dict[str, Count] = {}
    break_lines: tuple[GraphBreak, ...] = ()
    compilations: tuple[Compilation, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    calls: dict[str, tuple[Location, ...]] = {}
    evaluated_with_grad: Location | None = None
    unused_gradients: tuple[UnusedGradients, ...] = ()
    kept: tuple[KeptTensors, ...] = ()
    padding: Padding | None = None
    flops: StepFlops | None = None
    node: NodeHealth | None = None
    energy: tuple[EnergyUse, ...] = ()
    clock_pairs: tuple[ClockPair, ...] = ()
    windows: tuple[Window, ...] = ()


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """failure.json: the exception that ended a run, where the trigger for it was on.

    Attributes:
        step: The step in which it was raised.
        phase: The phase in which it was raised, None where unknown.
        in_step_ns: How long that step had run, None where it was not open; such a step has no row.
        lines: The user's lines, outermost first; the last one raised the error.
        window: The window that was open; what it had recorded is saved.
    """

    schema: int = SCHEMA
    error: str
    out_of_memory: bool
    step: Count
    phase: Phase | None
    in_step_ns: Count | None
    lines: tuple[Location, ...] = ()
    window: Count | None = None
    memory_bytes: Count | None = None
    memory_peak_bytes: Count | None = None
    rss_bytes: Count | None = None
