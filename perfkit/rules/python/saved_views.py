"""Parts of a tensor are saved, and each file or blob holds all of the memory behind it.

Problem: a row of a batch, `x[i]`, is a view: it shares the memory of the batch. `torch.save` and `pickle` write the
whole memory of what they get, so that 64 rows saved one by one are 64 copies of the batch: written, compressed, sent
or kept in a database, and read again later.

How it shows: in one step a line saves tensors whose memories are at least 4 times as large as they are. What the
needless bytes take of its time, at least, is 5% of the step or more.

Causes: `torch.save(features[i], path)`, `pickle.dumps(row)`, a cache of single samples, `hidden[:, 0]` of all places.

Fix: save a copy, or the whole tensor once.

    torch.save(features[i].clone(), path)
    blob = features[i].numpy().tobytes()              # of a database; numpy writes the elements of the view alone

    torch.save(features, path)                        # once, in place of each row

Saving: the share of the bytes that need not be written, of the line's time; at least that share of the time without
what does not grow with the bytes: what 1 MB takes, or 1 ms, for each pickle, and 5 MB or 5 ms for each file.

Source: pickles are heard in the steps whose ops are listened to, in the training process; time is sampled. A memory
counts once in each file of `torch.save`, as that writes it (tied and flattened weights), and for each view that
`pickle` writes. To write 1 MiB in place of 4 KiB took 3 to 9 times as long, 55 to 210 times with gzip (CALIBRATION.md).
4 was chosen. On a disk a file of 1 MiB took 4.2 ms, of a row 3.5. Queues of torch.multiprocessing are not reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfkit._format import size, times
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import PYTHON, Selector
from perfkit.ledger.step_budget import MeanStepBudget, shows_amount
from perfkit.measures.results.host import HostWork
from perfkit.rules._host_work import CERTAIN_SAMPLES
from perfkit.rules._places import is_method
from perfkit.run.records import LineRow, Lines, SavedViews

ID = "saved-views"
CLAIMS = (
    Selector(owner="checkpoint"),
    Selector(owner="logging"),
    Selector(owner="waiting"),
    *PYTHON,
    Selector(phase="data"),
)

#: A storage at least this many times as large as what is saved of it is saved by mistake (chosen: halves of a tensor
#: may be kept together on purpose).
_LARGER = 4
#: Upper bounds of the fixed cost of a pickle, in memory and in a file: as an equivalent number of bytes, and in ns. In
#: memory 0.1 to 0.5 MB and 0.1 to 0.2 ms were measured, in files on a disk up to 5 MB and 3.5 ms (CALIBRATION.md).
_FIXED = {True: (1_000_000, 1_000_000), False: (5_000_000, 5_000_000)}
#: So many needless bytes per step are worth a word, whatever the line takes: another line may compress them, or write
#: them into a database (chosen: to compress 1 MB took 35 ms).
_MUCH = 1_000_000
_ADVICE = (
    "Save a copy of what is needed (torch.save(row.clone(), ...), row.numpy().tobytes() for a blob), or the whole "
    "tensor once."
)
#: Libraries that save and compress.
_SAVE = frozenset({"torch.serialization", "torch.storage", "gzip", "bz2", "lzma", "zipfile"})


def check(step: MeanStepBudget, lines: Lines, works: tuple[HostWork, ...] = ()) -> Iterator[Finding]:
    """Find lines that save much more than their tensors."""
    total = sum(row.samples for row in lines.rows if row.worker is None)
    for one in lines.saved_views:
        if one.storage_bytes < _LARGER * one.bytes:
            continue
        samples, ns = _time_of(one, lines, works)
        cost = min(step.wall_ns, ns)
        needless = (1 - one.bytes / one.storage_bytes) * cost
        least = needless * _growing_share(one, cost, lines)
        if step.is_negligible(least) or not shows_amount(samples, total):
            if one.storage_bytes - one.bytes >= _MUCH:
                yield step.finding(
                    cost=None,
                    severity="info",
                    spent=one.at,
                    change=_to_edit(one),
                    message=f"{_sentence(one)}. What the rest takes to write, compress or send is not known.",
                    advice=_ADVICE,
                )
            continue
        yield step.finding(
            cost=cost,
            saving=(step.minimum_saving(least, samples=samples), step.maximum_saving(needless, samples=samples)),
            spent=one.at,
            change=_to_edit(one),
            message=f"{_sentence(one)}. This takes {step.shown(cost)}.",
            advice=_ADVICE,
            confidence="high" if samples >= CERTAIN_SAMPLES else "medium",
            evidence=(
                Evidence.ms("time of this line", cost, f"{samples} samples of stacks"),
                Evidence("needed of what is written", size(one.bytes), f"of {size(one.storage_bytes)}", "one step"),
            ),
        )


def _sentence(one: SavedViews) -> str:
    return (
        f"{size(one.bytes)} of tensors are saved as {size(one.storage_bytes)}, {times(one.calls)} per step: each view "
        "is written with all of the memory that it is a part of"
    )


def _time_of(one: SavedViews, lines: Lines, works: Sequence[HostWork]) -> tuple[int, int]:
    """Samples and time of a line outside of ops, and of a dataset's line in what saves or compresses."""
    rows = [row for work in works for row in work.lines if (row.file, row.line) == (one.file, one.line)]
    samples, ns = sum(row.samples for row in rows), sum(row.host_ns for row in rows)
    for fetch in _sampled(one, lines):
        if fetch.phase == "data":
            saving = sum(count for within, count in fetch.within.items() if not _SAVE.isdisjoint(within.split(" > ")))
            samples += saving
            ns += round(fetch.host_ns * saving / max(1, fetch.samples))
    return samples, ns


def _sampled(one: SavedViews, lines: Lines) -> list[LineRow]:
    return [row for row in lines.rows if row.worker is None and (row.file, row.line) == (one.file, one.line)]


def _growing_share(one: SavedViews, cost: float, lines: Lines) -> float:
    """The part of the time that grows with the bytes, at least: by how many these are, or by how long they take."""
    each, (fixed, fixed_ns) = one.storage_bytes / one.calls, _FIXED[one.in_memory]
    rows = _sampled(one, lines)
    waiting = sum(sum((row.waiting or {}).values()) for row in rows) / max(1, sum(row.samples for row in rows))
    return max(each / (each + fixed), 1 - waiting - one.calls * fixed_ns / max(cost, 1))


def _to_edit(one: SavedViews) -> Location:
    """The line that makes the view and leads to the saving, or one in a method before it, that can copy for all."""
    passed = one.passed_at or (one.at,)
    return next((at for at in passed if is_method(at)), passed[-1])
