"""`perfkit.diagnose_ranks` on folders as users have them, damaged and mixed ones too."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import perfkit
from perfkit.errors import UsageError
from perfkit.ranks.diagnosing import RanksDiagnosis
from tests.ranks.build import MS, kineto_trace, late_rank_traces, run_folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("perfkit.ranks.mapping.cores", lambda: 1)  # processes take a second each


def late(found: RanksDiagnosis) -> list[tuple[tuple[int, ...], str]]:
    return [(finding.ranks, finding.cause) for finding in found.findings]


def test_traces_name_the_late_rank_its_cause_and_what_it_costs(tmp_path: Path) -> None:
    found = perfkit.diagnose_ranks(late_rank_traces(tmp_path / "traces"))
    assert (found.outcome, late(found), found.measured_by) == ("late", [((2,), "data")], "collectives")
    assert abs(found.findings[0].saving_ns - 20 * MS) < MS
    assert found.transfer_ns is not None
    assert abs(found.transfer_ns - 20 * MS) < MS
    assert found.waiting_ns is not None
    assert abs(found.waiting_ns - 15 * MS) < MS  # 20 ms on three of four ranks
    assert RanksDiagnosis.from_json(found.to_json()) == found


def test_rows_of_a_run_name_the_rank_that_waits_for_its_data(tmp_path: Path) -> None:
    found = perfkit.diagnose_ranks(str(run_folder(tmp_path / "run", 3)))
    assert (late(found), found.measured_by) == ([((2,), "data")], "phases")


def test_rows_that_have_the_waiting_tell_how_much_of_it_is_for_a_late_rank(tmp_path: Path) -> None:
    found = perfkit.diagnose_ranks(run_folder(tmp_path / "run", 4, waits=True))
    assert (late(found), found.measured_by) == ([((3,), "data")], "waited")
    assert (found.waiting_ns, found.transfer_ns) == (15 * MS, 5 * MS)


def test_windows_decide_where_the_rows_of_a_run_cannot_tell(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", 4, late=None)
    assert perfkit.diagnose_ranks(run).outcome == "cannot-tell"
    for trace in late_rank_traces(tmp_path / "traces").iterdir():
        trace.rename(run / trace.name.removesuffix(".json.gz") / "window-0.pt.trace.json.gz")
    found = perfkit.diagnose_ranks(run)
    assert (late(found), found.measured_by) == ([((2,), "data")], "collectives")


def test_an_executor_of_the_users_reads_the_ranks_and_stays_open(tmp_path: Path) -> None:
    traces = late_rank_traces(tmp_path / "traces")
    with ThreadPoolExecutor(2) as threads:
        assert perfkit.diagnose_ranks(traces, threads) == perfkit.diagnose_ranks(traces, resume=True)
        assert threads.submit(int).result() == 0


def test_what_is_no_executor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"must be a concurrent\.futures\.Executor, got str"):
        perfkit.diagnose_ranks(tmp_path, "dask:tcp://host:8786")  # type: ignore[arg-type]


# -- what folders hold beside one trace of each rank of one job


def test_missing_ranks_are_counted_and_the_others_compared(tmp_path: Path) -> None:
    traces = late_rank_traces(tmp_path / "traces")
    (traces / "rank-0.json.gz").unlink()
    found = perfkit.diagnose_ranks(traces)
    assert late(found) == [((2,), "data")]
    assert "1 of 4 ranks are missing" in found.missing


def test_ranks_that_only_names_tell_of_have_gaps_that_are_said(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        kineto_trace(tmp_path / "traces" / f"rank-{rank}.json.gz", None, 4)
    found = perfkit.diagnose_ranks(tmp_path / "traces")
    assert "no file was found of 1 rank(s), 2 for one" in found.missing


def test_a_second_trace_of_a_rank_is_left_out_and_said(tmp_path: Path) -> None:
    traces = late_rank_traces(tmp_path / "traces")
    (traces / "again.json.gz").write_bytes((traces / "rank-1.json.gz").read_bytes())
    found = perfkit.diagnose_ranks(traces)
    assert (len(found.ranks), late(found)) == (4, [((2,), "data")])
    assert any("rank 1 (2)" in sentence for sentence in found.missing)


def test_a_trace_of_another_job_is_left_out_and_said(tmp_path: Path) -> None:
    traces = late_rank_traces(tmp_path / "traces")
    kineto_trace(traces / "rank-0-of-16.json.gz", 0, 16)
    found = perfkit.diagnose_ranks(traces)
    assert (len(found.ranks), late(found)) == (4, [((2,), "data")])
    assert any("it is of a job of 16" in sentence for sentence in found.missing)


def test_of_two_runs_in_one_folder_one_is_read_and_the_other_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run_folder(tmp_path / name, 3, launch=name)
    found = perfkit.diagnose_ranks(tmp_path)
    assert (len(found.ranks), late(found)) == (3, [((2,), "data")])
    assert any("is in a newer run too" in sentence for sentence in found.missing)


def test_ranks_with_different_numbers_of_steps_are_compared_in_those_they_share(tmp_path: Path) -> None:
    traces = late_rank_traces(tmp_path / "traces")
    late_rank_traces(tmp_path / "shorter", steps=range(10, 16))
    (tmp_path / "shorter" / "rank-1.json.gz").rename(traces / "rank-1.json.gz")
    found = perfkit.diagnose_ranks(traces)
    assert late(found) == [((2,), "data")]
    assert (len(found.ranks), found.first_step, found.last_step) == (4, 11, 19)


def test_ranks_without_a_common_step_cannot_be_told(tmp_path: Path) -> None:
    for rank in range(2):
        kineto_trace(tmp_path / f"rank-{rank}.json", rank, steps=range(100 * rank, 100 * rank + 5))
    found = perfkit.diagnose_ranks(tmp_path)
    assert found.outcome == "cannot-tell"


def test_one_rank_alone_cannot_be_told(tmp_path: Path) -> None:
    kineto_trace(tmp_path / "rank-0.json", 0)
    found = perfkit.diagnose_ranks(tmp_path)
    assert found.verdict == "Cannot tell which rank is late: at least two ranks are needed, and 1 could be read."
    assert "1 of 2 ranks are missing" in found.missing


def test_clocks_that_are_hours_apart_do_not_change_who_is_late(tmp_path: Path) -> None:
    for rank in range(16):  # on two hosts
        more = 20 if rank == 5 else 0
        kineto_trace(
            tmp_path / f"rank-{rank}.json.gz",
            rank,
            16,
            steps=range(10, 20),
            data_ms=10 + more,
            late_ms=more,
            end_ms=91,
            clock_ms=3 * 3_600_000 if rank >= 8 else 0,
        )
    found = perfkit.diagnose_ranks(tmp_path)
    assert late(found) == [((5,), "data")]
    assert sorted(clock.host for clock in found.clocks) == ["node0", "node1"]
    assert {abs(clock.offset_ns) for clock in found.clocks} == {0, 3 * 3_600_000 * MS}
    assert max(clock.residual_ns for clock in found.clocks) < MS
