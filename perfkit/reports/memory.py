"""What holds memory at the peak of a step: as text for the terminal, and as tables that markdown writes too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from perfkit._format import ms, percent, shown_location, size
from perfkit.diagnosis import Figures
from perfkit.ledger.ledger_text import TextTable
from perfkit.measures.results.peak_memory import CheckpointTrade, MemoryPart, PeakMemory
from perfkit.reports.console import print_bar, print_line, print_table, print_text
from perfkit.run.records import Holding

#: Rows of a table without and with ``all``.
_SHOWN, _ALL = 5, 30
#: What modules hold that their own code asked for: a table of modules divides these.
_COLUMNS: tuple[Holding, ...] = ("parameters", "gradients", "optimizer state", "activations")


def print_memory(figures: Figures, console: Console, short: Callable[[str], str], *, all: bool = False) -> None:
    """Write each device's peak as a bar by what memory is held for, the largest parts, and what checkpointing frees.

    ``short`` shortens the paths in a text, as the rest of the screen does.
    """
    for memory in figures.peak_memory:
        print_text(Text(short(peak_sentence(memory)), style="bold"), console)
        print_bar({name: held for name, held in memory.holding.items() if held > 0}, console, shown=size)
        for table in memory_tables(memory, figures.checkpoint_trades, _ALL if all else _SHOWN):
            console.print()
            rows = [tuple(map(short, row)) for row in table.rows]
            print_table(TextTable(table.head, rows, table.numbers), console)
        if memory.outside_bytes is not None:
            text = f"The process holds another {size(memory.outside_bytes)}: Python, libraries, what no tensor shows."
            print_text(Text(text, style="dim"), console)
        print_line(Text(""), console)


def peak_sentence(memory: PeakMemory) -> str:
    """How much the tensors of a device hold at the peak and at the end of the step, and where the peak was."""
    where = [f"in {memory.phase}"] if memory.phase is not None else []
    where += [f"at {shown_location(memory.at)}"] if memory.at is not None else []
    where += [f"({memory.op})"] if memory.op is not None else []
    peaks = [one.peak_bytes for one in memory.steps]
    others = ""
    if len(peaks) > 1 and size(min(peaks)) != size(max(peaks)):
        others = (
            f" The peaks of steps {memory.steps[0].step} to {memory.step}: {size(min(peaks))} to {size(max(peaks))}."
        )
    place = f", {' '.join(where)}" if where else ""
    at_end = f"{size(memory.end_bytes)} at its end"
    peak = f"{size(memory.peak_bytes)} at the peak of step {memory.step}"
    return f"{memory.device}: tensors hold {peak}{place}; {at_end}.{others}"


def memory_tables(memory: PeakMemory, trades: Sequence[CheckpointTrade], rows: int) -> Iterator[TextTable]:
    """Tables of the modules, lines, ops and phases of a step, and of what checkpointing would free, where known."""
    if memory.modules:
        yield _modules(memory, memory.modules[:rows])
    for title, parts in (("phase", memory.phases), ("line", memory.lines), ("op", memory.ops)):
        if parts:
            yield _parts(title, memory, parts[:rows])
    mine = [trade for trade in trades if trade.device == memory.device]
    if mine:
        yield TextTable(
            ("torch.utils.checkpoint", "peak", "frees", "adds per step"),
            [
                (
                    trade.call,
                    size(trade.with_bytes),
                    f"{size(trade.freed_bytes)} ({percent(trade.freed_bytes, trade.peak_bytes)})",
                    ms(trade.added_ns) if trade.added_ns is not None else "-",
                )
                for trade in mine
            ],
            1,
        )


def _modules(memory: PeakMemory, parts: Sequence[MemoryPart]) -> TextTable:
    rows = [
        (
            part.name,
            size(part.held_bytes),
            *(_of(part, kind) for kind in _COLUMNS),
            percent(part.held_bytes, memory.peak_bytes),
        )
        for part in parts
    ]
    return TextTable(("module, at the peak", "held", "params", "grads", "optimizer", "activations", "share"), rows, 1)


def _parts(title: str, memory: PeakMemory, parts: Sequence[MemoryPart]) -> TextTable:
    rows = [
        (
            part.name,
            size(part.held_bytes),
            percent(part.held_bytes, memory.peak_bytes),
            size(part.peak_bytes) if part.peak_bytes is not None else "-",
            size(part.allocated_bytes),
            f"{part.allocations:,}",
        )
        for part in parts
    ]
    return TextTable((title, "held at peak", "share", "highest level", "allocates", "times"), rows, 1)


def _of(part: MemoryPart, kind: Holding) -> str:
    return size(part.holding[kind]) if part.holding.get(kind) else "-"
