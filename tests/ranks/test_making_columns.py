"""What one rank recorded, as columns: from a trace with NCCL's kernels, one of gloo, and from rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfkit.ranks.row_columns import columns_of_rows
from perfkit.ranks.trace_columns import columns_of_trace
from perfkit.run.reading import RankFolder
from perfkit.trace import read_trace
from tests.ranks.build import MS, kineto_trace, run_folder

BASE = 1_760_000_000 * 10**9


def test_kernels_of_collectives_have_group_number_bytes_and_step(tmp_path: Path) -> None:
    rank = columns_of_trace(read_trace(kineto_trace(tmp_path / "a.json", 3, 4)), 3)
    assert (rank.rank, rank.world_size, rank.host, rank.origin) == (3, 4, "node0", "trace")
    assert (rank.group_names, rank.kind_names) == (("0 [0, 1, 2, 3]",), ("allreduce",))
    assert rank.collective_sequence.tolist() == [40, 41, 42]
    assert rank.collective_bytes.tolist() == [1 << 20] * 3
    assert rank.collective_step.tolist() == rank.step_number.tolist() == [10, 11, 12]
    assert (rank.collective_arrive_ns - BASE).tolist() == [50 * MS, 150 * MS, 250 * MS]
    assert (rank.collective_start_ns - rank.collective_arrive_ns).tolist() == [MS] * 3
    assert (rank.collective_end_ns - rank.collective_start_ns).tolist() == [20 * MS] * 3


def test_collectives_have_how_long_kernels_compute_beside_them(tmp_path: Path) -> None:
    apart = columns_of_trace(read_trace(kineto_trace(tmp_path / "a.json", 0)), 0)
    beside = columns_of_trace(read_trace(kineto_trace(tmp_path / "b.json", 0, late_ms=-20)), 0)
    on_host = columns_of_trace(read_trace(kineto_trace(tmp_path / "c.json", 0, backend="gloo")), 0)

    assert apart.collective_busy_ns.tolist() == [0] * 3
    # From 31 to 51 ms, beside a kernel from 21 to 41.
    assert beside.collective_busy_ns.tolist() == [10 * MS] * 3
    assert on_host.collective_busy_ns.tolist() == [-1] * 3


def test_steps_have_their_phases_and_kernels(tmp_path: Path) -> None:
    rank = columns_of_trace(read_trace(kineto_trace(tmp_path / "a.json.gz", 0)), 0)
    assert rank.step_wall_ns.tolist() == [100 * MS] * 3
    phases = dict(zip(rank.phase_names, rank.phases_ns[0].tolist(), strict=True))
    assert phases["data"] == 10 * MS
    assert sum(phases.values()) == 100 * MS
    assert (rank.kernel_classes, rank.kernel_ns[:, 0].tolist(), rank.kernel_count[:, 0].tolist()) == (
        ("matmul",),
        [20 * MS] * 3,
        [1] * 3,
    )


def test_older_traces_have_no_numbers_of_collectives(tmp_path: Path) -> None:
    rank = columns_of_trace(read_trace(kineto_trace(tmp_path / "a.json", 0, sequence=False)), 0)
    assert rank.collective_sequence.tolist() == [-1] * 3
    assert rank.collective_bytes.tolist() == [1 << 20] * 3


def test_collectives_of_gloo_begin_at_their_call(tmp_path: Path) -> None:
    rank = columns_of_trace(read_trace(kineto_trace(tmp_path / "a.json", 0, backend="gloo", late_ms=5)), 0)
    assert rank.kind_names == ("allreduce",)
    assert (rank.collective_arrive_ns - BASE).tolist() == [55 * MS, 155 * MS, 255 * MS]
    assert (rank.collective_start_ns - BASE).tolist() == [56 * MS, 156 * MS, 256 * MS]
    assert (rank.collective_end_ns - BASE).tolist() == [76 * MS, 176 * MS, 276 * MS]
    assert rank.collective_bytes.tolist() == [1 << 20] * 3
    assert (rank.kernel_classes, rank.kernel_ns.shape) == ((), (3, 0))


def test_a_trace_without_steps_or_collectives_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1}]}'
    )
    rank = columns_of_trace(read_trace(tmp_path / "a.json"), 0)
    assert len(rank) == 0
    assert [sentence for sentence in rank.lost if "no step is marked" in sentence]
    assert [sentence for sentence in rank.lost if "no collective" in sentence]


def test_rows_of_ordinary_steps_are_columns_in_unix_time(tmp_path: Path) -> None:
    run_folder(tmp_path, 2)
    rank = columns_of_rows(RankFolder(tmp_path / "rank-1", 1), world_size=2)
    assert (rank.rank, rank.world_size, rank.host, rank.launch, rank.origin) == (1, 2, "node0", "a", "rows")
    assert rank.step_number.tolist() == [0, 1, 2, 3, 6, 7, 8, 9, 10, 11]  # 4 and 5 are in a window
    # The clocks drift by 1 us in 10 s.
    assert (rank.step_start_ns - BASE - rank.step_number * 100 * MS).tolist() == [
        10 * step for step in rank.step_number
    ]
    assert rank.phase_names == ("data", "backward")
    assert np.array_equal(rank.phases_ns, [[30 * MS, 70 * MS]] * 10)
    assert set(rank.work.tolist()) == {512}
    assert set(rank.gc_ns.tolist()) == set(rank.waited_ns.tolist()) == {-1}


def test_rows_have_how_long_the_rank_was_blocked_in_collectives(tmp_path: Path) -> None:
    run_folder(tmp_path, 2, waits=True)
    rank = columns_of_rows(RankFolder(tmp_path / "rank-0", 0), world_size=2)
    assert set(rank.waited_ns.tolist()) == {25 * MS}


@pytest.mark.parametrize("damage", ["no rank.json", "cut rows", "no rows"])
def test_a_damaged_folder_says_what_is_missing(tmp_path: Path, damage: str) -> None:
    folder = run_folder(tmp_path, 1) / "rank-0"
    if damage == "no rank.json":
        (folder / "rank.json").unlink()
    elif damage == "cut rows":
        rows = (folder / "steps.jsonl").read_bytes()
        (folder / "steps.jsonl").write_bytes(b"{}\n" + rows[: len(rows) // 2])
    else:
        (folder / "steps.jsonl").unlink()
    rank = columns_of_rows(RankFolder(folder, 0))
    assert (len(rank), bool(rank.lost), rank.host) == {
        "no rank.json": (10, True, ""),
        "cut rows": (4, True, "node0"),
        "no rows": (0, True, "node0"),
    }[damage]
