"""Dask and Ray, started for real: the same ranks bit for bit, also after one of their workers was killed."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perfkit.errors import RunError
from perfkit.ranks.executors import Processes, open_executor
from perfkit.ranks.mapping import map_ranks
from perfkit.ranks.rank_sources import RankSource, find_ranks
from tests.ranks.build import late_rank_traces

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # their own warnings, at start and end

RANKS = 12


class Cluster(NamedTuple):
    """Two workers of an engine: how ``--on`` names them, and the process ids of those that run tasks."""

    name: str
    workers: Callable[[Executor], list[int]]


def _dask() -> Iterator[Cluster]:
    try:
        from distributed import LocalCluster  # an extra
    except ImportError:
        pytest.skip("Dask is not installed")
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:

        def workers(_: Executor) -> list[int]:
            return [worker.pid for worker in cluster.workers.values()]

        yield Cluster(f"dask:{cluster.scheduler_address}", workers)


def _ray() -> Iterator[Cluster]:
    try:
        from ray.cluster_utils import Cluster as RayCluster  # an extra
    except ImportError:
        pytest.skip("Ray is not installed")
    cluster = RayCluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        yield Cluster(f"ray:{cluster.address}", lambda executor: [executor.submit(os.getpid).result()])
    finally:
        cluster.shutdown()


@pytest.fixture(params=[_dask, _ray], ids=["dask", "ray"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    yield from request.param()


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RankSource, ...]:
    monkeypatch.setenv("PERFKIT_CACHE_DIR", str(tmp_path / "cache"))
    return find_ranks(late_rank_traces(tmp_path / "traces", RANKS)).traces


def contents(traces: tuple[RankSource, ...], executor: Executor, **options: Any) -> list[bytes]:
    mapped = map_ranks(traces, executor, **options)
    assert mapped.lost == ()
    return [columns.to_bytes() for columns in mapped]


def test_a_cluster_makes_the_same_ranks_bit_for_bit(traces: tuple[RankSource, ...], cluster: Cluster) -> None:
    with Processes(2) as processes:
        expected = contents(traces, processes)
    with open_executor(cluster.name) as executor:
        assert executor is not None
        assert contents(traces, executor) == expected


def test_a_worker_that_is_killed_in_the_middle_costs_no_rank(traces: tuple[RankSource, ...], cluster: Cluster) -> None:
    with Processes(2) as processes:
        expected = contents(traces, processes)

    with open_executor(cluster.name) as executor:
        assert executor is not None

        def kill(done: int, of: int) -> None:
            if done == 1:
                os.kill(cluster.workers(executor)[0], signal.SIGKILL)

        assert contents(traces, executor, progress=kill) == expected


@pytest.mark.parametrize(("kind", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_a_real_engine_says_within_ten_seconds_that_nothing_listens(kind: str, module: str) -> None:
    if find_spec(module) is None:
        pytest.skip(f"{kind.title()} is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    _refused_within_ten_seconds(f"{kind}:127.0.0.1:{port}")


def test_dask_says_within_ten_seconds_that_something_else_listens() -> None:
    if find_spec("distributed") is None:
        pytest.skip("Dask is not installed")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        _refused_within_ten_seconds(f"dask:127.0.0.1:{silent.getsockname()[1]}")


def _refused_within_ten_seconds(name: str) -> None:
    began = time.monotonic()
    with pytest.raises(RunError, match=r"127\.0\.0\.1"), open_executor(name):
        pass
    assert time.monotonic() - began < 10
