"""A diagnosis or a comparison on a terminal: the verdict, the step as a bar, the findings in order.

Three findings fit 80 columns and 25 lines; a wider terminal is used.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    shown_path,
    shown_place,
    shown_places,
    shown_saving,
    why_unquantified,
)
from perfkit._text import printable
from perfkit.comparison.results import Comparison, Difference
from perfkit.diagnosis import Diagnosis
from perfkit.findings import Finding
from perfkit.ledger.ledger_text import account_line, parts_table, rows_table
from perfkit.ledger.step_budget import NEGLIGIBLE
from perfkit.measures.results.device import DeviceTime
from perfkit.reports.console import print_bar, print_line, print_table, print_text
from perfkit.reports.kernel_profile_rows import (
    CHANGE_COLUMNS,
    PROFILE_COLUMNS,
    Columns,
    aligned,
    change_rows,
    profile_rows,
)

#: Findings that are printed without ``all``: as many as a person reads at once.
SHOWN = 5

#: Kernels of a report of Nsight Compute that are shown without ``all``.
_KERNELS = 10

_SEVERITY = {"critical": "bold red", "warning": "yellow", "info": "dim"}


def print_diagnosis(diagnosis: Diagnosis, console: Console, *, all: bool = False) -> None:
    """Write a diagnosis; ``all`` shows every finding with its evidence, the ranges, and the rules not asked."""
    step = diagnosis.step
    source = shown_path(diagnosis.source) + (f" · {step.source}" if step is not None else "")
    print_line(Text(source, style="dim"), console)
    print_text(Text(diagnosis.verdict, style="bold"), console)
    console.print()
    _parts(diagnosis, console)
    _ledger(diagnosis, console, all=all)
    if diagnosis.figures.kernel_profiles is not None:
        rows = profile_rows(diagnosis.figures.kernel_profiles)
        _kernel_table(PROFILE_COLUMNS, rows if all else rows[:_KERNELS], len(rows), console)
    if all:
        _rates(diagnosis, console)
    causes = diagnosis.causes
    shown = causes if all else causes[:SHOWN]
    for number, (finding, explained) in enumerate(shown, start=1):
        _finding(number, finding, explained, diagnosis, console, all=all)
    if len(shown) < len(causes):
        print_line(Text(f"{len(causes) - len(shown)} more: --all", style="dim"), console)
    if all:
        _ranges(diagnosis, console)
        _not_asked(diagnosis, console)
        _overhead(diagnosis, console)
    _missing(diagnosis, console, all=all)


def _parts(diagnosis: Diagnosis, console: Console) -> None:
    """The step as a bar with its legend, the device as a line (a bar if no phases are known), and the ledger as one."""
    times = diagnosis.phase_times
    device = max(diagnosis.figures.devices, key=lambda device: device.busy_ns, default=None)
    if set(times) - {"other"}:
        print_bar(times, console)
        if device is not None:
            print_text(_device_line(device), console)
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
        print_text(_device_line(device), console)
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


def _device_line(device: DeviceTime) -> Text:
    def share(ns: int) -> str:
        return percent(ns, device.window_ns)

    parts = [f"compute {share(device.compute_ns)}"]
    if device.communication_ns:
        parts.append(f"communication {share(device.communication_ns)}")
    if device.copy_ns:
        parts.append(f"copies {share(device.copy_ns)}")
    name = f"device {device.device}" + (f" ({device.name})" if device.name else "")
    text = f"{name}: busy {share(device.busy_ns)} ({', '.join(parts)}), idle {share(device.idle_ns)}"
    cause = max(device.causes, key=lambda name: device.causes[name], default=None)
    if cause is not None and device.idle_ns >= NEGLIGIBLE * device.window_ns:
        text += f", mainly {cause} {share(device.causes[cause])}"
    return Text(text, style="dim")


def _finding(
    number: int, finding: Finding, explained: Sequence[Finding], diagnosis: Diagnosis, console: Console, *, all: bool
) -> None:
    head = Text(f"{number} ")
    head.append(finding.rule, style=_SEVERITY[finding.severity])
    if place := shown_place(finding):
        word = "in " if finding.spent is None else "spent at " if finding.change is not None else ""
        head.append(f"  {word}{place}", style="bold")
    cost = Text(_cost(finding, diagnosis))
    gap = console.width - head.cell_len - cost.cell_len
    if not cost:
        print_text(head, console)
    elif gap >= 2:
        print_line(Text.assemble(head, " " * gap, cost), console)
    else:
        print_text(head, console)
        _indented(cost, console)
    if finding.message not in diagnosis.verdict:
        _indented(Text(finding.message), console)
    if reason := why_unquantified(finding):
        _indented(Text(f"Not quantified: {reason}."), console)
    change = f"change {text}: " if (text := shown_change(finding)) else ""
    _indented(Text.assemble("→ ", (change, "bold"), finding.advice), console)
    for other in explained:
        _indented(Text(f"explains {other.rule}: {other.message}", style="dim"), console)
    if all:
        for item in finding.evidence:
            _indented(Text(f"{item.name}: {evidence_value(item)} ({item.source})", style="dim"), console)


def _indented(text: Text, console: Console) -> None:
    print_text(text, console, indent=2)


def _cost(finding: Finding, diagnosis: Diagnosis) -> str:
    if finding.cost_ns is None:
        return "not quantified" if why_unquantified(finding) else ""
    per = "/step" if diagnosis.step is not None else ""
    saving = shown_saving(finding)
    return f"{ms(finding.cost_ns)}{per}" + (f", saves {saving}" if saving else "")


def _rates(diagnosis: Diagnosis, console: Console) -> None:
    """Throughput, quantiles of the step time, and the share of the device's peak that is used."""
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
    if throughput is not None or utilization is not None:
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
        if difference.kind not in ("step", "phase", kind):
            kind = difference.kind
            print_line(Text(f"{kind}s", style="dim"), console)
        print_line(_difference(difference, console.width), console)
    if comparison.counts:
        print_line(Text("counts per step; recompiles and graph breaks of the run", style="dim"), console)
    for count in comparison.counts:
        print_line(Text(f"{count.name:<16}{rate(count.before):>10} → {rate(count.after):>8}"), console)
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
