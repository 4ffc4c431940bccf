"""One rank is a small file that comes back as it was."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import msgspec
import numpy as np
import pytest

from perfkit.errors import RunError
from perfkit.ranks.rank_columns import MAX_BYTES, RankColumns, within_budget
from tests.ranks.build import MS, rank_columns

COLLECTIVE_FIELDS = [field.name for field in fields(RankColumns) if field.name.startswith("collective_")]


def differing(one: RankColumns, other: RankColumns) -> list[str]:
    return [f.name for f in fields(RankColumns) if not np.array_equal(getattr(one, f.name), getattr(other, f.name))]


@pytest.mark.parametrize("steps", [0, 1, 300])
def test_a_saved_rank_is_loaded_with_equal_columns(tmp_path: Path, steps: int) -> None:
    rank = rank_columns(
        3, steps, kernel_classes=("gemm",), kernel_ns=np.full((steps, 1), 7), kernel_count=np.ones((steps, 1), int)
    )
    rank.save(tmp_path / "rank-3")
    loaded = RankColumns.load(tmp_path / "rank-3")
    assert differing(rank, loaded) == []
    assert loaded.collective_group.dtype == np.int32
    assert loaded.to_bytes() == rank.to_bytes()


def test_times_out_of_order_and_unknown_ones_come_back() -> None:
    rank = rank_columns(0, 2, 1, step_start_ns=np.array([2**61, 5]), collective_start_ns=np.array([-1, 2**61]))
    assert differing(rank, RankColumns.from_bytes(rank.to_bytes())) == []


def test_a_thousand_steps_with_phases_fit_the_budget_whole() -> None:
    draw = np.random.default_rng(0)
    start = np.cumsum(draw.integers(190 * MS, 210 * MS, 1000))
    phases = draw.integers(0, 100 * MS, (1000, 8))
    waited = draw.integers(0, 50 * MS, 1000)
    rank = rank_columns(
        0, 1000, 0, step_start_ns=start, phase_names=tuple("abcdefgh"), phases_ns=phases, waited_ns=waited, gc_ns=waited
    )
    assert within_budget(rank) is rank


def test_of_a_large_trace_the_first_steps_stay_with_all_their_collectives() -> None:
    kept = within_budget(rank_columns(0, 500, 40, origin="trace"))
    assert MAX_BYTES / 2 < len(kept.to_bytes()) < MAX_BYTES
    assert np.array_equal(kept.step_number, np.arange(len(kept)))
    steps, counts = np.unique(kept.collective_step, return_counts=True)
    assert np.array_equal(steps, kept.step_number)
    assert set(counts.tolist()) == {40}
    assert kept.lost[-1] == f"of 500 steps the first {len(kept)} were kept"


def test_three_steps_of_a_trace_stay_also_where_each_has_thousands_of_collectives() -> None:
    kept = within_budget(rank_columns(0, 6, 10_000, origin="trace"))
    assert (len(kept), kept.collective_step.size) == (3, 30_000)
    assert MAX_BYTES < len(kept.to_bytes()) < 10 * MAX_BYTES


def test_no_number_of_collectives_is_larger_than_what_is_read() -> None:
    kept = within_budget(rank_columns(0, 1, 300_000, origin="trace"))
    assert 0 < len(kept.to_bytes()) < MAX_BYTES
    assert "of 300,000 collectives the first" in kept.lost[-1]


def test_without_steps_the_first_collectives_stay() -> None:
    whole = rank_columns(0, 200, 100)
    kept = within_budget(rank_columns(0, 0, 0, **{n: getattr(whole, n) for n in COLLECTIVE_FIELDS}))
    assert 1000 < kept.collective_step.size < 20_000
    assert np.array_equal(kept.collective_sequence, np.arange(kept.collective_step.size))


def test_too_many_steps_keep_the_same_numbers_on_every_rank() -> None:
    draw = np.random.default_rng(0)
    ranks = [
        rank_columns(0, 30_000, 0, step_wall_ns=draw.integers(1, 10**9, 30_000), gc_ns=draw.integers(1, 10**9, 30_000))
        for _ in range(2)
    ]
    first, second = (within_budget(rank) for rank in ranks)
    assert len(first.to_bytes()) < MAX_BYTES
    assert np.array_equal(first.step_number, second.step_number)
    assert "multiple of" in first.lost[-1]


def damaged_files() -> dict[str, bytes]:
    whole = rank_columns().to_bytes()
    tree = msgspec.msgpack.decode(whole)

    def changed(name: str, width: int, first: int | None, data: bytes) -> bytes:
        columns = tree["columns"] | {name: [width, first, data]}
        return msgspec.msgpack.encode(tree | {"columns": columns})

    return {
        "empty": b"",
        "cut": whole[:-7],
        "another version": msgspec.msgpack.encode(tree | {"schema": 99}),
        "no column": msgspec.msgpack.encode(tree | {"columns": {}}),
        "fewer rows": changed("gc_ns", 1, None, b"\0"),
        "half a number": changed("gc_ns", 8, None, b"\0" * 7),
        "no such width": changed("gc_ns", 3, None, b"\0" * 12),
        "a group that has no name": changed("collective_group", 1, None, b"\7" * 12),
        "no clock's time": changed("step_start_ns", 8, 2**63 - 1, b"\1" * 32),
        "an array": b"\xdd\xff\xff\xff\xff",
    }


@pytest.mark.parametrize("damage", damaged_files())
def test_a_damaged_file_is_refused_in_a_sentence(tmp_path: Path, damage: str) -> None:
    (tmp_path / "rank-0").write_bytes(damaged_files()[damage])
    with pytest.raises(RunError, match="the columns of a rank are"):
        RankColumns.load(tmp_path / "rank-0")
