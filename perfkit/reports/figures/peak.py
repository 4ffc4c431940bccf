"""What a device holds at the peak of a step: parts by kind, a flame graph by call path, and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfkit.diagnosis import Diagnosis
from perfkit.measures.results.peak_memory import CheckpointTrade, HeldPath, MemoryPart, PeakMemory
from perfkit.reports.figures.data import HeldPart, PeakFigure, PeakFlame
from perfkit.reports.memory import peak_sentence
from perfkit.reports.tables._table import Column, Table
from perfkit.run.records import HOLDINGS, Holding

#: Paths below this share of the peak are narrower than a pixel.
_MIN_SHARE = 1 / 4_000


def peaks_of(diagnosis: Diagnosis) -> Iterator[PeakFigure]:
    """A figure for each device that was recorded for memory."""
    figures = diagnosis.figures
    for number, memory in enumerate(figures.peak_memory):
        trades = [trade for trade in figures.checkpoint_trades if trade.device == memory.device]
        yield PeakFigure(
            device=memory.device,
            summary=peak_sentence(memory),
            parts=tuple(HeldPart(name, held, _kind(name)) for name, held in memory.holding.items() if held > 0),
            flame=_flame(memory),
            tables=tuple(table for table in _tables(number, memory, trades) if table.rows),
        )


def _kind(holding: Holding) -> str:
    return holding.replace(" ", "-")


def _flame(memory: PeakMemory) -> PeakFlame:
    """Sums of what is held over equal beginnings of paths; what memory is held for is the first call of each."""
    names: dict[tuple[str, str], int] = {}
    nodes: dict[tuple[int, int], int] = {}
    name: list[int] = []
    parent: list[int] = []
    total: list[int] = []
    count: list[int] = []
    for held in memory.paths:
        if held.bytes < _MIN_SHARE * memory.peak_bytes:
            continue
        above = -1
        for part in (held.holding, *held.path):
            code = names.setdefault((part, _kind(held.holding)), len(names))
            node = nodes.get((above, code))
            if node is None:
                node = nodes[above, code] = len(name)
                name.append(code)
                parent.append(above)
                total.append(0)
                count.append(0)
            total[node] += held.bytes
            count[node] += held.allocations
            above = node
    return PeakFlame(
        total_bytes=sum(size for size, above in zip(total, parent, strict=True) if above < 0),
        name=tuple(name),
        parent=tuple(parent),
        total=tuple(total),
        count=tuple(count),
        names=tuple(text for text, _ in names),
        kinds=tuple(kind for _, kind in names),
    )


def _tables(number: int, memory: PeakMemory, trades: Sequence[CheckpointTrade]) -> Iterator[Table]:
    yield _trades(number, trades)
    yield _steps(number, memory)
    for title, parts in (
        ("Modules", memory.modules),
        ("Phases", memory.phases),
        ("Lines", memory.lines),
        ("Ops", memory.ops),
    ):
        yield _parts(f"peak-{number}-{title.lower()}", title, parts)
    yield _paths(number, memory.paths[:100])


def _trades(number: int, trades: Sequence[CheckpointTrade]) -> Table:
    return Table(
        id=f"peak-{number}-checkpoints",
        title="What checkpointing would free",
        columns=(
            Column("torch.utils.checkpoint"),
            Column("peak with it", "bytes"),
            Column("frees", "bytes"),
            Column("forward computed again", "share"),
            Column("adds per step", "ns"),
        ),
        rows=tuple(
            (trade.call, trade.with_bytes, trade.freed_bytes, trade.forward_share, trade.added_ns) for trade in trades
        ),
        note="Predicted by a replay of the recorded step: perfkit explain memory.",
    )


def _steps(number: int, memory: PeakMemory) -> Table:
    return Table(
        id=f"peak-{number}-steps",
        title="Steps",
        columns=(
            Column("step", "count"),
            Column("peak", "bytes"),
            Column("at its end", "bytes"),
            Column("samples", "count"),
        ),
        rows=tuple((one.step, one.peak_bytes, one.end_bytes, one.samples) for one in memory.steps),
        note="The last one is taken apart.",
    )


def _parts(id: str, title: str, parts: Sequence[MemoryPart]) -> Table:
    kinds = [kind for kind in HOLDINGS if any(part.holding.get(kind) for part in parts)]
    return Table(
        id=id,
        title=title,
        columns=(
            Column(title.removesuffix("s").lower()),
            Column("held at the peak", "bytes"),
            *(Column(kind, "bytes") for kind in kinds),
            Column("highest level", "bytes"),
            Column("allocates", "bytes"),
            Column("allocations", "count"),
        ),
        rows=tuple(
            (
                part.name,
                part.held_bytes,
                *(part.holding.get(kind) for kind in kinds),
                part.peak_bytes,
                part.allocated_bytes,
                part.allocations,
            )
            for part in parts
        ),
        note="" if title != "Modules" else "A module contains its submodules.",
    )


def _paths(number: int, paths: Sequence[HeldPath]) -> Table:
    return Table(
        id=f"peak-{number}-paths",
        title="Largest call paths",
        columns=(Column("held for"), Column("path"), Column("bytes", "bytes"), Column("allocations", "count")),
        rows=tuple((one.holding, " > ".join(one.path), one.bytes, one.allocations) for one in paths),
    )
