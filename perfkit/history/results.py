"""The history of runs as data: the runs of each workload, where their step changed, and the objectives."""

from __future__ import annotations

import msgspec

from perfkit._text import printable
from perfkit._versioned_json import decode_versioned, json_text
from perfkit.run.records import EnergyUse

#: Version of the JSON. Others are refused: it can be made again.
SCHEMA = 1


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a history; None: not measured.

    Attributes:
        start_unix_ns: When it started, by its recorded clocks.
        commit: The commit of its program, without a suffix; ``dirty`` is whether files differed from it.
        ranks: The number of processes. All numbers are of the first one that has steps.
        steps: How many steps it had; ``rows`` of its file were read, from all parts of the run.
        is_whole: Whether those were all rows. If not, the times are those of its diagnosis, where this is of all steps.
        wall_ns: The mean of the middle 80% of the steps, which ``phases_ns`` add up to.
        quantiles_ns: Step times at 0, 5, 10, ... 100%.
        memory_bytes: The largest memory of the device that was allocated, on a CPU ``host_memory_bytes``.
        host_memory_bytes: The largest resident memory of the process that was seen.
        finding: The first finding of its diagnosis with its place; None: not diagnosed, ``""``: none was found.
        facts: Versions and settings that change how long a step takes, by name.
        notes: What is odd about it: it failed, still runs, or its clock was set.
    """

    path: str
    start_unix_ns: int
    commit: str | None = None
    dirty: bool | None = None
    command: tuple[str, ...] = ()
    host: str = ""
    devices: tuple[str, ...] = ()
    ranks: int = 1
    steps: int = 0
    rows: int = 0
    is_whole: bool = True
    wall_ns: int | None = None
    median_ns: int | None = None
    p10_ns: int | None = None
    p90_ns: int | None = None
    quantiles_ns: tuple[int, ...] = ()
    phases_ns: dict[str, int] = {}
    samples_per_s: float | None = None
    memory_bytes: int | None = None
    host_memory_bytes: int | None = None
    syncs_per_step: float | None = None
    energy: tuple[EnergyUse, ...] = ()
    finding: str | None = None
    facts: dict[str, str] = {}
    notes: tuple[str, ...] = ()

    @property
    def main_phase(self) -> tuple[str, int] | None:
        """The longest phase of the step with its time in ns; None: no phase was seen."""
        return max(self.phases_ns.items(), key=lambda item: item[1], default=None)

    @property
    def energy_j(self) -> float | None:
        """Energy per step in joules, of all that was measured together."""
        return sum(one.per_step_j for one in self.energy) if self.energy else None


class SkippedRun(msgspec.Struct, frozen=True):
    """A folder that looks like a run and could not be read, and why."""

    path: str
    reason: str


class StepChange(msgspec.Struct, frozen=True, kw_only=True):
    """The median step changed from run number ``at`` on (of the workload's runs, from 0).

    Attributes:
        path: That run.
        before_ns, after_ns: The medians of the runs' medians before and after, each up to the next change.
        share: By what share the step became longer (negative: shorter), with its 95% interval ``low`` to ``high``.
        commit_before, commit: The commits of the last run before and of the first one after.
        also: What else differs between these two: versions, settings, batch sizes.
    """

    at: int
    path: str
    start_unix_ns: int
    before_ns: int
    after_ns: int
    share: float
    low: float
    high: float
    commit_before: str | None = None
    commit: str | None = None
    also: tuple[str, ...] = ()


class ObjectiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the newest run of a workload meets an objective; ``value`` in the metric's unit, None: not measured."""

    objective: str
    metric: str
    limit: float
    value: float | None
    met: bool
    sentence: str


class WorkloadHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one program on one kind of machine, in order of start.

    Attributes:
        name: The command without what differs from run to run; ``machine`` where it ran.
        left_out: Earlier runs that were not read.
        changes: Where the median step changed.
        noise: By what share the medians of runs vary where nothing changed; ``visible`` is the smallest change that
            three runs in a row would show. None: fewer runs than that needs.
        verdict: What became of the step, in a sentence or two.
    """

    name: str
    machine: str
    runs: tuple[RunSummary, ...]
    left_out: int = 0
    changes: tuple[StepChange, ...] = ()
    noise: float | None = None
    visible: float | None = None
    verdict: str = ""
    objectives: tuple[ObjectiveResult, ...] = ()


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The histories of the workloads of a folder, the one that ran last first, and the runs that were skipped."""

    schema: int = SCHEMA
    source: str
    workloads: tuple[WorkloadHistory, ...]
    skipped: tuple[SkippedRun, ...] = ()

    @property
    def broken(self) -> list[str]:
        """A sentence for each objective that is not met."""
        return [one.sentence for workload in self.workloads for one in workload.objectives if not one.met]

    def to_json(self) -> str:
        """The history as indented JSON, times in ns."""
        return json_text(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> History:
        """Read a history back.

        Raises:
            RunError: the text is not a history, or one of another schema.
        """
        return decode_versioned(text, cls, SCHEMA, "the history", "`perfkit history --json` makes it again")

    def __repr__(self) -> str:
        runs = sum(len(workload.runs) for workload in self.workloads)
        return printable(f"<history of {self.source}: {runs} runs of {len(self.workloads)} workloads>")
