"""What a comparison holds: times, counts and findings of two diagnoses, before and after."""

from __future__ import annotations

from typing import Literal

import msgspec

from perfkit._format import ms, rate, relative_change, shown_places, size
from perfkit._html import html_table, html_text
from perfkit._text import printable
from perfkit._versioned_json import json_text
from perfkit.comparison.memory import MemoryDifference
from perfkit.findings import Finding
from perfkit.measures.results.kernel_profiles import KernelProfile

#: Version of a comparison's JSON. 1: the first. 2: kinds of differences, changed settings, workload, losses, budgets.
SCHEMA = 2

Kind = Literal["step", "recording", "phase", "owner", "range", "op", "kernel"]
Change = Literal["faster", "slower", "no difference", "not tested"]
Same = Literal["same", "different", "unknown"]

#: The counts that a budget may be put on.
COUNTS = ("syncs", "recompiles", "graph breaks", "launches", "ops")


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One time per step before and after: of the step, a phase, an owner in the ledger, a range, an op (own time), or a
    kernel (device time). Where neither side has steps, the times are of the whole ``recording``.

    ``low_ns`` .. ``high_ns`` is the 95% interval of after - before over the noise between steps, None where single
    steps are unknown; ``change`` is then "not tested". Ranges, ops and kernels are tested over the steps of the traces;
    one that ran in each step of one side and in none of the other is "faster" or "slower" whatever its spread. The
    interval does not cover the noise between launches of the same program: that takes several runs. ``before_ns`` or
    ``after_ns`` is None where that side has no such owner, range, op or kernel.
    """

    kind: Kind
    name: str
    before_ns: int | None
    after_ns: int | None
    low_ns: int | None = None
    high_ns: int | None = None
    change: Change = "not tested"

    @property
    def changed(self) -> str:
        """The relative change as text; "new" or "removed" if only one side has it."""
        if self.before_ns is None:
            return "new"
        return "removed" if self.after_ns is None else relative_change(self.before_ns, self.after_ns)


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """An exact count: syncs, launches and ops per step; recompiles and graph breaks of the run."""

    name: str
    before: float
    after: float


class ProfileChange(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel that ncu profiled, before and after; None where that side has no such kernel.

    Kernels are matched by name, grid and block, and the remaining ones by name, because many changes change the grid.
    """

    name: str
    before: KernelProfile | None
    after: KernelProfile | None

    @property
    def changed(self) -> str:
        """The relative change of a launch's time as text; "new" or "removed" if only one side has it."""
        if self.before is None or self.after is None:
            return "removed" if self.after is None else "new"
        before, after = self.before.mean_ns, self.after.mean_ns
        return relative_change(before, after) if before is not None and after is not None else "-"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two diagnoses side by side: only the first has the findings in ``gone``, only the second those in ``new``.

    ``workload`` is whether both did the same work, from what is known of their batches, models and devices;
    ``changed`` lists what differs in settings and workload. ``result`` is whether their losses agree. ``broken`` has a
    sentence for each budget that the second exceeds. ``kernel_profiles`` are those of two reports of ncu, longest
    first.
    """

    schema: int = SCHEMA
    before: str
    after: str
    verdict: str
    differences: tuple[Difference, ...] = ()
    kernel_profiles: tuple[ProfileChange, ...] = ()
    counts: tuple[Count, ...] = ()
    memory: tuple[MemoryDifference, ...] = ()
    gone: tuple[Finding, ...] = ()
    new: tuple[Finding, ...] = ()
    workload: Same = "unknown"
    changed: tuple[str, ...] = ()
    result: Same = "unknown"
    broken: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The comparison as indented JSON."""
        return json_text(self)

    def __repr__(self) -> str:
        return printable(f"<comparison of {self.before} with {self.after}: {self.verdict}>")

    def _repr_html_(self) -> str:
        """The verdict, the differences, and the findings of one side only, as escaped HTML for notebooks."""
        parts = [f"<p><b>{html_text(self.verdict)}</b></p>"]
        parts += [f"<p><b>Broken budget: {html_text(sentence)}</b></p>" for sentence in self.broken]
        differences = [
            (one.kind, one.name, *("" if ns is None else ms(ns) for ns in (one.before_ns, one.after_ns)), one.changed)
            for one in self.differences
        ]
        counts = [("count", one.name, rate(one.before), rate(one.after), "") for one in self.counts]
        memory = [
            (f"memory of {one.device}", one.what, size(one.before_bytes), size(one.after_bytes), one.changed)
            for one in self.memory
        ]
        if differences or counts or memory:
            parts.append(html_table(("of", "name", "before", "after", "change"), [*differences, *counts, *memory]))
        findings = [
            (title, one.rule, shown_places(one), one.message)
            for title, found in (("no longer found", self.gone), ("new", self.new))
            for one in found
        ]
        if findings:
            parts.append(html_table(("finding", "rule", "where", "what"), findings))
        return "".join((*parts, *(f"<p><i>{html_text(note)}</i></p>" for note in (*self.changed, *self.notes))))
