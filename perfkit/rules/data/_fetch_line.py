"""The line in which the time of the data phase passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from perfkit._location import Location
from perfkit.ledger.step_budget import MAJORITY
from perfkit.measures.results.host import SourceLines
from perfkit.run.records import SHARED, LineRow, Lines, TracedLine

#: Below this many samples of the data phase the line comes from the step for lines, which sees every line. Of 20
#: samples a line with half of the time gets a quarter or fewer once in fifty runs. In a short run on a busy machine the
#: few there are fall on the line that waits, where the interpreter's lock changes hands.
_FEW_SAMPLES = 20
#: Lines with less than this share of the hottest line's samples count only where the step for lines saw them too: a
#: sample or two belong to the line before or after.
_STRAY = 0.05
#: How `numpy.lib.npyio.NpzFile` reads an array, as the sampler names libraries.
_ARCHIVE = "numpy > zipfile"
#: Where `LineRow.within` counts the samples of a fetch that no line of the dataset's runs in.
_LOADER = "torch.utils.data"


def fetch_line(lines: Lines, source_lines: SourceLines | None, dataset: str | None) -> LineRow | None:
    """The hottest line of the user's function that takes most of the data phase.

    Inside the workers that read ``dataset``, where they were sampled, else in the training process. By function first:
    a function whose time spreads over ten lines costs more than one with one hot line. None where no line of the user's
    is known.
    """
    known = source_lines.lines if source_lines is not None else ()
    stacks_ns = {(line.file, line.line): line.self_ns for line in known}
    sampled = [row for row in lines.rows if row.phase == "data" and row.owner == "user"]
    rows = [row for row in sampled if dataset is not None and row.worker == dataset]
    weights: list[int] = []
    if not rows:
        rows = _with_traced([row for row in sampled if row.worker is None], lines.traced)
        if sum(row.samples for row in rows) < _FEW_SAMPLES:
            weights = [stacks_ns.get((row.file, row.line), 0) for row in rows]
    if not any(weights):
        weights = [row.host_ns for row in rows]
    total: Counter[tuple[str, str]] = Counter()
    for row, ns in zip(rows, weights, strict=True):
        total[row.file, row.function] += ns
    function = max(total, key=lambda name: total[name], default=None)
    # Samples favour the line of a function that releases the interpreter's lock; stacks do not.
    return max(
        (row for row in rows if (row.file, row.function) == function),
        key=lambda row: (stacks_ns.get((row.file, row.line), 0), row.host_ns),
        default=None,
    )


def _with_traced(sampled: Sequence[LineRow], traced: Sequence[TracedLine]) -> list[LineRow]:
    """The sampled lines without strays, and the user's lines that only the step for lines saw in the data phase."""
    in_phase = {(line.file, line.line): line for line in traced if line.phase == "data" and line.owner == "user"}
    most = max((row.samples for row in sampled), default=0)
    rows = [row for row in sampled if row.samples >= _STRAY * most or (row.file, row.line) in in_phase]
    seen = {(row.file, row.line) for row in rows}
    return rows + [
        LineRow(
            file=line.file,
            line=line.line,
            function=line.function,
            phase="data",
            samples=0,
            host_ns=0,
            called_from=next(iter(line.callers), None),
        )
        for at, line in in_phase.items()
        if at not in seen
    ]


def is_in_loader(line: LineRow | None) -> bool:
    """Whether most of a fetch is the loader's own work or wait, and not the dataset's."""
    if line is None:
        return False
    return sum(count for library, count in line.within.items() if library.startswith(_LOADER)) > MAJORITY * line.samples


def maker_of(line: LineRow | None, lines: Lines | None) -> tuple[str, Location] | None:
    """The class in whose methods most of a fetch passes, and the line of the user's that makes its object.

    It is a library's, or one of the user's whose method a library calls, as a transform of its dataset. Of several such
    classes the one with the fewest samples: a transform and not the list of all of them.
    """
    if line is None or lines is None:
        return None
    most = [(n, name) for name, n in line.objects.items() if n > MAJORITY * line.samples and name in lines.makers]
    name = min(most, default=(0, ""))[1]
    return (name, lines.makers[name]) if name else None


def named_by_object(line: LineRow | None, lines: Lines | None) -> LineRow | None:
    """The line with the class of `maker_of` as its function, where no line of the user's is in the fetch."""
    made = maker_of(line, lines) if is_in_loader(line) else None
    return msgspec.structs.replace(line, function=made[0]) if line is not None and made is not None else line


def waits_inside(line: LineRow | None) -> bool:
    """Whether most of a fetch waits, for a disk, a network or a lock, and needs no CPU meanwhile."""
    return line is not None and sum((line.waiting or {}).values()) > MAJORITY * line.samples


def reads_archive(hottest: LineRow | None) -> bool:
    """Whether most of the time is spent in reading an array of an .npz file, which numpy keeps none of."""
    if hottest is None:
        return False
    return sum(count for within, count in hottest.within.items() if _ARCHIVE in within) > MAJORITY * hottest.samples


def asks_manager(row: LineRow | None) -> bool:
    """Whether most of a fetch is asking another process for its objects, as those of a manager of multiprocessing.

    Of workers only that is known of their libraries; what a loader itself does to get a batch from them is none.
    """
    if row is None or (row.worker is None and row.phase != "data"):
        return False
    paths = ((within.split(" > "), count) for within, count in row.within.items())
    shared = sum(count for path, count in paths if SHARED in path and _LOADER not in path)
    return shared > MAJORITY * row.samples
