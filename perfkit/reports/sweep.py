"""What `perfkit try --sweep` has measured, on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from perfkit._format import ms, rate, share_of, size
from perfkit.ledger.ledger_text import TextTable
from perfkit.reports.console import print_line, print_table, print_text
from perfkit.run.records import Sweep, SweepPoint

#: Cells of the longest bar: the table then fits into a terminal of 80.
_BAR = 8
_OUTCOMES = {
    "out-of-memory": "out of memory",
    "too-short": "too few steps",
    "not-full": "too little data",
    "failed": "failed",
    "not-tried": "not tried",
}


def print_sweep(sweep: Sweep, console: Console) -> None:
    """Write the verdict, a row for each value, and how memory follows the batch."""
    print_line(Text(f"{sweep.program} · {sweep.seconds:.0f} s", style="dim"), console)
    print_text(Text(sweep.verdict, style="bold"), console)
    console.print()
    print_table(sweep_table(sweep), console)
    console.print()
    for one in sweep.points:
        if one.note:
            print_text(Text(f"{sweep.swept}={one.value}: {one.note}"), console)
    if sweep.memory is not None:
        print_text(Text(memory_sentence(sweep)), console)
    for note in sweep.notes:
        print_text(Text(f"Note: {note}"), console)


def sweep_table(sweep: Sweep) -> TextTable:
    """A row for each value; columns that are not known for any are left out."""
    best = max((one.per_s or 0.0 for one in sweep.points), default=0.0)
    head = (sweep.swept, "", "", "step", f"{sweep.unit}/s", "spread", "memory", "left")
    rows = [
        (
            str(one.value),
            _role(sweep, one),
            "█" * round(_BAR * (one.per_s or 0.0) / best) if best else "",
            ms(one.step_ns) if one.step_ns is not None else "",
            rate(one.per_s) if one.per_s is not None else "",
            _spread(one),
            size(one.peak_bytes) if one.peak_bytes is not None else "",
            size(one.left_bytes) if one.left_bytes is not None else "",
        )
        for one in sweep.points
    ]
    kept = [at for at in range(len(head)) if any(row[at] for row in rows)]
    return TextTable(
        tuple(head[at] for at in kept),
        [tuple(row[at] for at in kept) for row in rows],
        sum(at < 3 for at in kept),
    )


def _spread(one: SweepPoint) -> str:
    """Half of what the slowest and the fastest half of a rerun differ by, as a share of the throughput."""
    if not one.per_s or one.low is None or one.high is None:
        return ""
    return share_of((one.high - one.low) / 2 / one.per_s)


def _role(sweep: Sweep, one: SweepPoint) -> str:
    """What a value is to the program, or what became of it."""
    roles = [_OUTCOMES[one.outcome]] if one.outcome != "measured" else []
    if one.value == sweep.own:
        roles.append("own")
    if one.value == sweep.recommended:
        roles.append("recommended")
    return ", ".join(roles)


def memory_sentence(sweep: Sweep) -> str:
    """How memory follows the batch, and what is kept free."""
    if sweep.swept == "workers":
        return "Memory is that of the training process, without its workers'."
    what = "Device memory" if sweep.memory == "device" else "Resident memory"
    reserve = ""
    if sweep.total_bytes is not None:
        free = f"{share_of(sweep.reserve)} of {size(sweep.total_bytes)}"
        reserve = f" A recommended batch leaves {free}, for fragmentation and batches that are longer than these."
    line = sweep.line
    if line is None:
        return f"{what}: too few batch sizes were measured to fit a line.{reserve}"
    if line.bytes_per_sample <= 0:
        return f"{what} does not grow with the batch.{reserve}"
    return (
        f"{what} at its peak is {size(max(0, line.fixed_bytes))} + {size(line.bytes_per_sample)} per sample; the "
        f"measured peaks are within {share_of(line.deviation)} of that.{reserve}"
    )
