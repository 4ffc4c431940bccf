"""A diagnosis or a comparison on a terminal: the verdict, the step as a bar, the findings in order.

Three findings fit 80 columns and 25 lines; a wider terminal is used.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from perfkit._format import (
    evidence_value,
    ms,
    percent,
    rate,
    rates,
    relative_change,
    shown_change,
    shown_energy,
    shown_path,
    shown_place,
    shown_places,
    shown_saving,
    why_unquantified,
)
from perfkit._text import printable
from perfkit.comparison.results import Comparison, Difference
from perfkit.diagnosis import Diagnosis
from perfkit.findings import SURE, Finding
from perfkit.ledger.ledger_text import account_line, parts_table, rows_table
from perfkit.ledger.step_budget import NEGLIGIBLE
from perfkit.measures.results.device import DeviceTime
from perfkit.measures.results.steps import TypicalStep
from perfkit.reports.advised_diffs import advised_diff
from perfkit.reports.console import print_bar, print_line, print_table, print_text
from perfkit.reports.kernel_profile_rows import (
    CHANGE_COLUMNS,
    PROFILE_COLUMNS,
    Columns,
    aligned,
    change_rows,
    profile_rows,
)
from perfkit.reports.memory import print_memory
from perfkit.reports.next_step import next_step
from perfkit.reports.short_paths import ShortPaths
from perfkit.reports.source_files import SourceFiles

#: Findings that are printed without ``all``: as many as a person reads at once.
SHOWN = 5

#: The mean step is named where it is longer than the typical one by this factor: the header has the typical one.
_LONGER = 1.02
#: Kernels of a report of Nsight Compute that are shown without ``all``.
_KERNELS = 10

_SEVERITY = {"critical": "bold red", "warning": "yellow", "info": "dim"}


def print_diagnosis(diagnosis: Diagnosis, console: Console, *, all: bool = False, says_next: bool = True) -> None:
    """Write a diagnosis, and what to type next.

    Args:
        diagnosis: The diagnosis.
        console: Where to.
        all: Show every finding with its evidence, the ranges, and the rules not asked.
        says_next: End with what to type next; more follows where that is False.
    """
    places = ShortPaths(diagnosis)
    for line in _source_lines(diagnosis, places):
        print_text(Text(line, style="dim"), console)
    print_text(Text(places.short(diagnosis.verdict), style="bold"), console)
    console.print()
    _parts(diagnosis, console)
    _ledger(diagnosis, console, all=all)
    if diagnosis.figures.kernel_profiles is not None:
        rows = profile_rows(diagnosis.figures.kernel_profiles)
        _kernel_table(PROFILE_COLUMNS, rows if all else rows[:_KERNELS], len(rows), console)
    if all:
        _rates(diagnosis, console)
    causes = diagnosis.causes
    listed = causes if all else causes[:SHOWN]
    for number, (finding, explained) in enumerate(listed, start=1):
        _Entry(number, finding, explained, diagnosis, places).print(console, all=all)
    if len(listed) < len(causes):
        print_line(Text(f"{len(causes) - len(listed)} more: --all", style="dim"), console)
    if diagnosis.figures.peak_memory:
        console.print()
        print_memory(diagnosis.figures, console, places.short, all=all)
    if all:
        _ranges(diagnosis, console)
        _not_asked(diagnosis, console)
        _overhead(diagnosis, console)
    _missing(diagnosis, console, all=all)
    if says_next:
        print_text(Text.assemble(("Next: ", "bold"), next_step(diagnosis)), console)


def print_first_verdict(diagnosis: Diagnosis, console: Console) -> None:
    """Write the verdict on a run that goes on, without its findings: they stand once, at the end of the output.

    The output of the program would scroll them away, and a short program would be followed by both verdicts.
    """
    print_line(Text("perfkit: first verdict, while training continues", style="dim"), console)
    print_text(Text(ShortPaths(diagnosis).short(diagnosis.verdict), style="bold"), console)
    if diagnosis.findings:
        command = f"perfkit diagnose {shlex.quote(shown_path(diagnosis.source))}"
        print_text(Text(f"Its findings follow at the end; now: {command}", style="dim"), console)


def _source_lines(diagnosis: Diagnosis, places: ShortPaths) -> Iterator[str]:
    """What was measured, of how much, and the folders of the files that the rest only names."""
    step, measured = diagnosis.step, ""
    if step is not None:
        measured = f" · {step.source}"
    if step is not None and step.excluded:
        known = step.source.removesuffix(f", {step.steps} steps")
        measured = f" · {known}, {step.steps:,} of {step.steps + sum(step.excluded.values()):,} steps"
    yield f"{shown_path(diagnosis.source)}{measured}"
    if places.folders:
        yield f"files in {', '.join(places.folders)}"


def _parts(diagnosis: Diagnosis, console: Console) -> None:
    """The step as a bar with its legend, the device as a line (a bar if no phases are known), and the ledger as one."""
    times = diagnosis.phase_times
    device = max(diagnosis.figures.devices, key=lambda device: device.busy_ns, default=None)
    if set(times) - {"other"}:
        print_bar(times, console)
        if device is not None:
            print_text(_device_line(device, slowed=isinstance(diagnosis.step, TypicalStep)), console)
    elif device is not None:
        known_ns = device.compute_ns + device.exposed_copy_ns + device.exposed_communication_ns
        parts = {
            "compute": device.compute_ns,
            "communication": device.exposed_communication_ns,
            "copies": device.exposed_copy_ns,
            "other": max(0, device.busy_ns - known_ns),
            "idle": device.idle_ns,
        }
        print_bar({name: ns for name, ns in parts.items() if ns}, console)
        print_text(_device_line(device, slowed=isinstance(diagnosis.step, TypicalStep)), console)
    if diagnosis.shown_ledger is not None:
        print_text(Text(account_line(diagnosis.shown_ledger)), console)
    if times or device is not None or diagnosis.shown_ledger is not None:
        console.print()


def _ledger(diagnosis: Diagnosis, console: Console, *, all: bool) -> None:
    """The largest unexplained parts where that is the verdict, or all rows."""
    ledger = diagnosis.shown_ledger
    if ledger is not None and (all or diagnosis.outcome == "unexplained"):
        print_table(rows_table(ledger) if all else parts_table(ledger), console)
        console.print()


def _kernel_table(columns: Columns, rows: list[tuple[str, ...]], total: int, console: Console) -> None:
    heading, *lines = aligned(columns, rows, console.width)
    print_line(Text(heading, style="dim"), console)
    for line in lines:
        print_line(Text(line), console)
    if len(rows) < total:
        print_line(Text(f"{total - len(rows):,} more kernels: --all", style="dim"), console)
    console.print()


def _device_line(device: DeviceTime, *, slowed: bool) -> Text:
    """What a device did; of a run in its window, whose steps recording made longer than the typical one."""

    def share(ns: int) -> str:
        return percent(ns, device.window_ns)

    parts = [f"compute {share(device.compute_ns)}"]
    if device.communication_ns:
        parts.append(f"communication {share(device.communication_ns)}")
    if device.copy_ns:
        parts.append(f"copies {share(device.copy_ns)}")
    name = (
        f"device {device.device}" + (f" ({device.name})" if device.name else "") + (" in the window" if slowed else "")
    )
    text = f"{name}: busy {share(device.busy_ns)} ({', '.join(parts)}), idle {share(device.idle_ns)}"
    cause = max(device.causes, key=lambda name: device.causes[name], default=None)
    if cause is not None and device.idle_ns >= NEGLIGIBLE * device.window_ns:
        text += f", mainly {cause} {share(device.causes[cause])}"
    return Text(text, style="dim")


class _Entry:
    """One finding: what, where, what to change, what that saves and how sure that is."""

    def __init__(
        self, number: int, finding: Finding, explained: Sequence[Finding], diagnosis: Diagnosis, places: ShortPaths
    ) -> None:
        self.number, self.finding, self.explained = number, finding, explained
        self.diagnosis, self.places = diagnosis, places

    def print(self, console: Console, *, all: bool) -> None:
        """Write it; ``all`` with its evidence."""
        finding, short = self.finding, self.places.short
        self._head(console)
        if finding.message not in self.diagnosis.verdict:
            _indented(Text(short(finding.message)), console)
        if reason := why_unquantified(finding):
            _indented(Text(f"Not quantified: {reason}."), console)
        change = f"change {short(text)}: " if (text := shown_change(finding)) else ""
        sure = f" {finding.severity.capitalize()}: {SURE[finding.confidence]}." if finding.quantified else ""
        _indented(Text.assemble("→ ", (change, "bold"), short(finding.advice), (sure, "dim")), console)
        diff = advised_diff(finding, SourceFiles())
        if diff is not None and finding.edit is not None and finding.edit.at not in (finding.spent, finding.change):
            print_line(Text(f"    {short(diff.place)}", style="bold"), console)
        for line in diff.lines if diff is not None else ():
            if line.startswith("-"):  # is in the file: cut at the width
                print_line(Text(f"    {line}", style="red"), console)
            else:
                print_text(Text(line, style="green"), console, indent=4)
        for other in self.explained:
            _indented(Text(f"explains {other.rule}: {short(other.message)}", style="dim"), console)
        if all:
            for item in finding.evidence:
                _indented(Text(f"{item.name}: {evidence_value(item)} ({item.source})", style="dim"), console)

    def _head(self, console: Console) -> None:
        """The rule and the place, and to the right what it costs."""
        finding = self.finding
        head = Text(f"{self.number} ")
        head.append(finding.rule, style=_SEVERITY[finding.severity])
        if place := self.places.short(shown_place(finding)):
            word = "in " if finding.spent is None else "spent at " if finding.change is not None else ""
            head.append(f"  {word}{place}", style="bold")
        cost = Text(_cost(finding, self.diagnosis))
        gap = console.width - head.cell_len - cost.cell_len
        if cost and gap >= 2:
            print_line(Text.assemble(head, " " * gap, cost), console)
            return
        print_text(head, console)
        if cost:
            _indented(cost, console)


def _indented(text: Text, console: Console) -> None:
    print_text(text, console, indent=2)


def _cost(finding: Finding, diagnosis: Diagnosis) -> str:
    if finding.cost_ns is None:
        return "not quantified" if why_unquantified(finding) else ""
    per = "/step" if diagnosis.step is not None else ""
    typical_ns = diagnosis.figures.wall_ns
    wall_ns = finding.of_ns or typical_ns
    of = " of the mean step" if wall_ns and typical_ns and wall_ns > _LONGER * typical_ns else ""
    share = f" ({percent(finding.cost_ns, wall_ns)}{of})" if wall_ns and finding.cost_ns <= wall_ns else ""
    saving = shown_saving(finding)
    return f"{ms(finding.cost_ns)}{per}{share}" + (f", saves {saving}" if saving else "")


def _rates(diagnosis: Diagnosis, console: Console) -> None:
    """Throughput, quantiles of the step time, energy, and the share of the device's peak that is used."""
    throughput, utilization = diagnosis.figures.throughput, diagnosis.figures.utilization
    if throughput is not None:
        per_s = rates(throughput.steps_per_s, throughput.samples_per_s, throughput.tokens_per_s)
        quantiles = (("median", throughput.p50_ns), ("p90", throughput.p90_ns), ("p99", throughput.p99_ns))
        times = [f"{what} {ms(ns)}" for what, ns in quantiles if ns is not None]
        slowest = [f"step {slow.step} {ms(slow.wall_ns)}" for slow in throughput.slowest[:3]]
        print_text(Text(f"{', '.join(per_s)}; {', '.join(times)}; slowest {', '.join(slowest)}", style="dim"), console)
    if utilization is not None:
        share = percent(utilization.mfu, 1)
        print_text(
            Text(
                f"{share} of the dense {utilization.precision} peak of {utilization.device} (model FLOPs utilization)",
                style="dim",
            ),
            console,
        )
    if energy := shown_energy(diagnosis.figures.energy):
        print_text(Text(energy, style="dim"), console)
    if throughput is not None or utilization is not None or energy:
        console.print()


def _ranges(diagnosis: Diagnosis, console: Console) -> None:
    """A line per range, longest first: its count, its time per traced step, and the time of one."""
    figures = diagnosis.figures
    steps = figures.trace.steps if figures.trace is not None else 0
    rows = figures.distinct_ranges
    if not rows:
        return
    names = [Text(printable(row.name)) for row in rows]
    width = min(max(len("range"), *(name.cell_len for name in names)), max(20, console.width - 36))
    print_line(Text(f"{'range':<{width}}{'count':>10}{'per step':>14}{'each':>12}", style="dim"), console)
    for row, name in zip(rows, names, strict=True):
        name.truncate(width, overflow="ellipsis", pad=True)
        per_step = ms(row.host_ns // steps) if steps and row.source == "trace" else "-"
        name.append(f"{row.count:>10}{per_step:>14}{ms(row.host_ns // max(1, row.count)):>12}")
        print_line(name, console)


def _not_asked(diagnosis: Diagnosis, console: Console) -> None:
    """The rules that were not asked, grouped by what they need."""
    by_needs: dict[tuple[str, ...], list[str]] = {}
    for rule in diagnosis.not_asked:
        by_needs.setdefault(rule.needs, []).append(rule.rule)
    if by_needs:
        print_line(Text("rules that were not asked", style="dim"), console)
    for needs, rules in by_needs.items():
        _indented(Text(", ".join(rules), style="dim"), console)
        print_text(Text(f"needs {' and '.join(needs)}", style="dim"), console, indent=4)


def _overhead(diagnosis: Diagnosis, console: Console) -> None:
    """What perfkit itself cost."""
    own, step = diagnosis.overhead, diagnosis.step
    if own is None:
        return
    parts = []
    if own.step_ns is not None:
        share = f" ({percent(own.step_ns, step.wall_ns)})" if step is not None and step.wall_ns else ""
        parts.append(f"{ms(own.step_ns)}/step{share}")
    if own.fixed_ns:
        by_part = ", ".join(f"{name} {ms(ns)}" for name, ns in own.fixed_ns.items())
        parts.append(f"{ms(sum(own.fixed_ns.values()))} of processor time once ({by_part})")
    if own.held_bytes is not None:
        parts.append(f"{own.held_bytes / 1e6:.1f} MB of memory")
    if own.window_step_ns is not None and step is not None:
        parts.append(f"steps in a window {ms(own.window_step_ns)}, {relative_change(step.wall_ns, own.window_step_ns)}")
    if parts:
        print_text(Text(f"perfkit itself: {', '.join(parts)}", style="dim"), console)


def _missing(diagnosis: Diagnosis, console: Console, *, all: bool) -> None:
    missing = diagnosis.missing
    if missing and all:
        for sentence in missing:
            print_text(Text(f"Note: {sentence}", style="dim"), console)
    elif missing:
        more = f" (and {len(missing) - 1} more: --all)" if len(missing) > 1 else ""
        print_text(Text(f"Note: {missing[0]}{more}", style="dim"), console)


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Write a comparison: differences by phase, range, op and kernel, counts, and the fixed and new findings."""
    print_line(Text(f"{comparison.before} → {comparison.after}", style="dim"), console)
    print_text(Text(comparison.verdict, style="bold"), console)
    for sentence in comparison.broken:
        print_text(Text(f"broken budget: {sentence}", style="bold red"), console)
    console.print()
    if comparison.kernel_profiles:
        rows = change_rows(comparison.kernel_profiles)
        _kernel_table(CHANGE_COLUMNS, rows, len(rows), console)
    kind = "step"
    for difference in comparison.differences:
        if difference.kind not in ("step", "recording", "phase", kind):
            kind = difference.kind
            print_line(Text(f"{kind}s", style="dim"), console)
        print_line(_difference(difference, console.width), console)
    if comparison.counts:
        print_line(Text("counts per step; recompiles and graph breaks of the run", style="dim"), console)
    for count in comparison.counts:
        print_line(Text(f"{count.name:<16}{rate(count.before):>10} → {rate(count.after):>8}"), console)
    if comparison.memory:
        print_line(Text("memory of a step", style="dim"), console)
    for memory in comparison.memory:
        print_text(Text(memory.sentence), console)
    for title, findings in (("no longer found", comparison.gone), ("new", comparison.new)):
        for finding in findings:
            cost = f"  {ms(finding.cost_ns)}" if finding.cost_ns is not None else ""
            text = f"{title}: {finding.rule}  {shown_places(finding)}{cost}"
            print_text(Text(text, style="green" if title == "no longer found" else "red"), console)
    for sentence in comparison.changed:
        print_text(Text(f"changed: {sentence}", style="dim"), console)
    for note in comparison.notes:
        print_text(Text(note, style="dim"), console)


def _difference(difference: Difference, width: int) -> Text:
    style = {"faster": "green", "slower": "red"}.get(difference.change, "")
    before, after = ("-" if ns is None else ms(ns) for ns in (difference.before_ns, difference.after_ns))
    # Names of kernels are long: they are cut to what the numbers leave.
    name = Text(printable(difference.name))
    name.truncate(max(16, width - 46), overflow="ellipsis")
    name.pad_right(16 - name.cell_len if name.cell_len < 16 else 0)
    name.append(f"{before:>10} → {after:>8}  {difference.changed:<7} ")
    return name.append(difference.change, style=style)
