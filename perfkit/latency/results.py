"""The measured latency of a model, as data, as a table and as a drawing."""

from __future__ import annotations

import msgspec
from rich.table import Table
from rich.text import Text

from perfkit._format import ms, rate, size
from perfkit._html import html_table
from perfkit._text import printable
from perfkit.latency.drawing import bars, draw
from perfkit.latency.stability import TOLERANCE, knee, throughput_growth

#: Version of the JSON. 1: the first.
SCHEMA = 1

_COLUMNS = ("batch", "p50", "p90", "p99", "samples/s", "memory", "")


class BatchLatency(msgspec.Struct, frozen=True, kw_only=True):
    """Latency at one batch size: the time of one call with nothing else queued, in ns.

    p90 needs 10 samples and p99 needs 100, else they are None. ``samples_per_s`` is the batch size / the median.
    A measurement is ``stable`` if the medians of its five parts differ by at most 10% (``drift``) and its quartiles by
    at most 25% of the median (``spread``); if not, ``cause`` is the likely reason.
    ``first_call_ns`` is the first call at this size, which includes compilation, autotuning and allocation.
    ``host_ns`` is the median time until the call returned, on a GPU: if it is close to the latency, the GPU waits for
    launches. ``device_peak_bytes`` is the allocator's peak, None if it did not rise above the earlier peak of the
    process; ``rss_growth_bytes`` is the growth of the process. ``problem`` is the reason if nothing was measured.
    """

    batch_size: int
    samples: int = 0
    warmup_calls: int = 0
    first_call_ns: int | None = None
    mean_ns: int | None = None
    min_ns: int | None = None
    p50_ns: int | None = None
    p90_ns: int | None = None
    p99_ns: int | None = None
    host_ns: int | None = None
    samples_per_s: float | None = None
    stable: bool = False
    drift: float | None = None
    spread: float | None = None
    cause: str | None = None
    device_peak_bytes: int | None = None
    rss_growth_bytes: int | None = None
    problem: str | None = None


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Latency by batch size. ``knee`` is the largest batch size that is worth it, of the stable ones.

    A larger batch is worth it if it raises throughput by at least 10% per doubling; None if fewer than two are stable.
    """

    schema: int = SCHEMA
    model: str
    device: str
    device_name: str | None
    threads: int
    inference_mode: bool
    batches: tuple[BatchLatency, ...]

    @property
    def stable(self) -> bool:
        """Whether the measurement of every batch size that could be measured is stable."""
        return all(batch.stable for batch in self.batches if batch.problem is None)

    @property
    def knee(self) -> int | None:
        """The largest batch size that is worth it (see the class)."""
        return knee(self._stable_ns())

    @property
    def verdict(self) -> str:
        """The knee in a sentence."""
        latencies = self._stable_ns()
        best = knee(latencies)
        if best is None:
            return "which batch size is worth it is unknown: fewer than two measurements are stable"
        sizes = sorted(latencies)
        if best == sizes[-1]:
            before = sizes[-2]
            growth = throughput_growth(latencies, before, best)
            rises = f"throughput still rises at batch size {best}, by {growth:.0%} per doubling from {before}"
            beyond = any(batch.batch_size > best for batch in self.batches)
            return f"{rises}; larger sizes are unknown" if beyond else f"{rises}: try larger sizes"
        after = sizes[sizes.index(best) + 1]
        growth = throughput_growth(latencies, best, after)
        return (
            f"batch size {best} is the largest that is worth it: from {best} to {after} throughput changes by "
            f"{growth:+.0%} per doubling (worth it from {TOLERANCE:.0%})"
        )

    def _stable_ns(self) -> dict[int, int]:
        # A call too short for the clock has no throughput.
        return {b.batch_size: b.p50_ns for b in self.batches if b.stable and b.p50_ns}

    def to_json(self) -> str:
        """Everything, with the knee and the verdict, as indented JSON; times in ns."""
        content = {**msgspec.to_builtins(self), "knee": self.knee, "stable": self.stable, "verdict": self.verdict}
        return msgspec.json.format(msgspec.json.encode(content), indent=1).decode()

    def table(self) -> Table:
        """As a rich table: ``rich.print(latency.table())``."""
        table = Table(
            title=Text(self._headline()),
            caption=Text("\n".join(self.notes())),
            title_justify="left",
            caption_justify="left",
            title_style="bold",
            caption_style="",
            box=None,
            padding=(0, 1, 0, 0),
        )
        for name in _COLUMNS:
            table.add_column(name, justify="right" if name else "left", no_wrap=True)
        for row in self._rows(with_bars=True):
            table.add_row(*map(Text, row))
        return table

    def notes(self) -> list[str]:
        """The text below the numbers: the verdict, and batch sizes that are unstable, failed or launch-bound."""
        notes = [self.verdict]
        for batch in self.batches:
            if batch.problem is not None:
                notes.append(f"batch size {batch.batch_size} was not measured: {batch.problem}")
            elif not batch.stable:
                measured = "too few samples"
                if batch.drift is not None:
                    measured = f"drift {batch.drift:.0%}, quartiles {batch.spread:.0%} apart"
                notes.append(f"batch size {batch.batch_size} is NOT STABLE ({measured}); likely cause: {batch.cause}")
            if batch.host_ns is not None and batch.host_ns > (1 - TOLERANCE) * (batch.p50_ns or 0):
                notes.append(
                    f"batch size {batch.batch_size}: the host takes as long to launch as the device to compute"
                )
        return list(map(printable, notes))

    def _headline(self) -> str:
        device = self.device if self.device_name is None else f"{self.device} ({self.device_name})"
        mode = "inference mode" if self.inference_mode else "gradient mode unchanged"
        threads = "1 host thread" if self.threads == 1 else f"{self.threads} host threads"
        return printable(f"latency of {self.model} on {device}, {threads}, {mode}")

    def _rows(self, *, with_bars: bool = False) -> list[tuple[str, ...]]:
        rows = []
        for batch, bar in zip(self.batches, bars([batch.samples_per_s for batch in self.batches]), strict=True):
            times = ("-" if ns is None else ms(ns) for ns in (batch.p50_ns, batch.p90_ns, batch.p99_ns))
            throughput = "-" if batch.samples_per_s is None else rate(batch.samples_per_s)
            mark = "" if batch.stable or batch.problem is not None else "?"
            rows.append((f"{mark}{batch.batch_size}", *times, throughput, _memory(batch), bar if with_bars else ""))
        return rows

    def __str__(self) -> str:
        lines = [_COLUMNS, *self._rows()]
        widths = [max(len(row[column]) for row in lines) for column in range(len(_COLUMNS))]
        text = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in lines]
        return "\n".join([self._headline(), *text, *self.notes()])

    def _repr_html_(self) -> str:
        """For notebooks: the notes, the table and the drawing; no script, everything escaped."""
        head = (*_COLUMNS[:-1], "stable")
        rows = [
            (*row[:-1], "-" if batch.problem is not None else "yes" if batch.stable else "no")
            for row, batch in zip(self._rows(), self.batches, strict=True)
        ]
        points = [(b.batch_size, b.p50_ns, b.p90_ns, b.stable) for b in self.batches if b.p50_ns]
        notes = html_table((self._headline(),), [(note,) for note in self.notes()])
        return notes + html_table(head, rows) + draw(points, self.knee)


def _memory(batch: BatchLatency) -> str:
    if batch.device_peak_bytes is not None:
        return size(batch.device_peak_bytes)
    grown = batch.rss_growth_bytes
    return "-" if grown is None else f"+{size(max(0, grown))}"
