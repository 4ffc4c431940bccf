"""input-bound where it is known whether each epoch gives the same samples: done once, or by workers."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit._location import Location
from perfkit.findings import Finding
from perfkit.rules.data import input_bound
from perfkit.run.records import ComparedSamples, LineRow, Lines, TracedLine, Workers

MS = 1_000_000


def line(number: int, function: str, ms: float) -> LineRow:
    return LineRow(
        file="train.py", line=number, function=function, owner="user", phase="data", samples=9, host_ns=round(ms * MS)
    )


def in_dataset(row: LineRow, called_from: int) -> Lines:
    """Samples of a line that the dataset's own line calls, in the data phase."""
    at = Location(file="train.py", line=called_from, function="Reviews.__getitem__")
    traced = tuple(
        TracedLine(file="train.py", line=number, function=name, owner="user", phase="data", runs=9, host_ns=MS)
        for number, name in ((row.line, row.function), (called_from, "Reviews.__getitem__"))
    )
    return Lines(period_ns=MS, steps=40, rows=(msgspec.structs.replace(row, called_from=at),), traced=traced)


def with_samples(rank: Any, compared: int, equal: int) -> Any:
    samples = ComparedSamples(compared=compared, equal=equal)
    made = Location(file="train.py", line=50, function="DataLoader(...)")
    loader = msgspec.structs.replace(rank.loaders[0], compared_samples=samples, created_at=made)
    return msgspec.structs.replace(rank, loaders=(loader,))


def test_work_that_gives_the_same_samples_in_each_epoch_is_to_be_done_once(build: Any) -> None:
    step, lines = build.step(100, data=60, forward=40), in_dataset(line(10, "tokenize", 60), 31)
    rank = build.rank(cpus=8)

    [equal] = build.findings(input_bound, step, with_samples(rank, 200, 199), lines)
    [other] = build.findings(input_bound, step, with_samples(rank, 200, 100), lines)

    assert (equal.change.line, equal.edit) == (31, None)
    assert equal.advice.startswith("Do the work of tokenize once, before training, and keep its results")
    assert equal.advice.endswith("too many to keep: DataLoader(..., num_workers=4, persistent_workers=True).")
    assert equal.saving_low_ns >= 59.9 * MS * 2 / 3
    shown = [one for one in equal.evidence if one.name == "samples of later epochs that came in the first"]
    assert [(one.value, one.unit) for one in shown] == [(99.5, "%")]

    assert other.change.line == 50
    assert other.edit.arguments["num_workers"] == "4"
    assert "before training" not in other.advice
    assert "Samples differ from epoch to epoch" in other.advice


def test_where_samples_differ_the_minimum_is_what_workers_hide(build: Any) -> None:
    step, lines = build.step(100, data=60, forward=40), in_dataset(line(10, "augment", 60), 31)

    def found(cpus: int, equal: int) -> Finding:
        [one] = build.findings(input_bound, step, with_samples(build.rank(cpus=cpus, threads=cpus), 200, equal), lines)
        return one

    # (60 + 2 x 40) / 2 = 70 ms remain, 1.3 ms for handing over and 10 ms for sharing the processor.
    assert (found(2, 0).saving_low_ns, found(2, 0).change.line) == (round(18.7 * MS), 50)
    assert (found(2, 200).saving_low_ns, found(2, 200).change.line) == (round(59.9 * MS * 2 / 3), 31)
    # One CPU: nothing is hidden, and the work has to become cheaper.
    alone = found(1, 0)
    assert (alone.change.line, alone.edit) == (31, None)
    assert alone.advice.startswith("Do the work of augment in one call per batch, or make it cheaper")


def test_busy_workers_that_give_the_same_samples_have_a_minimum_saving(build: Any) -> None:
    step = build.step(100, data=60, forward=40)
    row = msgspec.structs.replace(line(10, "tokenize", 60), worker="Reviews")

    def found(busy: float, equal: int) -> Finding:
        workers = Workers(
            dataset="Reviews",
            processes=2,
            samples=100,
            alive_ns=100 * MS,
            busy_ns=round(busy * 100 * MS),
            cpu_ns=90 * MS,
        )
        lines = msgspec.structs.replace(in_dataset(row, 31), workers=(workers,))
        [one] = build.findings(input_bound, step, with_samples(build.rank(workers=4), 200, equal), lines)
        return one

    assert found(0.95, 200).saving_low_ns > 0.66 * 59.9 * MS
    assert found(0.95, 200).advice.startswith("Do the work of tokenize once, before training, and keep its results")
    # Batches are ready: the wait is for something else than their making.
    assert found(0.3, 200).saving_low_ns == 0
    assert found(0.95, 0).saving_low_ns == 0
    assert "before training" not in found(0.95, 0).advice


def test_graphs_that_are_equal_in_each_epoch_have_a_place_for_such_work(build: Any) -> None:
    row = msgspec.structs.replace(line(10, "encodings", 60), within={"torch_geometric": 9})

    [finding] = build.findings(
        input_bound, build.step(100, data=60, forward=40), with_samples(build.rank(), 200, 200), in_dataset(row, 31)
    )

    assert "pre_transform" in finding.advice


def test_what_is_wrong_with_a_loader_besides_comes_before_equal_samples(build: Any) -> None:
    made = Location(file="train.py", line=31, function="Manager(...)")
    rank = with_samples(build.rank(workers=0, calls={"Manager": (made,)}), 200, 200)
    row = line(10, "Scans.__getitem__", 60)
    row = msgspec.structs.replace(row, within={"python > multiprocessing": row.samples})

    [finding] = build.findings(
        input_bound, build.step(100, data=60, forward=40), rank, Lines(period_ns=MS, steps=40, rows=(row,))
    )

    assert finding.advice.startswith("Keep the objects in the process that reads them")
