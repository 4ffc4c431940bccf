"""Ranks become columns on any executor, with the same result; what dies, is damaged or was made before."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from perfkit.errors import RunError
from perfkit.ranks import mapping
from perfkit.ranks._agreement import RankFacts, of_one_run
from perfkit.ranks.executors import Processes
from perfkit.ranks.mapping import MappedRanks, map_ranks
from perfkit.ranks.rank_sources import RankSource, find_ranks
from tests.ranks.build import kineto_trace, run_folder

RANKS = 4


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFKIT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def traces(tmp_path: Path) -> tuple[RankSource, ...]:
    for rank in range(RANKS):
        kineto_trace(tmp_path / "traces" / f"rank-{rank}.json.gz", rank, RANKS, late_ms=rank)
    return find_ranks(tmp_path / "traces").traces


def contents(mapped: MappedRanks) -> list[bytes]:
    return [columns.to_bytes() for columns in mapped]


class Counting(Executor):
    """Runs at once, and ends after ``last`` calls as an executor does that is shut down."""

    def __init__(self, last: int = 1000) -> None:
        self.calls, self.last = 0, last

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.calls == self.last:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self.calls += 1
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def test_every_executor_makes_the_same_bytes(traces: tuple[RankSource, ...]) -> None:
    with Processes(2) as processes:
        expected = contents(map_ranks(traces, processes))
    assert len(expected) == RANKS
    with ThreadPoolExecutor(2) as threads:
        assert contents(map_ranks(traces, threads)) == expected
    assert contents(map_ranks(traces, Counting())) == expected
    assert contents(map_ranks(traces)) == expected


def test_ranks_at_urls_and_rows_are_made_in_processes(tmp_path: Path, traces: tuple[RankSource, ...]) -> None:
    run_folder(tmp_path / "run", 2)
    remote = find_ranks(f"file://{tmp_path}/run").rows
    with Processes(2) as processes:
        rows, urls = map_ranks(remote, processes), map_ranks(find_ranks(f"file://{tmp_path}/traces").traces, processes)
    assert [(columns.rank, len(columns), columns.launch) for columns in rows] == [(0, 10, "a"), (1, 10, "a")]
    assert [columns.collective_start_ns.tolist() for columns in urls] == [
        columns.collective_start_ns.tolist() for columns in map_ranks(traces, Counting())
    ]


def test_what_was_made_is_taken_when_resuming_and_only_then(traces: tuple[RankSource, ...]) -> None:
    expected = contents(map_ranks(traces, Counting()))
    again, resumed = Counting(), Counting()
    assert contents(map_ranks(traces, again)) == contents(map_ranks(traces, resumed, resume=True)) == expected
    assert (again.calls, resumed.calls) == (RANKS, 0)


def test_an_interrupted_work_is_resumed_where_it_was(traces: tuple[RankSource, ...]) -> None:
    def interrupt(done: int, of: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        map_ranks(traces, Counting(), progress=interrupt)
    rest = Counting()
    assert len(map_ranks(traces, rest, resume=True)) == RANKS
    assert rest.calls == RANKS - 2


def test_a_driver_that_is_killed_leaves_no_process_and_its_work_is_resumed(
    tmp_path: Path, traces: tuple[RankSource, ...]
) -> None:
    expected = contents(map_ranks(traces, Counting()))
    shutil.rmtree(tmp_path / "cache")
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal\n"
        "from perfkit.ranks.executors import Processes\n"
        "from perfkit.ranks.mapping import map_ranks\n"
        "from perfkit.ranks.rank_sources import find_ranks\n"
        "def kill(done, of):\n"
        "    if done == 2:\n"
        "        print(*processes._processes, flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        f"traces = find_ranks({str(tmp_path / 'traces')!r}).traces\n"
        "with Processes(2) as processes: map_ranks(traces, processes, progress=kill)\n"
    )
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    rest = Counting()
    assert contents(map_ranks(traces, rest, resume=True)) == expected
    assert rest.calls == RANKS - 2
    workers = [int(pid) for pid in ended.stdout.split()]
    deadline = time.monotonic() + 30
    while alive := [pid for pid in workers if psutil.pid_exists(pid)]:
        assert time.monotonic() < deadline, f"processes {alive} are left"
        time.sleep(0.05)
    assert workers


def test_a_changed_trace_is_made_again_when_resuming(tmp_path: Path, traces: tuple[RankSource, ...]) -> None:
    map_ranks(traces, Counting())
    kineto_trace(tmp_path / "traces" / "rank-2.json.gz", 2, RANKS, late_ms=30)
    rest = Counting()
    map_ranks(find_ranks(tmp_path / "traces").traces, rest, resume=True)
    assert rest.calls == 1


def test_a_damaged_file_of_an_earlier_work_is_made_again(tmp_path: Path, traces: tuple[RankSource, ...]) -> None:
    expected = contents(map_ranks(traces, Counting()))
    next((tmp_path / "cache").rglob("*.rank")).write_bytes(b"x")
    rest = Counting()
    assert contents(map_ranks(traces, rest, resume=True)) == expected
    assert rest.calls == 1


def test_ranks_are_made_where_nothing_can_be_kept(
    tmp_path: Path, traces: tuple[RankSource, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = contents(map_ranks(traces, Counting()))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PERFKIT_CACHE_DIR", str(tmp_path / "file"))
    assert contents(map_ranks(traces, Counting())) == expected


class DyingProcesses(Processes):
    """The process that gets rank 1 is killed, this many times."""

    deaths: ClassVar[int] = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if args and args[0].rank == 1 and DyingProcesses.deaths:
            DyingProcesses.deaths -= 1
            return super().submit(os._exit, 9)
        return super().submit(fn, *args, **kwargs)


def test_a_worker_that_dies_once_costs_no_rank(traces: tuple[RankSource, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = contents(map_ranks(traces, Counting()))
    monkeypatch.setattr(mapping, "Processes", DyingProcesses)
    monkeypatch.setattr(DyingProcesses, "deaths", 1)
    with DyingProcesses(2) as processes:
        mapped = map_ranks(traces, processes)
    assert (contents(mapped), mapped.lost) == (expected, ())


def test_a_rank_that_kills_its_worker_is_left_out_and_the_others_stay(
    traces: tuple[RankSource, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "Processes", DyingProcesses)
    monkeypatch.setattr(DyingProcesses, "deaths", 100)
    with DyingProcesses(2) as processes:
        mapped = map_ranks(traces, processes)
    assert [facts.rank for facts in mapped.facts] == [0, 2, 3]
    assert mapped.lost == (
        "rank 1 was left out: its worker died, and once more when it was alone: is there memory for it?",
    )


class Daemonic(Processes):
    """As in a worker of a DataLoader or of multiprocessing.Pool."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        raise AssertionError("daemonic processes are not allowed to have children")


def test_where_no_process_can_be_started_the_ranks_are_made_here(
    traces: tuple[RankSource, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = contents(map_ranks(traces, Counting()))
    monkeypatch.setattr(mapping, "Processes", Daemonic)
    monkeypatch.setattr(mapping, "cores", lambda: 2)
    assert contents(map_ranks(traces)) == expected


def test_an_executor_that_ends_is_an_error_that_says_how_to_go_on(traces: tuple[RankSource, ...]) -> None:
    with pytest.raises(RunError, match=r"ended after 3 of 4 ranks: start it again and resume \(--resume"):
        map_ranks(traces, Counting(last=3))
    rest = Counting()
    assert len(map_ranks(traces, rest, resume=True)) == RANKS
    assert rest.calls == 1


class Failing(Executor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if args[0].rank == 2:
            future.set_exception(OSError("worker tcp://10.0.0.7 was killed"))
        else:
            future.set_result(fn(*args))
        return future


def test_an_engines_own_error_about_a_worker_costs_its_rank_alone(traces: tuple[RankSource, ...]) -> None:
    mapped = map_ranks(traces, Failing())
    assert len(mapped) == RANKS - 1
    assert mapped.lost == ("rank 2 was left out: its worker failed: OSError: worker tcp://10.0.0.7 was killed",)


def test_a_file_that_is_gone_or_no_trace_costs_its_rank_alone(tmp_path: Path, traces: tuple[RankSource, ...]) -> None:
    (tmp_path / "traces" / "rank-0.json.gz").unlink()
    (tmp_path / "traces" / "rank-3.json.gz").write_bytes(b"\x1f\x8bno gzip")
    mapped = map_ranks(traces, Counting())
    assert [facts.rank for facts in mapped.facts] == [1, 2]
    assert mapped.lost[0].startswith("rank 0 was left out: ")
    assert "does not exist" in mapped.lost[0]
    assert "rank-3.json.gz is not a trace" in mapped.lost[1]


def test_a_program_without_a_main_guard_gets_its_ranks(tmp_path: Path, traces: tuple[RankSource, ...]) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from perfkit.ranks.mapping import map_ranks\n"
        "from perfkit.ranks.executors import Processes\n"
        "from perfkit.ranks.rank_sources import find_ranks\n"
        f"traces = find_ranks({str(tmp_path / 'traces')!r}).traces\n"
        "with Processes(2) as processes: print(len(map_ranks(traces, processes)))\n"
    )
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=100, check=False)
    assert (ended.returncode, ended.stdout) == (0, f"{RANKS}\n"), ended.stderr


def facts(rank: int, launch: str = "a", size: int | None = 4, steps: tuple[int, int] | None = (10, 20)) -> RankFacts:
    first, last = steps or (None, None)
    return RankFacts(rank, f"rank-{rank}", launch, size, first, last)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (facts(3, launch="b"), "of another launch than most"),
        (facts(3, size=8), "of a job with another number of ranks than most"),
        (facts(2), "recorded as a rank that is there already"),
        (facts(3, steps=(500, 510)), "without a step that most others have (it has 500 to 510)"),
    ],
    ids=["launch", "job", "duplicate", "steps"],
)
def test_a_rank_of_something_else_is_left_out(other: RankFacts, said: str) -> None:
    kept, notes = of_one_run([facts(0), facts(1), facts(2), other])
    assert kept == [0, 1, 2]
    assert notes == [f"rank {other.rank} ({other.source}) was left out: it is {said}"]


@pytest.mark.parametrize("other", [facts(3), facts(3, steps=(15, 40)), facts(3, steps=None), facts(3, "", None)])
def test_a_rank_with_some_common_steps_or_unknown_facts_stays(other: RankFacts) -> None:
    assert of_one_run([facts(0), facts(1), facts(2), other]) == ([0, 1, 2, 3], [])
